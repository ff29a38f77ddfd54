"""A user's Celery app, whose module is called tasks, with one line added and a real worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.jobs import failure_of, verdict_of
from support.user_tasks import UserProject, user_project

from mulligan.policies import Retry

CODE = '''
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
    """Answer wrongly until the prompt says what is wrong."""
    if "adult" in prompt:
        return '{"name": "Alice", "age": 31}'
    return '{"name": "Alice", "age": 3}'


@app.task(base=RepairingTask, verifiers=[Person], task_type="extract")
def extract(self, text):
    return ask_my_model(self.correct(f"Extract: {text}"))


@app.task(base=RepairingTask, bind=True)
def by_hand(self, drink):
    if self.repair is None:
        raise Repair("say please", score=40, path="$.manners")
    return f"please, {drink}: {self.repair.prompt_suffix}"


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


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserProject]:
    folder = tmp_path_factory.mktemp("p")
    for package in ("workers", "policies"):  # mulligan's folders have these names, too
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text("")
    with user_project(folder, CODE, "-P", "threads", "-c", "4") as project:
        project.start_worker()
        yield project


def test_a_validator_s_message_repairs_the_next_attempt(project: UserProject) -> None:
    result = project.send("extract", "Alice is 31.")
    # The first message's result is the last attempt's.
    assert result.get(timeout=60) == '{"name": "Alice", "age": 31}'
    view = project.wait_until_ended(result.id)
    assert [a.plan.mode for a in view.attempts] == ["initial", "immediate_retry"]
    assert view.state == "succeeded"
    assert view.job.task_type == "extract"
    assert len(view.cycles) == 1


def test_a_task_may_ask_for_a_repair_by_hand(project: UserProject) -> None:
    result = project.send("by_hand", "tea")
    assert "say please" in result.get(timeout=60)
    view = project.wait_until_ended(result.id)
    assert view.attempts[0].score == 40


def test_a_repeated_failure_is_escalated(project: UserProject) -> None:
    result = project.send("hopeless")
    view = project.wait_until_ended(result.id)
    assert (view.state, view.reason) == ("escalated", "repeated_failure")
    assert len(view.attempts) == 3


def test_a_plain_function_is_a_verifier(project: UserProject) -> None:
    view = project.wait_until_ended(project.send("shorten", "fifteen letters").id)
    assert view.state == "escalated"
    assert "longer than ten" in failure_of(view.attempts[0]).message
    assert project.wait_until_ended(project.send("shorten", "x" * 30).id).state == "succeeded"


def test_an_ordinary_exception_is_classified(project: UserProject) -> None:
    view = project.wait_until_ended(project.send("crashes").id)
    assert view.state == "escalated"
    assert failure_of(view.attempts[0]).kind == "schema_invalid"


def test_observing_records_the_verdict_and_retries_nothing(project: UserProject) -> None:
    result = project.send("watched")
    assert result.get(timeout=60).startswith("not JSON")
    view = project.wait_until_ended(result.id)
    assert (view.state, view.reason, len(view.attempts)) == ("cancelled", "observed", 1)
    assert type(verdict_of(view.attempts[0]).decision) is Retry


def test_other_tasks_are_not_changed(project: UserProject) -> None:
    assert project.send("plain", 21).get(timeout=60) == 42
