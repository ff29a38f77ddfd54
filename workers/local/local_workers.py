"""Workers without Celery: threads of this process that run entries through the same functions.

The queue exists only in this process; the ledger holds the truth, as for Celery workers. If the
process dies, the next sweep finds what was lost.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence

from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.jobs.context import AttemptContext
from mulligan.tasks.jobs.outcome import Outcome
from mulligan.tasks.jobs.recheck import run_recheck
from mulligan.tasks.jobs.sweep import run_sweep
from mulligan.tasks.jobs.verify import run_verification
from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.tasks.ports.ledger import Entry, Publication
from mulligan.workers.celery.broker.queues import JOB_QUEUES
from mulligan.workers.celery.leases import LeaseKeeper
from mulligan.workers.ledger.stored import job_ids

log = logging.getLogger(__name__)

_VERBS: dict[str, Callable[[AttemptContext, Entry], Outcome]] = {
    "attempt": run_attempt,
    "verification": run_verification,
    "cycle": run_recheck,
}


def _runs_here(entry: Entry) -> bool:
    """Outcomes and users' tasks are messages for other Celery apps, which need a broker."""
    return entry.kind in _VERBS and not job_ids.is_user_task(entry.job_id)


class LocalWorkers:
    """A pool of daemon threads over one ledger, with a sweep; started by the first publication.

    ``context`` must publish through this pool's ``publish`` and hold its leases in ``leases``: see
    local_stack.py. ``grace``: how long ``close`` waits for running entries before it releases their
    leases.
    """

    def __init__(
        self,
        context: AttemptContext,
        leases: LeaseKeeper,
        *,
        slots: int = 4,
        sweep_interval: float = 1.0,
        grace: float = 5.0,
    ) -> None:
        self._context = context
        self._leases = leases
        self._slots = slots
        self._sweep_interval = sweep_interval
        self._grace = grace
        self._changed = threading.Condition()
        self._waiting: list[tuple[int, int, int, Publication]] = []
        self._queued: set[Entry] = set()
        self._order = itertools.count()
        self._running = 0
        self._stuck: set[Entry] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def publish(self, publications: Sequence[Publication]) -> None:
        """Queue entries and stamp them. Once closed, leave them in the ledger for the next sweep.

        Entries for other apps stay there, too: a stamp would mean that they were sent.
        """
        taken = [publication for publication in publications if _runs_here(publication.entry)]
        if not taken:
            return
        with self._changed:
            if self._closed:
                return
            for publication in taken:
                self._push(publication)
            self._start()
            self._changed.notify_all()
        try:
            self._context.ledger.stamp([publication.entry for publication in taken])
        except LedgerUnavailable as error:
            log.warning(
                "Entries are queued, but not marked as sent (%s); the sweep queues them again.",
                error,
            )

    def start(self) -> None:
        """Start without a publication, to work on what an earlier process left behind."""
        with self._changed:
            if not self._closed:
                self._start()

    def depths(self) -> dict[str, int]:
        """Count the waiting entries of each queue."""
        found = dict.fromkeys(JOB_QUEUES, 0)
        with self._changed:
            for _, _, _, publication in self._waiting:
                found[publication.queue] = found.get(publication.queue, 0) + 1
        return found

    def close(self) -> None:
        """Stop taking entries, wait for running ones, then release their leases. Idempotent."""
        deadline = time.monotonic() + self._grace
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._queued.clear()
            self._changed.notify_all()
            while self._running and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
        try:
            self._leases.release_all()
        except LedgerUnavailable as error:
            log.warning("Leases could not be released (%s) and will expire.", error)
        self._leases.stop()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # -- the queue ------------------------------------------------------------------------------

    def _push(self, publication: Publication) -> None:
        """Queue an entry, unless it is already queued."""
        if publication.entry in self._queued:
            return
        self._queued.add(publication.entry)
        queue = publication.queue
        # A mandatory retry overtakes everything.
        rank = JOB_QUEUES.index(queue) if queue in JOB_QUEUES else len(JOB_QUEUES)
        key = (rank, publication.priority, next(self._order), publication)
        heapq.heappush(self._waiting, key)

    def _take(self) -> Entry | None:
        """Wait for the next entry and return it; None once the pool is closed."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            entry = heapq.heappop(self._waiting)[3].entry
            self._queued.discard(entry)
            self._running += 1
            return entry

    # -- threads --------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._threads:
            return
        self._spawn(self._sweep, "mulligan-sweep")
        for number in range(self._slots):
            self._spawn(self._work, f"mulligan-{number}")

    def _spawn(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (entry := self._take()) is not None:
            try:
                _VERBS[entry.kind](self._context, entry)
            except Exception:
                # Nothing is lost: its lease expires, and the sweep publishes it again.
                log.exception("%s failed; it will run again when its lease has expired.", entry)
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

    def _sweep(self) -> None:
        while not self._closed:
            try:
                run_sweep(
                    self._context.ledger, empty_queues=self._empty_queues, publish=self.publish
                )
            except Exception:
                log.exception("The sweep failed and will be tried again.")
            with self._changed:
                self._changed.wait_for(lambda: self._closed, self._sweep_interval)

    def _empty_queues(self) -> list[str]:
        return [queue for queue, depth in self.depths().items() if not depth]

    def replace_slot(self, entry: Entry) -> None:
        """Replace the thread of a slot that is stuck past its hard deadline."""
        with self._changed:
            if entry in self._stuck or self._closed:
                return
            self._stuck.add(entry)
            log.error("%s is stuck past its hard deadline; a new thread replaces it.", entry)
            self._spawn(self._work, f"mulligan-{len(self._threads)}")
