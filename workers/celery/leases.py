"""One thread per process renews all its leases in one round trip.

It is not the working thread, so a slow answer keeps its lease; and it stops renewing at a
claim's hard deadline, so a hang does not.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.tasks.ports.ledger import AttemptLedger, Entry, Lease

log = logging.getLogger(__name__)

#: How long after its hard deadline a slot may stay stuck before its process is replaced.
_STUCK = 60.0


def _replace_process(entry: Entry) -> None:
    log.error("%s is stuck past its hard deadline: replacing this process", entry)
    os._exit(70)


class LeaseKeeper:
    """Holds the leases of one process."""

    def __init__(
        self,
        ledger: AttemptLedger,
        *,
        interval: float,
        on_stuck: Callable[[Entry], None] = _replace_process,
        stuck_after: float = _STUCK,
    ) -> None:
        self._ledger = ledger
        self._interval = interval
        self._on_stuck = on_stuck
        self._stuck_after = stuck_after
        self._held: dict[Entry, tuple[Lease, float]] = {}
        self._lock = threading.Lock()
        self._over = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def holding(self, lease: Lease, deadline: float) -> Iterator[None]:
        """Keep a lease renewed, for at most ``deadline`` seconds."""
        with self._lock:
            late = self._over
            if not late:
                self._held[lease.entry] = (lease, time.monotonic() + deadline)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="leases", daemon=True)
                self._thread.start()
        if late:  # it was claimed while the others were given back
            self._give_back(lease)
        try:
            yield
        finally:
            with self._lock:
                self._held.pop(lease.entry, None)

    def release_all(self) -> None:
        """At shutdown: give back what is held, and what is still to come, so that nobody waits
        for it to expire."""
        with self._lock:
            self._over = True
            held = [lease for lease, _ in self._held.values()]
            self._held.clear()
        for lease in held:
            self._give_back(lease)

    def _give_back(self, lease: Lease) -> None:
        self._ledger.requeue(lease, delay=0.0, detail="the worker was shut down")

    def stop(self) -> None:
        """End the thread; what is still held is no longer renewed."""
        self._wake.set()

    def _run(self) -> None:
        while not self._wake.wait(self._interval):
            try:
                self.renew()
            except LedgerUnavailable as error:
                # The work goes on: whether its lease survived is decided when it writes.
                log.warning("leases could not be renewed: %s", error)

    def renew(self) -> None:
        """Renew what is within its deadline; replace the process if a slot stays stuck."""
        now = time.monotonic()
        with self._lock:
            held = list(self._held.values())
        for lease, deadline in held:
            if now > deadline + self._stuck_after:
                self._on_stuck(lease.entry)
        alive = [lease for lease, deadline in held if now <= deadline]
        if alive:
            self._forget(self._ledger.renew(alive), alive)

    def _forget(self, lost: set[Entry], asked: Sequence[Lease]) -> None:
        for lease in asked:
            if lease.entry not in lost:
                continue
            log.warning("the lease of %s is lost; its result will be refused", lease.entry)
            with self._lock:
                # It may have been claimed anew meanwhile, under another token.
                held = self._held.get(lease.entry)
                if held is not None and held[0] == lease:
                    del self._held[lease.entry]
