"""One line in a user's own Celery app, whose file is called tasks.py, with real workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import pytest
from celery import Celery
from support.jobs import failure_of, verdict_of
from support.redis_server import RedisServer
from support.waiting import wait_for

from mulligan.policies import Retry
from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.ledger import job_ids
from mulligan.workers.ledger.calls import connect
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.local.supervisor import Stack
from mulligan.workers.settings.model import Settings

PROJECT = '''
import json
import os

from celery import Celery
from pydantic import BaseModel, field_validator

from mulligan import Repair, RepairingTask, Scored, install

app = Celery("mine", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
install(app, sweep_interval=0.3, lease=5)


class Person(BaseModel):
    name: str
    age: int

    @field_validator("age")
    @classmethod
    def grown_up(cls, value):
        if value < 18:
            raise ValueError("must be an adult's age")
        return value


def ask_my_model(prompt):
    """Answers wrongly until the prompt says what is wrong."""
    if "adult" in prompt:
        return '{"name": "Alice", "age": 31}'
    return '{"name": "Alice", "age": 3}'


@app.task(base=RepairingTask, verifiers=[Person], task_type="extract")
def extract(self, text):
    return ask_my_model(self.correct(f"Extract: {text}"))


@app.task(base=RepairingTask, bind=True)
def by_hand(self, wanted):
    if self.repair is None:
        raise Repair("say please", score=40, path="$.manners")
    return f"please, {wanted}: {self.repair.prompt_suffix}"


@app.task(base=RepairingTask, verifiers=["json.object"], policy={"max_attempts": 3})
def hopeless(self):
    return "never JSON"


def is_short(text):
    assert len(text) < 10, "longer than ten characters"


@app.task(base=RepairingTask, verifiers=[is_short])
def shorten(text):
    return text[:5] if len(text) > 20 else text


@app.task(base=RepairingTask)
def crashes(self):
    raise KeyError("age")


@app.task(base=RepairingTask, verifiers=["json.object"], mode="observe")
def watched(self):
    return "not JSON, and returned all the same"


@app.task
def plain(number):
    return number * 2
'''


class Mine:
    """A user's project with a worker, and what the ledger knows about its tasks."""

    def __init__(self, server: RedisServer, stack: Stack) -> None:
        self.app = Celery("client", broker=server.url, backend=server.url)
        self.stack = stack
        settings = Settings(broker_url=server.url)
        self.ledger = RedisLedger(connect(settings.ledger or ""), settings, patience=10)

    def send(self, name: str, *args: Any) -> Any:
        return self.app.send_task(f"tasks.{name}", args=args)

    def view(self, message_id: str) -> JobView | None:
        return self.ledger.job(job_ids.own_job_id(message_id, partitions=1))

    def ended(self, message_id: str) -> JobView:
        def state() -> JobView | None:
            self.stack.watch()
            view = self.view(message_id)
            return view if view and view.state in ("succeeded", "escalated", "cancelled") else None

        found: JobView = wait_for(state, "the task to end")
        return found


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mine]:
    folder = tmp_path_factory.mktemp("mine")
    (folder / "tasks.py").write_text(dedent(PROJECT))
    for package in ("workers", "policies"):  # names that our own folders have, too
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text("")
    server = RedisServer(folder / "redis")
    server.start()
    stack = Stack(folder, {**os.environ, "BROKER": server.url, "PYTHONPATH": str(folder)})
    argv = [sys.executable, "-P", "-m", "celery", "--workdir", str(folder), "-A", "tasks"]
    argv += ["worker", "-B", "-P", "threads"]
    argv += ["-c", "4", "-l", "info", "--scheduler", "celery.beat.Scheduler"]
    stack.add("mine", argv)
    try:
        yield Mine(server, stack)
    except BaseException:
        sys.stderr.write((folder / "logs" / "mine.log").read_text()[-5000:])
        raise
    finally:
        stack.stop()
        server.kill()


def test_a_validators_message_repairs_the_next_attempt(mine: Mine) -> None:
    result = mine.send("extract", "Alice is 31.")
    # Whoever waits for the first message gets the last one's result.
    assert result.get(timeout=60) == '{"name": "Alice", "age": 31}'
    view = mine.ended(result.id)
    assert [a.plan.mode for a in view.attempts] == ["initial", "immediate_retry"]
    assert view.state == "succeeded"
    assert view.job.task_type == "extract"
    assert len(view.cycles) == 1


def test_a_task_may_ask_for_a_repair_by_hand(mine: Mine) -> None:
    result = mine.send("by_hand", "tea")
    assert "say please" in result.get(timeout=60)
    view = mine.ended(result.id)
    assert view.attempts[0].score == 40


def test_the_same_failure_again_is_escalated(mine: Mine) -> None:
    result = mine.send("hopeless")
    view = mine.ended(result.id)
    assert (view.state, view.reason) == ("escalated", "repeated_failure")
    assert len(view.attempts) == 3


def test_a_plain_function_is_a_verifier(mine: Mine) -> None:
    view = mine.ended(mine.send("shorten", "fifteen letters").id)
    assert view.state == "escalated"
    assert "longer than ten" in failure_of(view.attempts[0]).message
    assert mine.ended(mine.send("shorten", "x" * 30).id).state == "succeeded"


def test_an_ordinary_exception_is_classified(mine: Mine) -> None:
    view = mine.ended(mine.send("crashes").id)
    assert view.state == "escalated"
    assert failure_of(view.attempts[0]).kind == "missing_context"


def test_observing_records_and_retries_nothing(mine: Mine) -> None:
    result = mine.send("watched")
    assert result.get(timeout=60).startswith("not JSON")
    view = mine.ended(result.id)
    assert (view.state, view.reason, len(view.attempts)) == ("cancelled", "observed", 1)
    assert type(verdict_of(view.attempts[0]).decision) is Retry


def test_other_tasks_are_left_alone(mine: Mine) -> None:
    assert mine.send("plain", 21).get(timeout=60) == 42
