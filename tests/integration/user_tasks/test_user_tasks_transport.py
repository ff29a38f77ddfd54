"""A user's task that meets a server which is away or asks to wait."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Retry
from support.user_tasks import delivered, job_of

from mulligan import RepairingTask, install
from mulligan.workers.celery.broker.queue_depth import depths
from mulligan.workers.ledger.redis_ledger import RedisLedger


class Throttled(Exception):
    status_code = 429
    headers = {"Retry-After": "20"}  # noqa: RUF012 - as an SDK has it


@pytest.fixture
def app(redis_url: str) -> Celery:
    app = Celery("mine", broker=redis_url, backend="cache+memory://", set_as_current=False)
    install(app)
    return app


def raising(error: Exception) -> Callable[[Any], str]:
    def ask(self: Any) -> str:
        raise error

    return ask


def asking_again(error: Exception, **options: Any) -> Callable[[Any], str]:
    def ask(self: Any) -> str:
        try:
            raise error
        except type(error) as caught:
            raise self.retry(exc=caught, **options) from caught

    return ask


@pytest.mark.parametrize(
    ("ask", "least", "most"),
    [
        (raising(ConnectionRefusedError("refused")), 0, 1),
        (raising(Throttled("slower")), 20, 21),
        (asking_again(TimeoutError("slow"), countdown=30), 30, 31),
        (asking_again(TimeoutError("slow"), countdown=30, max_retries=0), 30, 31),
        (asking_again(TimeoutError(), eta=datetime.now(UTC) + timedelta(hours=2)), 3600, 3601),
    ],
    ids=["back-off", "retry-after", "countdown", "max_retries has no effect", "eta, capped"],
)
def test_a_transport_error_runs_the_same_attempt_again_later(
    app: Celery, ledger: RedisLedger, ask: Callable[[Any], str], least: float, most: float
) -> None:
    task = app.task(base=RepairingTask, shared=False)(ask)
    with delivered(task), pytest.raises(Retry) as raised:
        task()
    # One second is the first back-off, of which a random share is waited.
    assert least <= raised.value.when <= most
    view = job_of(ledger, "a-message")
    assert (view.state, view.waiting_for, len(view.attempts)) == ("waiting", "delay", 1)
    assert view.attempts[0].verdict is None
    assert depths(app, ["celery", "celery.repair"]) == {"celery": 0, "celery.repair": 0}


def test_the_policy_decides_when_a_failure_of_the_task_is_run_again(
    app: Celery, ledger: RedisLedger
) -> None:
    task = app.task(base=RepairingTask, shared=False)(
        asking_again(ValueError("the age is missing"), countdown=30)
    )
    with delivered(task), pytest.raises(Retry):
        task()
    assert depths(app, ["celery"]) == {"celery": 1}
    assert len(job_of(ledger, "a-message").attempts) == 2


def test_a_message_of_an_error_stays_out_of_flower(app: Celery) -> None:
    task = app.task(base=RepairingTask, shared=False)(
        raising(ConnectionError("http://model?key=secret"))
    )
    with delivered(task), pytest.raises(Retry) as raised:
        task()
    assert "ConnectionError" in str(raised.value)
    assert "secret" not in repr(raised.value)


def test_an_eager_task_is_called_again_without_a_wait(app: Celery, ledger: RedisLedger) -> None:
    calls = []

    def ask(self: Any) -> str:
        calls.append(self.repair)
        if len(calls) < 3:
            raise self.retry(exc=Throttled("slower"), countdown=30)
        return "an answer"

    result = app.task(base=RepairingTask, shared=False)(ask).apply()
    assert (result.get(), calls) == ("an answer", [None, None, None])
    assert len(job_of(ledger, result.id).attempts) == 1


def test_an_eager_task_ends_when_the_server_stays_away(app: Celery, ledger: RedisLedger) -> None:
    result = app.task(base=RepairingTask, shared=False)(raising(Throttled("slower"))).apply()
    with pytest.raises(Throttled):
        result.get()
    view = job_of(ledger, result.id)
    assert (view.state, len(view.attempts)) == ("cancelled", 1)


def test_an_observed_task_raises_it(app: Celery, ledger: RedisLedger) -> None:
    task = app.task(base=RepairingTask, shared=False, mode="observe")(raising(Throttled("slower")))
    result = task.apply()
    with pytest.raises(Throttled):
        result.get()
    assert job_of(ledger, result.id).reason == "observed"
