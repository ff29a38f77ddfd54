"""Cancelling the call of an attempt whose lease is lost: its answer would be refused anyway.

The thread that holds a lease finds its cancellation with `current`, so that runners and verifiers
can stop their requests and processes without passing it through every function.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from mulligan.tasks.ports.errors import CallCancelled


class Cancellation:
    """Tells a running call to stop. Any thread may cancel."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._stops: list[Callable[[], object]] = []

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> bool:
        """Stop what runs. Return whether anything did."""
        with self._lock:
            stops, self._stops, self._cancelled = self._stops, [], True
        for stop in stops:
            stop()
        return bool(stops)

    def check(self) -> None:
        """Raise CallCancelled if it is cancelled."""
        if self._cancelled:
            raise CallCancelled("the lease is lost, so the answer would be refused")

    @contextmanager
    def stopping(self, stop: Callable[[], object]) -> Iterator[None]:
        """Call ``stop`` if it is cancelled meanwhile. Raise CallCancelled in that case."""
        with self._lock:
            if not self._cancelled:
                self._stops.append(stop)
        self.check()
        try:
            yield
        except Exception as error:
            if self._cancelled and not isinstance(error, CallCancelled):
                raise CallCancelled(str(error)) from error
            raise
        finally:
            with self._lock:
                if stop in self._stops:
                    self._stops.remove(stop)
        self.check()


_current: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


def current() -> Cancellation:
    """Return the cancellation of the lease that this thread holds, or one that nobody cancels."""
    return _current.get() or Cancellation()


@contextmanager
def cancelled_by(cancellation: Cancellation) -> Iterator[None]:
    """Make it the current one."""
    token = _current.set(cancellation)
    try:
        yield
    finally:
        _current.reset(token)
