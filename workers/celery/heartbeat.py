"""Writing a worker's beats, and noticing that a worker no longer hears its broker."""

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
#: Seconds of silence after which a worker that has nothing to do is taken to be deaf.
_DEAF = 120.0


class Heartbeat:
    """Writes this process's beats in a thread of its own, until it is stopped.

    ``describe`` returns the beat to write; ``after`` is called after each try, whether or not the
    ledger could be reached. ``beats`` should have no patience: the next beat comes soon.
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
        self._over = threading.Event()
        self._away = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="presence", daemon=True).start()

    def beat(self) -> None:
        """Write one beat."""
        self._beats.write(self._describe(), process=self._process)

    def leave(self) -> None:
        """Stop, and delete the last beat, so that nobody counts on this process any longer."""
        self._over.set()
        try:
            self._beats.delete(self._describe(), process=self._process)
        except LedgerUnavailable:
            log.debug("the ledger is away: readers will find this beat too old")

    def _run(self) -> None:
        while True:
            try:
                self.beat()
                self._away = False
            except LedgerUnavailable as error:
                if not self._away:
                    log.warning("this worker cannot say that it is there: %s", error)
                self._away = True
            self._after()
            if self._over.wait(self._interval):
                return


@dataclass
class StallDetector:
    """Whether a worker still hears its broker: its event loop should tick.

    One that is busy or cut off is not deaf. One that has nothing to do, whose broker answers and
    whose loop stands still for two minutes, is: it would sit there for ever.
    """

    #: Whether the broker answers; asked only when the loop seems to stand still.
    broker_answers: Callable[[], bool]
    ticked_at: float
    _suspect_since: float | None = None

    def tick(self, now: float) -> None:
        self.ticked_at = now

    def is_deaf(self, now: float, *, busy: bool) -> bool:
        if busy or now - self.ticked_at < STALE or not self.broker_answers():
            self._suspect_since = None
            return False
        if self._suspect_since is None:
            self._suspect_since = now
        return now - self._suspect_since >= _DEAF
