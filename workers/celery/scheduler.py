"""The scheduler of a worker: it runs periodic tasks in threads of the worker's own process.

There is no process of its own that could outlive the worker, or die alone (decision 0024).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mulligan.tasks.ports.errors import StoreUnavailable
from mulligan.workers.celery.broker.queue_depth import BROKER_ERRORS

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScheduledTask:
    """A function to call every so many seconds."""

    name: str
    seconds: float
    run: Callable[[], object]


class Scheduler:
    """Runs each task in a thread of its own, so that a slow one delays no other."""

    def __init__(self, tasks: Sequence[ScheduledTask]) -> None:
        self._tasks = tasks
        self._stopped = threading.Event()

    def start(self) -> None:
        for task in self._tasks:
            name = f"periodic-{task.name}"
            threading.Thread(target=self._repeat, args=(task,), name=name, daemon=True).start()

    def stop(self) -> None:
        """Start no further runs. Does not wait for running ones."""
        self._stopped.set()

    def _repeat(self, task: ScheduledTask) -> None:
        failures = 0
        while not self._stopped.is_set():
            started = time.monotonic()
            try:
                task.run()
            except Exception as error:
                failures += 1
                if failures == 1:
                    _report(task, error)
            else:
                if failures:
                    log.warning("%s works again, after %d failures.", task.name, failures)
                failures = 0
            self._stopped.wait(max(0.0, task.seconds - (time.monotonic() - started)))


def _report(task: ScheduledTask, error: Exception) -> None:
    """Log the first of several failures. An unreachable server is no bug: it has no traceback."""
    away = isinstance(error, (StoreUnavailable, *BROKER_ERRORS))
    log.error(
        "%s failed and is tried again every %g s: %s",
        task.name, task.seconds, error, exc_info=None if away else error,
    )  # fmt: skip
