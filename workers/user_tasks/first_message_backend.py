"""A retry's result is the result of the first message, which callers, chords and errbacks know."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery.app.task import Context
from celery.exceptions import SoftTimeLimitExceeded
from celery.states import STARTED

from mulligan.tasks.ports.clock import SYSTEM_CLOCK, Clock
from mulligan.workers.celery.repeated_lines import RepeatedLines
from mulligan.workers.ledger.connection.refusals import plain_text, refusal_of
from mulligan.workers.user_tasks.transport_errors import transport_fault

log = logging.getLogger(__name__)
#: The methods whose first argument is the id of a task, and that may take its request.
_STORING = ("mark_as_done", "mark_as_failure", "mark_as_revoked")
#: The ones that store how a job ended, which is known nowhere else.
_ENDINGS = ("mark_as_done", "mark_as_failure")
_PAUSE, _LONGEST_PAUSE = 0.2, 2.0
_lines = RepeatedLines()


class FirstMessageBackend:
    """The result backend of one delivery: it stores everything under the id of the first message.

    So a chord counts the first message, errbacks get its id, and `update_state` reaches the caller.
    Celery's own STARTED and RETRY are not stored: a message that comes twice, or the end of an
    attempt whose retry was faster, would replace the result. The holder of the claim stores them.

    The end of a job waits for a backend that is away or refuses: Celery would acknowledge the
    message, and the caller would wait for ever or see a failure. A worker that is killed while it
    waits reports again when its message comes back.
    """

    def __init__(
        self, backend: Any, first: str, *, waits: bool = True, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """``waits``: False in the parent process, which must go on."""
        self._backend = backend
        self._first = first
        self._waits = waits
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        if self._waits and name in _ENDINGS:
            found = patient(found, self._clock)
        return self._redirected(found) if name in _STORING else found

    def mark_as_retry(self, *_args: Any, **_options: Any) -> None:
        """Store nothing."""

    def store_result(
        self, task_id: str, result: Any, state: str, *more: Any, **options: Any
    ) -> Any:
        if state == STARTED:
            return result
        store = self._redirected(self._backend.store_result)
        return store(task_id, result, state, *more, **options)

    def mark_running(self, result: Any, state: str, request: Context) -> None:
        """Store the state of the attempt that this delivery has claimed."""
        self._redirected(self._backend.store_result)(self._first, result, state, request=request)

    def _redirected(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def store(_task_id: str, *args: Any, **options: Any) -> Any:
            given = {name: self._as_first(value) for name, value in options.items()}
            return method(self._first, *map(self._as_first, args), **given)

        return store

    def _as_first(self, value: Any) -> Any:
        """Return the retry's request as the first message's; any other value unchanged."""
        if not isinstance(value, Context):
            return value
        return Context({**vars(value), "id": self._first, "correlation_id": self._first})


def patient(method: Callable[..., Any], clock: Clock = SYSTEM_CLOCK) -> Callable[..., Any]:
    """Repeat a call while the result backend is away or refuses."""

    def call(*args: Any, **options: Any) -> Any:
        pause = _PAUSE
        while True:
            try:
                return method(*args, **options)
            except SoftTimeLimitExceeded:
                pass  # the task itself has ended
            except Exception as error:
                if refusal_of(error) is None and transport_fault(error) is None:
                    raise
                reason = f"{type(error).__name__}: {plain_text(error)[:200]}"
                if _lines.is_news(reason):
                    log.error("A result waits for the result backend: %s", reason)  # noqa: TRY400 - not a bug, so no traceback
                pause = _rest(clock, pause)

    return call


def _rest(clock: Clock, pause: float) -> float:
    """Wait, and return how long to wait next time."""
    with suppress(SoftTimeLimitExceeded):
        clock.sleep(pause)
    return min(2 * pause, _LONGEST_PAUSE)
