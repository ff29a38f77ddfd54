"""Which calls wait for the ledger, how long, and why: for the log, the heartbeat and the leases."""

from __future__ import annotations

import logging
import math
import threading
from dataclasses import dataclass

from mulligan.tasks.ports.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

#: Seconds after which a call that does not end is reported.
LONG = 5.0
#: Seconds between two reports of one process.
_BETWEEN = 60.0


@dataclass(frozen=True, kw_only=True)
class LedgerWait:
    """Calls of one process that have waited long for the ledger."""

    calls: int
    #: Seconds of the longest.
    seconds: float
    reason: str


class CallInProgress:
    """A call that has not ended. ``reason``: why it did not succeed at once."""

    __slots__ = ("reason", "since", "thread")

    def __init__(self, since: float, thread: int) -> None:
        self.thread = thread
        self.since = since
        self.reason = ""


class LedgerWaits:
    """The calls of one process that have not ended."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        #: Single operations on a set or a dict need no lock.
        self._calls: set[CallInProgress] = set()
        #: Thread → seconds of its ended long calls.
        self._waited: dict[int, float] = {}
        self._reported_at: float | None = None
        #: When the last call ended that had waited long or was refused.
        self._waited_until: float | None = None
        self._lock = threading.Lock()

    def begin(self, *, expected: float = 0.0) -> CallInProgress:
        """Note that this thread calls the ledger, which may take ``expected`` seconds."""
        call = CallInProgress(self._clock.monotonic() + expected, self._clock.thread())
        self._calls.add(call)
        return call

    def blocked(self, call: CallInProgress, reason: str) -> None:
        """Note why a call has not succeeded yet."""
        call.reason = reason
        self.longest()

    def end(self, call: CallInProgress) -> None:
        self._calls.discard(call)
        seconds = self._clock.monotonic() - call.since
        if call.reason or seconds >= LONG:
            self._waited[call.thread] = self._waited.get(call.thread, 0.0) + seconds
            self._waited_until = self._clock.monotonic()
            self._report_end(seconds)

    def waited(self, thread: int) -> float:
        """Return the seconds that a thread has lost to a ledger that was away or refused."""
        now = self._clock.monotonic()
        lost = self._waited.get(thread, 0.0)
        for call in self._calls.copy():
            if call.thread == thread and (call.reason or now - call.since >= LONG):
                lost += now - call.since
        return lost

    def seconds_since(self) -> float:
        """Return the seconds since a call last had to wait; infinite if none had."""
        if self._waited_until is None:
            return math.inf
        return self._clock.monotonic() - self._waited_until

    def longest(self) -> LedgerWait | None:
        """Return the calls that have waited long, and log them once a minute; None if none has."""
        now = self._clock.monotonic()
        long = [call for call in self._calls.copy() if now - call.since >= LONG]
        if not long:
            return None
        long.sort(key=lambda call: call.since)
        reason = next((call.reason for call in long if call.reason), "it does not answer")
        wait = LedgerWait(calls=len(long), seconds=now - long[0].since, reason=reason)
        with self._lock:
            due = self._reported_at is None or now - self._reported_at >= _BETWEEN
            if due:
                self._reported_at = now
        if due:
            log.warning(
                "Waiting for the ledger for %.0f s (calls: %d): %s",
                wait.seconds,
                wait.calls,
                reason,
            )
        return wait

    def _report_end(self, seconds: float) -> None:
        """Log once that a reported wait is over, when no call waits any more."""
        with self._lock:
            if self._reported_at is None or any(call.reason for call in self._calls.copy()):
                return
            self._reported_at = None
        log.warning("The ledger works again, after %.0f s.", seconds)
