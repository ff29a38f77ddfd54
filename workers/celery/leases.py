"""One thread per process renews all its leases in one round trip.

It is separate from the working threads, so a slow answer keeps its lease. It stops renewing at a
claim's hard deadline, so a hanging one does not. Time that a thread spends waiting for the ledger
does not count. When a lease is lost, the call that it covers is cancelled.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from mulligan.policies.loops.budget import Resource
from mulligan.policies.loops.progress import AgentProgress
from mulligan.tasks.ports.cancellation import Cancellation, cancelled_by
from mulligan.tasks.ports.clock import SYSTEM_CLOCK, Clock
from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.tasks.ports.leases import HeldLease
from mulligan.tasks.ports.ledger import AttemptLedger, Entry, Lease

log = logging.getLogger(__name__)

#: Seconds after the hard deadline before the process of a stuck slot is replaced.
_STUCK = 60.0


def _replace_process(entry: Entry) -> None:
    log.error("%s is stuck past its hard deadline; replacing this process.", entry)
    os._exit(70)


def _start_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="leases", daemon=True).start()


@dataclass(eq=False, kw_only=True)
class _Holding:
    """One held lease."""

    lease: Lease
    keeper: LeaseKeeper
    #: By the monotonic clock; later by the time that the thread waits for the ledger.
    deadline: float
    thread: int
    waited_before: float
    #: By the clock that also runs while the computer sleeps.
    sure_until: float
    cancellation: Cancellation = field(default_factory=Cancellation)
    #: How its attempt goes, and when that was said, by the monotonic clock.
    shown: tuple[AgentProgress, float] | None = None

    def progress(self, progress: AgentProgress | None) -> None:
        now = self.keeper.clock.monotonic()
        self.shown = None if progress is None else (progress, now)

    def renewed(self, now: float) -> Lease:
        """Return the lease as it is renewed now."""
        if self.shown is None:
            return self.lease
        progress, at = self.shown
        return replace(self.lease, progress=progress.moved(now - at))

    def meter(self, used: Mapping[Resource, float]) -> None:
        self.lease = replace(self.lease, metered={**self.lease.metered, **used})

    def is_sure(self) -> bool:
        return self.keeper.confirm(self)


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
        waited: Callable[[int], float] = lambda _thread: 0.0,
    ) -> None:
        """``interval``: a third of a lease. ``waited``: a thread's seconds lost to the ledger."""
        self._ledger = ledger
        self._interval = interval
        self._lease_seconds = 3 * interval
        self._on_stuck = on_stuck
        self._stuck_after = stuck_after
        self.clock = clock
        self._start_thread = start_thread
        self._waited = waited
        self._held: dict[Entry, _Holding] = {}
        self._lock = threading.Lock()
        self._released = False
        self._stopped = threading.Event()
        self._started = False

    @contextmanager
    def holding(self, lease: Lease, deadline: float) -> Iterator[HeldLease]:
        """Keep a lease renewed, for at most ``deadline`` seconds."""
        holding = self._new_holding(lease, deadline)
        with self._lock:
            released = self._released
            if not released:
                self._held[lease.entry] = holding
            start, self._started = not self._started, True
        if start:
            self._start_thread(self._run)
        if released:  # it was claimed during release_all
            holding.sure_until = float("-inf")
            self._give_back(lease)
        try:
            with cancelled_by(holding.cancellation):
                yield holding
        finally:
            with self._lock:
                if self._held.get(lease.entry) is holding:
                    del self._held[lease.entry]

    def _new_holding(self, lease: Lease, deadline: float) -> _Holding:
        thread = self.clock.thread()
        sent_at = self.clock.boottime() if lease.sent_at is None else lease.sent_at
        return _Holding(
            lease=lease,
            keeper=self,
            deadline=self.clock.monotonic() + deadline,
            thread=thread,
            waited_before=self._waited(thread),
            sure_until=sent_at + self._lease_seconds,
        )

    def confirm(self, holding: _Holding) -> bool:
        """Return whether a lease surely holds; renews it if too much time has passed.

        The next renewal may be a whole interval away, and take some time.
        """
        if holding.cancellation.cancelled:
            return False
        if self.clock.boottime() < holding.sure_until - 2 * self._interval:
            return True
        try:
            self._renew([holding])
            # The process may sleep again before it hears the answer.
            while (
                not holding.cancellation.cancelled and self.clock.boottime() >= holding.sure_until
            ):
                self._renew([holding])
        except LedgerUnavailable as error:
            log.warning("The lease of %s cannot be confirmed: %s", holding.lease.entry, error)
            return False
        return not holding.cancellation.cancelled

    def release_all(self) -> None:
        """Release all leases, including later ones, so that no one waits until they expire."""
        with self._lock:
            self._released = True
            held = list(self._held.values())
            self._held.clear()
        try:
            for holding in held:
                self._give_back(holding.lease)
                holding.cancellation.cancel()
        finally:  # without the ledger, too
            for holding in held:
                holding.cancellation.cancel()

    def _give_back(self, lease: Lease) -> None:
        self._ledger.requeue(lease, delay=0.0, detail="the worker was shut down")

    def stop(self) -> None:
        """Stop renewing leases."""
        self._stopped.set()

    def _run(self) -> None:
        while not self.clock.wait(self._stopped, self._interval):
            try:
                self.renew()
            except LedgerUnavailable as error:
                # The work goes on; the ledger refuses its result if the lease was lost.
                log.warning("Leases could not be renewed: %s", error)
            except Exception:  # without this thread, every lease of the process would expire
                log.exception("Leases could not be renewed.")

    def renew(self) -> None:
        """Renew the leases within their deadlines; replace the process if a slot is stuck."""
        now = self.clock.monotonic()
        with self._lock:
            held = list(self._held.values())
        left = {holding: self._deadline(holding) - now for holding in held}
        for holding in held:
            if left[holding] < -self._stuck_after:
                self._on_stuck(holding.lease.entry)
        alive = [holding for holding in held if left[holding] >= 0]
        if alive:
            self._renew(alive)

    def _deadline(self, holding: _Holding) -> float:
        return holding.deadline + self._waited(holding.thread) - holding.waited_before

    def _renew(self, holdings: Sequence[_Holding]) -> None:
        sent_at = self.clock.boottime()
        now = self.clock.monotonic()
        lost = self._ledger.renew([holding.renewed(now) for holding in holdings])
        for holding in holdings:
            if holding.lease.entry not in lost:
                holding.sure_until = sent_at + self._lease_seconds
                continue
            with self._lock:
                # It may have ended meanwhile, or have been claimed again under another token.
                if self._held.get(holding.lease.entry) is holding:
                    del self._held[holding.lease.entry]
            if holding.cancellation.cancel():
                log.warning("The lease of %s is lost; its call is cancelled.", holding.lease.entry)
