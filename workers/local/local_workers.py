"""Workers without Celery: threads of this process that run entries through the same verbs.

What is waiting lives in this process only; the truth is in the ledger, as it is for Celery's
workers. What is lost with the process is found by whoever sweeps next.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.jobs.context import AttemptContext
from mulligan.tasks.jobs.outcome import Outcome
from mulligan.tasks.jobs.recheck import run_recheck
from mulligan.tasks.jobs.sweep import run_sweep
from mulligan.tasks.jobs.verify import run_verification
from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.tasks.ports.ledger import Entry, Publication
from mulligan.workers.celery.leases import LeaseKeeper
from mulligan.workers.celery.queues import JOB_QUEUES
from mulligan.workers.ledger import job_ids

log = logging.getLogger(__name__)

_VERBS: dict[str, Callable[[AttemptContext, Entry], Outcome]] = {
    "attempt": run_attempt,
    "verification": run_verification,
    "cycle": run_recheck,
}


def _is_ours(entry: Entry) -> bool:
    """How a job ended, and users' own tasks, are messages for other Celery apps: who has a broker
    sends them."""
    return entry.kind in _VERBS and not job_ids.is_own(entry.job_id)


class LocalWorkers:
    """A pool of daemon threads over one ledger, with a sweep; started by the first publication.

    ``context`` must publish through this pool's ``publish`` and hold its leases in ``leases``: see
    local_stack.py. ``grace`` is how long ``close`` waits for what is running before it gives the
    leases back.
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
        """Queue entries and stamp them. Once closed, they stay in the ledger for the next sweep.

        So do those that are not for us: a stamp would say that they have been sent.
        """
        taken = [publication for publication in publications if _is_ours(publication.entry)]
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
            log.warning("entries are queued but not stamped (%s): the sweep looks again", error)

    def start(self) -> None:
        """Work without waiting for a publication: on what an earlier process left behind."""
        with self._changed:
            if not self._closed:
                self._start()

    def depths(self) -> dict[str, int]:
        """How many entries wait in each queue."""
        found = dict.fromkeys(JOB_QUEUES, 0)
        with self._changed:
            for _, _, _, publication in self._waiting:
                found[publication.queue] = found.get(publication.queue, 0) + 1
        return found

    def close(self) -> None:
        """Stop taking work, wait for what runs, then give its leases back. Closing twice is one."""
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
            log.warning("leases could not be given back (%s): they expire", error)
        self._leases.stop()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> LocalWorkers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- the queue ------------------------------------------------------------------------------

    def _push(self, publication: Publication) -> None:
        """An entry that waits already is not queued twice."""
        if publication.entry in self._queued:
            return
        self._queued.add(publication.entry)
        queue = publication.queue
        # A mandatory retry overtakes everything that waits.
        rank = JOB_QUEUES.index(queue) if queue in JOB_QUEUES else len(JOB_QUEUES)
        key = (rank, publication.priority, next(self._order), publication)
        heapq.heappush(self._waiting, key)

    def _take(self) -> Entry | None:
        """The next entry, waiting for one; None once the pool is closed."""
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
                # Nothing is lost: a lease that is held expires, and the sweep brings it back.
                log.exception("%s broke off; it comes back when its lease has expired", entry)
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

    def _sweep(self) -> None:
        while not self._closed:
            try:
                run_sweep(self._context.ledger, empty_queues=self._empty, publish=self.publish)
            except Exception:
                log.exception("the sweep failed; it is tried again")
            with self._changed:
                self._changed.wait_for(lambda: self._closed, self._sweep_interval)

    def _empty(self) -> list[str]:
        return [queue for queue, depth in self.depths().items() if not depth]

    def replace_slot(self, entry: Entry) -> None:
        """A slot stuck past its hard deadline is given up, and another thread takes its place."""
        with self._changed:
            if entry in self._stuck or self._closed:
                return
            self._stuck.add(entry)
            log.error("%s is stuck past its hard deadline: a new thread takes its place", entry)
            self._spawn(self._work, f"mulligan-{len(self._threads)}")
