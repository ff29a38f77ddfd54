"""What goes into a user's own task and what comes out of it, through Celery's own serializers."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from pydantic import BaseModel

from mulligan import RepairingTask, install
from mulligan.tasks.ledger import JobView
from mulligan.workers import keys
from mulligan.workers.redis_ledger import RedisLedger


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
    view = ledger.job(keys.own_job_id(message_id, partitions=1))
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
    assert [len(attempt.verdict["results"]) for attempt in view.attempts] == [1, 1]
