"""What goes into a user's own task and what comes out of it, through Celery's own serializers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Retry
from kombu import entity
from pydantic import BaseModel
from support.jobs import verdict_of

from mulligan import Repair, RepairingTask, install
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.celery.queue_depth import depths
from mulligan.workers.ledger import job_ids
from mulligan.workers.ledger.redis_ledger import RedisLedger

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


def view_of(ledger: RedisLedger, message_id: str) -> JobView:
    view = ledger.job(job_ids.own_job_id(message_id, partitions=1))
    assert view is not None
    return view


# -- results ---------------------------------------------------------------------------------------


def test_the_caller_can_read_an_answer_that_was_freely_repaired(app: Celery) -> None:
    def fenced() -> str:
        return f"Here it is:\n```json\n{ALICE.model_dump_json()}\n```"

    task = app.task(base=RepairingTask, shared=False, verifiers=[Person])(fenced)
    told = task.delay()
    assert Person.model_validate_json(app.AsyncResult(told.id).get(timeout=10)) == ALICE
    # A message that comes again is told the same.
    assert task.apply(task_id=told.id).get() == told.get()


@pytest.mark.parametrize(
    ("value", "given"),
    [(ALICE, ALICE.model_dump()), ({"p": ALICE}, {"p": ALICE.model_dump()}), ({7}, [7])],
    ids=["model", "nested", "set"],
)
def test_what_the_ledger_calls_a_success_is_one_for_celery(
    app: Celery, ledger: RedisLedger, value: Any, given: Any
) -> None:
    def returning() -> Any:
        return value

    task = app.task(base=RepairingTask, shared=False)(returning)
    told = task.delay()
    stored = app.AsyncResult(told.id)
    assert (stored.state, stored.get(timeout=10)) == ("SUCCESS", given)
    assert view_of(ledger, told.id).state == "succeeded"


def test_a_deploy_that_adds_a_verifier_leaves_jobs_on_their_way_as_they_are(
    app: Celery, ledger: RedisLedger
) -> None:
    def ask(self: Any) -> str:
        type(self).verifiers = [*self.verifiers, "json.object"]
        return "no JSON" if self.repair is None else "{}"

    task = app.task(base=RepairingTask, shared=False, verifiers=["json.object"])(ask)
    told = task.delay()
    assert told.get() == "{}"
    view = view_of(ledger, told.id)
    assert [len(verdict_of(attempt).results) for attempt in view.attempts] == [1, 1]


# -- arguments -------------------------------------------------------------------------------------

GIVEN = (b"\xff", Decimal("1.10"), uuid.UUID(int=7), date(2026, 1, 2))


@contextmanager
def delivered(task: Any, **info: Any) -> Iterator[None]:
    """As a worker would run it: not inline, so that what is published can be seen."""
    task.app.conf.task_always_eager = False
    route = {"exchange": "", "routing_key": "celery", **info}
    task.push_request(called_directly=False, id="a-message", delivery_info=route)
    try:
        yield
    finally:
        task.pop_request()


def fetched(app: Celery, queue: str) -> Any:
    """The arguments of the message that waits in a queue, as a worker decodes them."""
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue(queue).get(block=False)
        message.ack()
        return message.payload[0]


def test_a_retry_has_the_arguments_as_they_were(app: Celery) -> None:
    def ask(*given: Any) -> str:
        assert given == GIVEN
        raise Repair("once more", score=10)

    task = app.task(base=RepairingTask, shared=False)(ask)
    with delivered(task), pytest.raises(Retry):
        task(*GIVEN)
    assert fetched(app, "celery.repair") == list(GIVEN)


def test_what_cannot_be_sent_again_is_refused_before_anything_runs(
    app: Celery, ledger: RedisLedger
) -> None:
    def ask(given: Any) -> str:
        raise AssertionError("ran")

    task = app.task(base=RepairingTask, shared=False)(ask)
    with delivered(task), pytest.raises(BadInput, match="argument 1: a object cannot be kept"):
        task(object())
    assert ledger.jobs() == []


def test_observing_takes_any_arguments(app: Celery, ledger: RedisLedger) -> None:
    def ask(given: Any) -> str:
        return type(given).__name__

    task = app.task(base=RepairingTask, shared=False, mode="observe")(ask)
    with delivered(task):
        assert task(object()) == "object"
    view = view_of(ledger, "a-message")
    assert (view.state, view.job.runner.options["args"]) == ("succeeded", ["object"])


def test_a_retry_of_a_task_sent_by_topic_goes_to_its_queues_lane(app: Celery) -> None:
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
