"""The load of each worker pool, for autoscalers such as KEDA's metrics-api scaler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel

from mulligan.console.http.access import Ops
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import HttpError, errors
from mulligan.policies.scaling import PoolLoad
from mulligan.workers.celery.broker.queue_depth import QueueDepth, waiting
from mulligan.workers.celery.broker.queues import Pool, pools
from mulligan.workers.ledger.stores.beats import Beat

Name = Annotated[str, Path(max_length=200, description="a worker pool", examples=["attempt"])]


class PoolLoadResponse(BaseModel):
    pool: str
    #: Tasks that its workers are running.
    active: int
    #: Messages waiting in its queues.
    queued: int
    #: Tasks that its workers can run at once; without a worker, the slots of one.
    slots: int
    workers: int
    #: How long the oldest message has waited; null if none waits or none has a time stamp.
    oldest_seconds: float | None
    #: (active + queued) / slots.
    value: float


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["ops"])

    @router.get("/api/scale/{pool}", responses=errors(404))
    def scale(pool: Name, _: Ops) -> PoolLoadResponse:
        """Return the load of one pool, summed over its workers."""
        beats = context.ledger.beats.live(now=context.ledger.now())
        known = known_pools(pools(context.settings), beats)
        if pool not in known:
            names = ", ".join(sorted(known))
            raise HttpError(404, "not_found", f"there is no pool {pool}; the pools are {names}")
        return load_of(known[pool], beats, waiting(context.app, known[pool].queues))

    return router


def known_pools(configured: Sequence[Pool], beats: Sequence[Beat]) -> dict[str, Pool]:
    """Return the configured pools and any other that has a worker now."""
    present = {
        beat.pool: Pool(name=beat.pool, queues=beat.queues, slots=max(beat.slots, 1))
        for beat in beats
    }
    return present | {pool.name: pool for pool in configured}


def load_of(pool: Pool, beats: Sequence[Beat], queues: dict[str, QueueDepth]) -> PoolLoadResponse:
    """Compute the load of a pool from its workers' beats and its queues."""
    workers = [beat for beat in beats if beat.pool == pool.name]
    queued = sum(queue.depth for queue in queues.values())
    ages = [queue.oldest_seconds for queue in queues.values() if queue.oldest_seconds is not None]
    active = sum(beat.active for beat in workers)
    slots = sum(beat.slots for beat in workers) or pool.slots
    return PoolLoadResponse(
        pool=pool.name,
        active=active,
        queued=queued,
        slots=slots,
        workers=len(workers),
        oldest_seconds=round(max(ages), 3) if ages else None,
        value=PoolLoad(slots=slots, active=active, queued=queued, share=queued).value,
    )
