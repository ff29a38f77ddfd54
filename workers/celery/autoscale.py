"""Celery's autoscaler, with another view: what waits in the broker, not what was already taken.

Celery's own counts the requests that this worker has reserved, so it grows only for messages it
took away from others, and with a steady trickle it never shrinks. This one asks
``policies/scaling.py`` every second. Only prefork can grow and shrink: the threads pool starts a
thread when one is needed, keeps it, and has neither ``grow`` nor ``shrink``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery import bootsteps
from celery.worker import state
from celery.worker.autoscale import Autoscaler
from kombu.exceptions import OperationalError

from mulligan.policies.scaling import PoolLoad, ScalingDecision, ScalingPolicy, decide
from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.workers.celery.queue_depth import QueueDepth, waiting
from mulligan.workers.celery.queues import REPAIR_QUEUE
from mulligan.workers.ledger.open_ledger import open_ledger
from mulligan.workers.ledger.stores.beats import Beat
from mulligan.workers.settings.model import Settings

log = logging.getLogger(__name__)

#: Seconds between two looks at the queues, and how old a sample may be to decide by it.
INTERVAL = 1.0
_TOO_OLD = 10.0


@dataclass(frozen=True, kw_only=True)
class QueueSample:
    """The queues of a pool at one moment, and how many workers take from each."""

    at: float
    waiting: Mapping[str, QueueDepth]
    consumers: Mapping[str, int]

    def load(self, *, slots: int, active: int, reserved: int) -> PoolLoad:
        """What the pool sees. Messages it took and has not started yet still wait."""
        in_hand = max(reserved - active, 0)
        lines = self.waiting.items()
        queued = sum(line.depth for _, line in lines)
        share = sum(-(-line.depth // max(self.consumers.get(name, 1), 1)) for name, line in lines)
        repair = self.waiting.get(REPAIR_QUEUE)
        return PoolLoad(
            slots=slots,
            active=active,
            queued=queued + in_hand,
            share=share + in_hand,
            repairs=repair.depth if repair else 0,
            oldest=max((line.oldest_seconds or 0.0 for _, line in lines), default=0.0),
        )


def count_consumers(beats: Sequence[Beat], queues: Sequence[str]) -> dict[str, int]:
    """How many workers take from each of these queues; this one is always among them."""
    return {name: max(1, sum(name in beat.queues for beat in beats)) for name in queues}


class QueueSampler:
    """Takes a sample every second in a thread: the event loop must not wait for Redis."""

    def __init__(self, take: Callable[[], QueueSample]) -> None:
        self._take = take
        self._latest: QueueSample | None = None
        self._started = False

    def latest(self, now: float) -> QueueSample | None:
        """The last sample, unless it is too old to decide by. The first call starts the thread."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._run, name="autoscale", daemon=True).start()
        sample = self._latest
        return sample if sample is not None and now - sample.at < _TOO_OLD else None

    def _run(self) -> None:
        while True:
            try:
                self._latest = self._take()
            except (LedgerUnavailable, OperationalError) as error:
                log.debug("no sample of the queues: %s", error)
            time.sleep(INTERVAL)


class QueueAutoscaler(Autoscaler):  # type: ignore[misc]  # Celery is untyped
    """Grows and shrinks a prefork pool; in any other it says that it cannot, and does nothing."""

    def __init__(
        self,
        pool: Any,
        max_concurrency: int,
        min_concurrency: int = 0,
        *,
        worker: Any,
        sampler: QueueSampler,
        quiet: float,
        mutex: Any = None,
    ) -> None:
        # `keepalive` is how often the event loop calls maybe_scale.
        super().__init__(
            pool, max_concurrency, min_concurrency, worker, keepalive=INTERVAL, mutex=mutex
        )
        self._sampler = sampler
        self._quiet = quiet
        self._scaling = ScalingDecision()
        self._seen: QueueSample | None = None
        self._warned = False

    def maybe_scale(self, req: Any = None) -> None:  # noqa: ARG002 - Celery's signature
        """Bring the pool to its size; called every second and for every message."""
        if self.worker.blueprint.state != bootsteps.RUN or not self._can_resize():
            return
        if self._still_ending():
            self.pool.maintain_pool()  # now, not at its own five seconds: see it gone
        # How many messages Celery may take: never more than there are processes to run them, so
        # that what waits stays in the broker, where repairs come first and others can take it.
        self.worker.max_concurrency = self.processes
        now = time.monotonic()
        sample = self._sampler.latest(now)
        # Once for each: what was taken since then would be counted twice.
        if sample is None or sample == self._seen:
            return
        self._seen = sample
        load = sample.load(
            slots=self.processes,
            active=len(state.active_requests),
            reserved=len(state.reserved_requests),
        )
        size = decide(self._scaling, load, now=now, policy=self._policy())
        if self._resize(size.slots - load.slots, size.reason):
            self._scaling = size.state
            self.worker.max_concurrency = self.processes

    def _policy(self) -> ScalingPolicy:
        """Made anew each time: `celery control autoscale` moves the limits."""
        least = max(1, self.min_concurrency)
        return ScalingPolicy(
            least=least,
            most=max(least, self.max_concurrency),
            quiet=self._quiet,
            pace=self._quiet / 6,
        )

    def _resize(self, change: int, reason: str) -> bool:
        """Whether the pool has now the size that was asked for."""
        if change > 0:
            log.info("%d more processes: %s", change, reason)
            self.pool.grow(change)
            self.pool.maintain_pool()
        elif change < 0:
            if self._handing_over() or self._still_ending():
                return False
            try:
                self.pool.shrink(-change)
            except ValueError:  # every process is busy
                return False
            log.info("%d fewer processes: %s", -change, reason)
        return True

    def _handing_over(self) -> bool:
        """Whether a task was sent to a process that has not confirmed it yet.

        The pool counts a process as idle until then, and shrinking ends an idle process by a
        signal: the attempt that it has just begun would be killed.
        """
        return any(not getattr(job, "_accepted", True) for job in self.pool._pool._cache.values())

    def _still_ending(self) -> bool:
        """Whether a process that was ended is still on the pool's list: it would be ended again."""
        return bool(len(self.pool._pool._pool) > self.processes)

    def _can_resize(self) -> bool:
        if hasattr(self.pool, "grow") and hasattr(self.pool, "shrink"):
            return True
        if not self._warned:
            self._warned = True
            log.warning(
                "this pool cannot grow or shrink: it keeps its %s slots; use -P prefork with"
                " --autoscale",
                self.processes,
            )
        return False


def autoscaler(settings: Settings) -> Callable[..., QueueAutoscaler]:
    """What `worker_autoscaler` is set to: Celery calls it with a pool, its limits and a worker."""

    def create(
        pool: Any, most: int, least: int = 0, *, worker: Any, mutex: Any = None, **_: Any
    ) -> QueueAutoscaler:
        ledger = open_ledger(settings, patience=0.0)

        def take() -> QueueSample:
            queues = list(worker.app.amqp.queues.consume_from)
            beats = ledger.beats.live(now=ledger.now())
            return QueueSample(
                at=time.monotonic(),
                waiting=waiting(worker.app, queues),
                consumers=count_consumers(beats, queues),
            )

        return QueueAutoscaler(
            pool,
            most,
            least,
            worker=worker,
            sampler=QueueSampler(take),
            quiet=settings.scale_quiet,
            mutex=mutex,
        )

    return create
