"""Writing a worker's beats, and detecting a worker that no longer hears its broker."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.workers.ledger.stores.beats import STALE, Beat, RedisBeats

log = logging.getLogger(__name__)

#: Seconds between two beats.
INTERVAL = 5.0
#: Seconds after which an idle worker whose event loop does not tick counts as stalled.
_STALLED = 120.0


class Heartbeat:
    """A thread that writes this process's beats until it is stopped.

    ``describe`` returns the beat to write; ``after`` is called after each try, whether or not the
    ledger was reached. ``beats`` should not retry: the next beat comes soon.
    """

    def __init__(
        self,
        beats: RedisBeats,
        describe: Callable[[], Beat],
        *,
        child: bool = False,
        after: Callable[[], None] = lambda: None,
        interval: float = INTERVAL,
    ) -> None:
        self._beats = beats
        self._describe = describe
        self._process = os.getpid() if child else None
        self._after = after
        self._interval = interval
        self._stopped = threading.Event()
        #: Whether the last beat did not reach the ledger.
        self.unreachable = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def beat(self) -> None:
        """Write one beat."""
        self._beats.write(self._describe(), process=self._process)

    def leave(self) -> None:
        """Stop and delete the last beat, so that this process no longer counts."""
        self._stopped.set()
        try:
            self._beats.delete(self._describe(), process=self._process)
        except LedgerUnavailable:
            log.debug("The ledger cannot be reached, so the last beat expires instead.")

    def _run(self) -> None:
        while True:
            try:
                self.beat()
                self.unreachable = False
            except LedgerUnavailable as error:
                if not self.unreachable:
                    log.warning("This worker cannot write its heartbeat: %s", error)
                self.unreachable = True
            self._after()
            if self._stopped.wait(self._interval):
                return


@dataclass
class StallDetector:
    """Detects a worker that no longer hears its broker: its event loop does not tick.

    A busy or disconnected worker is not stalled. An idle one is, if its broker answers but its loop
    has not ticked for two minutes: it would never recover.
    """

    #: Called only when the loop has stopped ticking.
    broker_answers: Callable[[], bool]
    ticked_at: float
    _suspect_since: float | None = None

    def tick(self, now: float) -> None:
        self.ticked_at = now

    def deafness(self, now: float, *, busy: bool) -> str:
        """Return why the worker may hear nothing now; empty if it hears its broker."""
        if now - self.ticked_at < STALE:
            return ""
        if not self.broker_answers():
            return "its broker cannot be reached"
        return "" if busy else "it hears nothing although its broker answers"

    def is_stalled(self, now: float, *, busy: bool) -> bool:
        if busy or now - self.ticked_at < STALE or not self.broker_answers():
            self._suspect_since = None
            return False
        if self._suspect_since is None:
            self._suspect_since = now
        return now - self._suspect_since >= _STALLED
