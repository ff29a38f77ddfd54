"""Release what waits for a provider at the moment when the provider may be called again.

The sweep releases it, too, so a timer may be lost with its process. But the sweep runs only every
second, and a provider that asks for pauses of a second would be idle for half the time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from mulligan.tasks.ports.errors import MulliganError
from mulligan.tasks.ports.ledger import AttemptLedger, Publication
from mulligan.workers.ledger import keys

log = logging.getLogger(__name__)

#: Longer waits are left to the sweep, for which a second more does not matter.
_LONGEST = 60.0
#: Timers at the same time; more are left to the sweep.
_MOST = 100


class ReleaseTimers:
    """One timer for each provider and partition, in a daemon thread."""

    def __init__(
        self, ledger: AttemptLedger, publish: Callable[[Sequence[Publication]], None]
    ) -> None:
        self._ledger = ledger
        self._publish = publish
        #: Partition and provider → when to release: the latest time that was asked for.
        self._due: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def start(self, job_id: str, provider: str, seconds: float) -> None:
        """Release what waits for a provider in the job's partition after some seconds."""
        place = (keys.partition_of(job_id), provider)
        with self._lock:
            if seconds > _LONGEST or (place not in self._due and len(self._due) >= _MOST):
                return
            running = place in self._due
            self._due[place] = max(self._due.get(place, 0.0), time.monotonic() + seconds)
        if not running:
            self._arm(place, job_id, seconds)

    def _arm(self, place: tuple[str, str], job_id: str, seconds: float) -> None:
        timer = threading.Timer(seconds, self._release, (place, job_id))
        timer.daemon = True
        timer.start()

    def _release(self, place: tuple[str, str], job_id: str) -> None:
        with self._lock:
            left = self._due[place] - time.monotonic()
            if left <= 0:
                del self._due[place]
        if left > 0:
            self._arm(place, job_id, left)
            return
        try:
            self._publish(self._ledger.release(job_id, place[1]))
        except MulliganError as error:
            log.info("The next sweep releases what waits for %s: %s", place[1], error)
