"""Tasks whose store is away: they end without a result, and the log says so once a minute."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from celery import signals
from celery.exceptions import Ignore
from support.doubles import ManualClock
from support.ledger_scenario import SettingsMaker

from mulligan.tasks.ports.clock import SYSTEM_CLOCK
from mulligan.tasks.ports.errors import BlobsUnavailable, LedgerRefused, LedgerUnavailable
from mulligan.workers.celery.factory import create_app
from mulligan.workers.celery.store_errors import StoreErrors
from mulligan.workers.celery.worker_process import WorkerProcess


def test_a_store_that_is_away_ends_tasks_with_one_line_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    errors = StoreErrors(clock=replace(SYSTEM_CLOCK, monotonic=clock))
    problems: list[Exception] = []

    @errors.quiet
    def attempt() -> None:
        raise problems[-1]

    def fail(problem: Exception) -> None:
        problems.append(problem)
        with pytest.raises(Ignore):
            attempt()

    for _ in range(300):
        fail(LedgerRefused("the ledger is full"))
    fail(BlobsUnavailable("S3 is away"))
    clock.now = 59.0
    fail(LedgerUnavailable("the ledger is full"))
    clock.now = 61.0
    fail(LedgerUnavailable("the ledger is full"))
    lines = [(record.levelno, record.getMessage(), record.exc_info) for record in caplog.records]
    full = (logging.ERROR, "Work is left for later: the ledger is full", None)
    assert lines == [full, (logging.ERROR, "Work is left for later: S3 is away", None), full]


def test_other_errors_and_results_pass() -> None:
    errors = StoreErrors()

    @errors.quiet
    def divide(number: int) -> float:
        return 1 / number

    assert divide(2) == 0.5
    with pytest.raises(ZeroDivisionError):
        divide(0)


def test_every_task_of_a_job_is_quiet(
    settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a ledger that refuses, then no task of the app ends with a traceback."""

    def away(_: WorkerProcess) -> None:
        raise LedgerUnavailable("Redis is away")

    app = create_app(settings())
    monkeypatch.setattr(WorkerProcess, "services", property(away))
    for name in ("attempt", "verify", "recheck", "edit"):
        with pytest.raises(Ignore):
            app.tasks[f"mulligan.{name}"]("a:p00-x/1")
    with pytest.raises(Ignore):
        app.tasks["mulligan.sweep"]()


def test_a_shutdown_ends_the_waits_for_the_ledger(
    settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[WorkerProcess] = []
    create_app(settings())
    monkeypatch.setattr(WorkerProcess, "stop_waiting", lambda process: stopped.append(process))
    signals.worker_shutting_down.send(sender="w", sig="TERM", how="Warm", exitcode=0)
    assert stopped
