"""One thread per process renews all its leases in one round trip.

It is separate from the working threads, so a slow answer keeps its lease. It stops renewing at a
claim's hard deadline, so a hanging one does not.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mulligan.tasks.ports.clock import SYSTEM_CLOCK, Clock
from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.tasks.ports.ledger import AttemptLedger, Entry, Lease

log = logging.getLogger(__name__)

#: Seconds after the hard deadline before the process of a stuck slot is replaced.
_STUCK = 60.0


def _replace_process(entry: Entry) -> None:
    log.error("%s is stuck past its hard deadline; replacing this process.", entry)
    os._exit(70)


def _start_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="leases", daemon=True).start()


class LeaseKeeper:
    """Holds the leases of one process."""

    def __init__(
        self,
        ledger: AttemptLedger,
        *,
        interval: float,
        on_stuck: Callable[[Entry], None] = _replace_process,
        stuck_after: float = _STUCK,
        clock: Clock = SYSTEM_CLOCK,
        start_thread: Callable[[Callable[[], None]], None] = _start_thread,
    ) -> None:
        self._ledger = ledger
        self._interval = interval
        self._on_stuck = on_stuck
        self._stuck_after = stuck_after
        self._clock = clock
        self._start_thread = start_thread
        self._held: dict[Entry, tuple[Lease, float]] = {}
        self._lock = threading.Lock()
        self._released = False
        self._stopped = threading.Event()
        self._started = False

    @contextmanager
    def holding(self, lease: Lease, deadline: float) -> Iterator[None]:
        """Keep a lease renewed, for at most ``deadline`` seconds."""
        with self._lock:
            released = self._released
            if not released:
                self._held[lease.entry] = (lease, self._clock.monotonic() + deadline)
            start, self._started = not self._started, True
        if start:
            self._start_thread(self._run)
        if released:  # it was claimed during release_all
            self._give_back(lease)
        try:
            yield
        finally:
            with self._lock:
                self._held.pop(lease.entry, None)

    def release_all(self) -> None:
        """Release all leases, including later ones, so that no one waits until they expire."""
        with self._lock:
            self._released = True
            held = [lease for lease, _ in self._held.values()]
            self._held.clear()
        for lease in held:
            self._give_back(lease)

    def _give_back(self, lease: Lease) -> None:
        self._ledger.requeue(lease, delay=0.0, detail="the worker was shut down")

    def stop(self) -> None:
        """Stop renewing leases."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._clock.wait(self._stopped, self._interval):
            try:
                self.renew()
            except LedgerUnavailable as error:
                # The work goes on; the ledger refuses its result if the lease was lost.
                log.warning("Leases could not be renewed: %s", error)

    def renew(self) -> None:
        """Renew the leases within their deadlines; replace the process if a slot is stuck."""
        now = self._clock.monotonic()
        with self._lock:
            held = list(self._held.values())
        for lease, deadline in held:
            if now > deadline + self._stuck_after:
                self._on_stuck(lease.entry)
        alive = [lease for lease, deadline in held if now <= deadline]
        if alive:
            self._remove(self._ledger.renew(alive), alive)

    def _remove(self, lost: set[Entry], leases: Sequence[Lease]) -> None:
        for lease in leases:
            if lease.entry not in lost:
                continue
            log.warning("The lease of %s is lost; its result will be refused.", lease.entry)
            with self._lock:
                # The entry may have been claimed again meanwhile, under another token.
                held = self._held.get(lease.entry)
                if held is not None and held[0] == lease:
                    del self._held[lease.entry]
