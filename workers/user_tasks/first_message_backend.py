"""A retry's result is the result of the first message, which callers, chords and errbacks know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.app.task import Context

#: The methods whose first argument is the id of a task, and that may take its request.
_STORING = ("store_result", "mark_as_done", "mark_as_failure", "mark_as_retry", "mark_as_revoked")


class FirstMessageBackend:
    """A result backend for one retry: it stores everything under the id of the first message.

    So a chord counts the first message, errbacks get its id, and `update_state` reaches the caller.
    """

    def __init__(self, backend: Any, first: str) -> None:
        self._backend = backend
        self._first = first

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        return self._redirected(found) if name in _STORING else found

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
