"""A retry's result is the result of the first message, which callers, chords and errbacks know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.app.task import Context
from celery.states import STARTED

#: The methods whose first argument is the id of a task, and that may take its request.
_STORING = ("mark_as_done", "mark_as_failure", "mark_as_revoked")


class FirstMessageBackend:
    """The result backend of one delivery: it stores everything under the id of the first message.

    So a chord counts the first message, errbacks get its id, and `update_state` reaches the caller.
    Celery's own STARTED and RETRY are not stored: a message that comes twice, or the end of an
    attempt whose retry was faster, would replace the result. The holder of the claim stores them.
    """

    def __init__(self, backend: Any, first: str) -> None:
        self._backend = backend
        self._first = first

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
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
