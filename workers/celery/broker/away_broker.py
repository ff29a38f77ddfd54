"""A broker that cannot be reached is noticed once, and not by every message."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mulligan.tasks.ports.clock import Clock
from mulligan.tasks.ports.message_broker import BrokerAway

#: Seconds in which nothing is sent to a broker that could not be reached.
AWAY_SECONDS = 2.0


class BrokerUnreachable(BrokerAway):
    """The broker accepts no connection."""


class AwayBroker:
    """Remembers that the broker could not be reached, so that not every message waits for it.

    Each connection that is not answered takes seconds. One thread tries it now and then; what the
    others send meanwhile is left to the sweep.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reason: str | None = None
        self._ask_again_at = 0.0
        self._asking = threading.Lock()

    @contextmanager
    def noticed_once(self) -> Iterator[None]:
        """Send, unless the broker is known to be away; then raise BrokerAway at once."""
        reason = self._reason
        if reason is None:
            with self._noting():
                yield
            return
        if self._clock.monotonic() < self._ask_again_at or not self._asking.acquire(blocking=False):
            raise BrokerAway(reason)
        try:
            with self._noting():
                yield
        finally:
            self._asking.release()

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except BrokerUnreachable as error:
            self._ask_again_at = self._clock.monotonic() + AWAY_SECONDS
            self._reason = str(error)
            raise
        except BaseException:  # the broker was there to refuse the message
            self._reason = None
            raise
        self._reason = None


def connect_once(connection: Any) -> None:
    """Connect once. By itself, kombu would try for several seconds."""
    try:
        connection.ensure_connection(max_retries=0)
    except Exception as error:  # each transport has its own exceptions
        raise BrokerUnreachable(describe_error(error)) from error


def describe_error(error: Exception) -> str:
    return str(error) or type(error).__name__
