"""The scheduler: it survives errors, and any number of schedulers do the work once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals
from celery.worker import WorkController
from kombu.exceptions import OperationalError
from support.ledger_scenario import SettingsMaker
from support.waiting import wait_for

from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.workers.celery.factory import create_app
from mulligan.workers.celery.periodic import PERIODIC, PeriodicTask, run_if_due
from mulligan.workers.celery.scheduler import ScheduledTask, Scheduler
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.settings.model import Settings


@contextmanager
def running(*tasks: ScheduledTask) -> Iterator[None]:
    scheduler = Scheduler(tasks)
    scheduler.start()
    try:
        yield
    finally:
        scheduler.stop()


@pytest.mark.parametrize(
    ("error", "has_traceback"),
    [
        (LedgerUnavailable("Redis is away"), False),
        (OperationalError("the broker is away"), False),
        (ZeroDivisionError("a bug"), True),
    ],
)
def test_a_failing_task_is_tried_again_and_reported_once(
    caplog: pytest.LogCaptureFixture, error: Exception, has_traceback: bool
) -> None:
    runs: list[int] = []

    def run() -> None:
        runs.append(len(runs))
        if len(runs) <= 3:
            raise error

    with running(ScheduledTask("sweep", 0.001, run)):
        wait_for(lambda: len(runs) >= 6)
    failed, recovered = caplog.records
    assert (failed.levelno, bool(failed.exc_info)) == (logging.ERROR, has_traceback)
    assert str(error) in failed.getMessage()
    assert recovered.getMessage() == "sweep works again, after 3 failures."


def test_a_stuck_task_delays_no_other() -> None:
    stuck, free = threading.Event(), threading.Event()
    with running(ScheduledTask("webhooks", 0.001, stuck.wait), ScheduledTask("s", 0.001, free.set)):
        assert free.wait(30)
    stuck.set()


def test_a_task_runs_once_in_its_interval_whoever_runs_it(ledger: RedisLedger) -> None:
    """Two control workers, or one and the beat of an earlier version."""
    runs: list[None] = []
    services: Any = SimpleNamespace(ledger=ledger, settings=ledger.settings)

    def run(*_: Any) -> int:
        runs.append(None)
        return 7

    task = PeriodicTask("sweep", 600.0, run)
    before = ledger.round_trips
    assert [run_if_due(task, services, Celery()) for _ in range(3)] == [7, 0, 0]
    assert len(runs) == 1
    assert ledger.round_trips - before == 3, "a run too many costs one round trip"


def test_a_turn_ends_before_the_next_run(ledger: RedisLedger, redis_client: Any) -> None:
    """Or a scheduler that is alone would leave out every second run."""
    assert ledger.periodic_turns.take("sweep", seconds=10)
    (key,) = redis_client.scan_iter("*periodic:*")
    assert 8000 < redis_client.pttl(key) <= 9000


def test_the_messages_of_an_earlier_beat_are_still_understood(settings: SettingsMaker) -> None:
    app = create_app(settings())
    assert {f"mulligan.{task.name}" for task in PERIODIC} <= set(app.tasks)
    assert app.conf.beat_schedule == {}


def test_a_worker_starts_no_embedded_beat(settings: SettingsMaker) -> None:
    """`-B`, as earlier versions had it in their commands, is accepted and does nothing."""
    app = create_app(settings())
    worker = begin_worker(app)
    assert worker.prepare_args(beat=True, pool="solo") == {"beat": False, "pool": "solo"}
    assert hasattr(WorkController, "prepare_args"), "Celery asks it for the worker's options"


def begin_worker(app: Celery) -> Any:
    """Send the signal that a worker sends before it reads its options."""
    worker = SimpleNamespace(app=app)
    signals.celeryd_init.send(sender="worker", instance=worker, conf=app.conf, options={})
    return worker


def test_a_worker_without_a_broker_ends_with_one_message(caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(Settings())
    with pytest.raises(SystemExit) as ended:
        begin_worker(app)
    assert ended.value.code == 2
    (record,) = caplog.records
    assert "MULLIGAN_BROKER_URL" in record.getMessage()
