"""An autoscaler for Celery that counts what waits in the broker, not what the worker has reserved.

Celery's own counts reserved requests, so it grows only for messages that it took from other
workers, and with a steady trickle it never shrinks. This one asks ``policies/scaling.py`` every
second. Only prefork can grow and shrink: the threads pool starts threads on demand, keeps them, and
has neither ``grow`` nor ``shrink``.
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
from mulligan.workers.celery.broker.queue_depth import QueueDepth, waiting
from mulligan.workers.celery.broker.queues import AGENT_REPAIR_QUEUE, REPAIR_QUEUE
from mulligan.workers.ledger.open_ledger import open_ledger
from mulligan.workers.ledger.stores.beats import Beat
from mulligan.workers.settings.model import Settings

log = logging.getLogger(__name__)

#: Seconds between two samples of the queues, and the maximum age of a sample.
INTERVAL = 1.0
_MAX_AGE = 10.0


@dataclass(frozen=True, kw_only=True)
class QueueSample:
    """The depths of a pool's queues at one moment, and the number of workers that serve each."""

    at: float
    waiting: Mapping[str, QueueDepth]
    consumers: Mapping[str, int]

    def load(self, *, slots: int, active: int, reserved: int) -> PoolLoad:
        """Return the pool's load. Messages that it has reserved but not started still wait."""
        not_started = max(reserved - active, 0)
        lines = self.waiting.items()
        queued = sum(line.depth for _, line in lines)
        share = sum(-(-line.depth // max(self.consumers.get(name, 1), 1)) for name, line in lines)
        return PoolLoad(
            slots=slots,
            active=active,
            queued=queued + not_started,
            share=share + not_started,
            repairs=sum(
                line.depth for name, line in lines if name in (REPAIR_QUEUE, AGENT_REPAIR_QUEUE)
            ),
            oldest=max((line.oldest_seconds or 0.0 for _, line in lines), default=0.0),
        )


def count_consumers(beats: Sequence[Beat], queues: Sequence[str]) -> dict[str, int]:
    """Count the workers that serve each queue; at least one, because this worker does."""
    return {name: max(1, sum(name in beat.queues for beat in beats)) for name in queues}


class QueueSampler:
    """A thread that takes a sample every second, so that the event loop never waits for Redis."""

    def __init__(self, take: Callable[[], QueueSample]) -> None:
        self._take = take
        self._latest: QueueSample | None = None
        self._started = False

    def latest(self, now: float) -> QueueSample | None:
        """Return the last sample, unless it is too old. The first call starts the thread."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._run, name="autoscale", daemon=True).start()
        sample = self._latest
        return sample if sample is not None and now - sample.at < _MAX_AGE else None

    def _run(self) -> None:
        while True:
            try:
                self._latest = self._take()
            except (LedgerUnavailable, OperationalError) as error:
                log.debug("The queues cannot be sampled: %s", error)
            time.sleep(INTERVAL)


class QueueAutoscaler(Autoscaler):  # type: ignore[misc]  # Celery is untyped
    """Grows and shrinks a prefork pool. With any other pool it warns once and does nothing."""

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
        self._last_sample: QueueSample | None = None
        self._warned = False

    def maybe_scale(self, req: Any = None) -> None:  # noqa: ARG002 - Celery's signature
        """Resize the pool; called every second and for every message."""
        if self.worker.blueprint.state != bootsteps.RUN or not self._can_resize():
            return
        if self._still_ending():
            self.pool.maintain_pool()  # removes ended processes now, not after its five seconds
        # Celery may reserve no more messages than there are processes: the others stay in the
        # broker, where repairs come first and other workers can take them.
        self.worker.max_concurrency = self.processes
        now = time.monotonic()
        sample = self._sampler.latest(now)
        # Each sample is used once: messages taken since then would count twice.
        if sample is None or sample == self._last_sample:
            return
        self._last_sample = sample
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
        """Return the policy with the current limits, which `celery control autoscale` changes."""
        least = max(1, self.min_concurrency)
        return ScalingPolicy(
            least=least,
            most=max(least, self.max_concurrency),
            quiet=self._quiet,
            pace=self._quiet / 6,
        )

    def _resize(self, change: int, reason: str) -> bool:
        """Change the pool's size. Return whether that succeeded."""
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

        The pool counts that process as idle, and shrinking would kill it with its attempt.
        """
        return any(not getattr(job, "_accepted", True) for job in self.pool._pool._cache.values())

    def _still_ending(self) -> bool:
        """Whether an ended process is still on the pool's list, where it would be ended again."""
        return bool(len(self.pool._pool._pool) > self.processes)

    def _can_resize(self) -> bool:
        if hasattr(self.pool, "grow") and hasattr(self.pool, "shrink"):
            return True
        if not self._warned:
            self._warned = True
            log.warning(
                "This pool cannot grow or shrink and keeps its %s slots. Use -P prefork with"
                " --autoscale.",
                self.processes,
            )
        return False


def autoscaler(settings: Settings) -> Callable[..., QueueAutoscaler]:
    """Return the value of `worker_autoscaler`, which Celery calls with a pool and its limits."""

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
