"""The arguments and results of a user's task, through Celery's serializers."""

from __future__ import annotations

import time
import uuid
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Retry
from kombu import entity
from pydantic import BaseModel
from support.jobs import verdict_of
from support.user_tasks import delivered, job_of
from support.waiting import wait_for

from mulligan import Repair, RepairingTask, install
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.celery.broker.queue_depth import depths
from mulligan.workers.celery.periodic import SWEEP
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.user_tasks.installed_app import installed

#: Kombu has no types.
Exchange: Any = entity.Exchange
Queue: Any = entity.Queue


class Person(BaseModel):
    name: str
    age: int


ALICE = Person(name="Alice", age=31)


@pytest.fixture
def app(redis_url: str) -> Celery:
    app = Celery("mine", broker=redis_url, backend="cache+memory://", set_as_current=False)
    app.conf.update(task_always_eager=True, task_store_eager_result=True)
    install(app)
    return app


# -- results ---------------------------------------------------------------------------------------


def test_the_caller_gets_the_answer_after_free_repairs(app: Celery) -> None:
    def fenced() -> str:
        return f"Here it is:\n```json\n{ALICE.model_dump_json()}\n```"

    task = app.task(base=RepairingTask, shared=False, verifiers=[Person])(fenced)
    result = task.delay()
    assert Person.model_validate_json(app.AsyncResult(result.id).get(timeout=10)) == ALICE
    # A repeated message returns the same.
    assert task.apply(task_id=result.id).get() == result.get()


@pytest.mark.parametrize(
    ("value", "stored_value"),
    [(ALICE, ALICE.model_dump()), ({"p": ALICE}, {"p": ALICE.model_dump()}), ({7}, [7])],
    ids=["model", "nested", "set"],
)
def test_a_success_in_the_ledger_is_one_in_celery(
    app: Celery, ledger: RedisLedger, value: Any, stored_value: Any
) -> None:
    def returning() -> Any:
        return value

    task = app.task(base=RepairingTask, shared=False)(returning)
    result = task.delay()
    stored = app.AsyncResult(result.id)
    assert (stored.state, stored.get(timeout=10)) == ("SUCCESS", stored_value)
    assert job_of(ledger, result.id).state == "succeeded"


def test_a_deploy_that_adds_a_verifier_does_not_change_running_jobs(
    app: Celery, ledger: RedisLedger
) -> None:
    def ask(self: Any) -> str:
        type(self).verifiers = [*self.verifiers, "json.object"]
        return "no JSON" if self.repair is None else "{}"

    task = app.task(base=RepairingTask, shared=False, verifiers=["json.object"])(ask)
    result = task.delay()
    assert result.get() == "{}"
    view = job_of(ledger, result.id)
    assert [len(verdict_of(attempt).results) for attempt in view.attempts] == [1, 1]


# -- arguments -------------------------------------------------------------------------------------

ARGS = (b"\xff", Decimal("1.10"), uuid.UUID(int=7), date(2026, 1, 2))


def fetch_args(app: Celery, queue: str) -> Any:
    """Return the decoded arguments of the message that waits in a queue."""
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue(queue).get(block=False)
        message.ack()
        return message.payload[0]


def test_a_retry_keeps_the_arguments(app: Celery) -> None:
    def ask(*args: Any) -> str:
        assert args == ARGS
        raise Repair("once more", score=10)

    task = app.task(base=RepairingTask, shared=False)(ask)
    with delivered(task), pytest.raises(Retry):
        task(*ARGS)
    assert fetch_args(app, "celery.repair") == list(ARGS)


def test_arguments_that_cannot_be_stored_are_refused_before_anything_runs(
    app: Celery, ledger: RedisLedger
) -> None:
    def ask(value: Any) -> str:
        raise AssertionError("ran")

    task = app.task(base=RepairingTask, shared=False)(ask)
    with delivered(task), pytest.raises(BadInput, match="argument 1: a object cannot be kept"):
        task(object())
    assert ledger.jobs() == []


def test_observing_accepts_any_arguments(app: Celery, ledger: RedisLedger) -> None:
    def ask(value: Any) -> str:
        return type(value).__name__

    task = app.task(base=RepairingTask, shared=False, mode="observe")(ask)
    with delivered(task):
        assert task(object()) == "object"
    view = job_of(ledger, "a-message")
    assert (view.state, view.job.runner.options["args"]) == ("succeeded", ["object"])


def test_a_retry_of_a_task_sent_by_topic_goes_to_its_queue_s_repair_lane(app: Celery) -> None:
    app.conf.task_queues = [Queue("feed_tasks", Exchange("feed", type="topic"), "feed.#")]

    def ask() -> str:
        raise Repair("once more", score=10)

    task = app.task(base=RepairingTask, shared=False)(ask)
    with delivered(task, exchange="feed", routing_key="feed.import"), pytest.raises(Retry):
        task()
    assert depths(app, ["feed_tasks.repair", "feed.import.repair"]) == {
        "feed_tasks.repair": 1,
        "feed.import.repair": 0,
    }


def test_a_waiting_retry_is_not_sent_twice_and_a_lost_one_again(redis_url: str) -> None:
    """The sweep looks at the queue that the retry was sent to, whatever mulligan calls it."""
    app = Celery("mine", broker=redis_url, backend="cache+memory://", set_as_current=False)
    install(app, republish_after=0.01, outbox_grace=0.01)

    def reject(self: Any) -> str:
        raise Repair("not good enough", score=10)

    task = app.task(base=RepairingTask, shared=False)(reject)
    with delivered(task), pytest.raises(Retry):
        task()
    services = installed(app).services

    def swept() -> int:
        time.sleep(0.02)  # longer than republish_after
        SWEEP.run(services, app)
        return depths(app, ["celery.repair"])["celery.repair"]

    assert [swept() for _ in range(5)] == [1] * 5
    with app.connection_for_write() as connection:
        connection.default_channel.queue_purge("celery.repair")
    wait_for(lambda: swept() == 1, "the lost retry to be sent again")
