"""The end of a job waits for a result backend that is away or refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery.app.task import Context
from celery.exceptions import SoftTimeLimitExceeded
from kombu.exceptions import EncodeError

from mulligan.tasks.ports.clock import Clock
from mulligan.workers.user_tasks.first_message_backend import FirstMessageBackend

FULL = redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'")
READ_ONLY = redis.exceptions.ReadOnlyError("You can't write against a read only replica.")
DISK = redis.ResponseError("MISCONF Redis is configured to save RDB snapshots")
AWAY = redis.ConnectionError("Connection refused")


class Backend:
    """A result backend that raises some errors before it stores anything."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.stored: list[tuple[str, Any]] = []

    def _store(self, task_id: str, result: Any, **_: Any) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self.stored.append((task_id, result))

    mark_as_done = mark_as_failure = mark_as_revoked = _store


def clock(waits: list[float], then: Callable[[], None] = lambda: None) -> Clock:
    def sleep(seconds: float) -> None:
        waits.append(seconds)
        then()

    return Clock(sleep=sleep)


@pytest.mark.parametrize("method", ["mark_as_done", "mark_as_failure"])
def test_the_end_of_a_job_waits_until_it_is_stored(method: str) -> None:
    backend, waits = Backend(FULL, READ_ONLY, DISK, AWAY), list[float]()
    first = FirstMessageBackend(backend, "a", clock=clock(waits))
    getattr(first, method)("a-2", "tea", request=Context(id="a-2"))
    assert backend.stored == [("a", "tea")]
    assert waits == [0.2, 0.4, 0.8, 1.6]


def test_a_time_limit_does_not_end_the_wait() -> None:
    """Given a soft time limit of a task that has ended, then its result is stored."""

    def limit() -> None:
        raise SoftTimeLimitExceeded

    backend = Backend(FULL, SoftTimeLimitExceeded(), FULL)
    FirstMessageBackend(backend, "a", clock=clock([], limit)).mark_as_done("a-2", "tea")
    assert backend.stored == [("a", "tea")]


@pytest.mark.parametrize(
    ("method", "error", "waits"),
    [
        ("mark_as_done", EncodeError("a set"), True),
        ("mark_as_done", redis.ResponseError("WRONGTYPE of key"), True),
        ("mark_as_failure", FULL, False),  # in the parent process
        ("mark_as_revoked", FULL, True),
    ],
)
def test_other_errors_are_raised(method: str, error: Exception, waits: bool) -> None:
    first = FirstMessageBackend(Backend(error), "a", waits=waits, clock=clock([]))
    with pytest.raises(type(error)):
        getattr(first, method)("a-2", "tea")
