"""Limit how many requests wait for git at once: a repository elsewhere may take minutes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore

from mulligan.console.http.errors import HttpError

#: Requests that read repositories at once in one console, and seconds to wait for a place.
_MOST = 8
_WAIT = 2.0


class RepositoryReads:
    """The places for requests that read a repository."""

    def __init__(self, most: int = _MOST) -> None:
        self._free = BoundedSemaphore(most)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Take a place, or raise 429."""
        if not self._free.acquire(timeout=_WAIT):
            message = "too many requests read repositories now"
            raise HttpError(429, "busy", message, headers={"Retry-After": "5"})
        try:
            yield
        finally:
            self._free.release()
