"""How loaded each worker pool is: what autoscalers such as KEDA's metrics-api scaler ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel

from mulligan.console.http.access import Caller, needs
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import HttpError, errors
from mulligan.policies.scaling import PoolLoad
from mulligan.workers.celery.queue_depth import QueueDepth, waiting
from mulligan.workers.celery.queues import Pool, pools
from mulligan.workers.ledger.stores.beats import Beat

Ops = Annotated[Caller, Depends(needs("ops"))]
Name = Annotated[str, Path(max_length=200, description="a worker pool", examples=["attempt"])]


class PoolLoadResponse(BaseModel):
    pool: str
    #: Tasks that its workers are running.
    active: int
    #: Messages that they may take.
    queued: int
    #: Tasks they can run at once; without a worker, as many as one would have.
    slots: int
    workers: int
    #: How long the oldest message has waited, if any waits that says when it was sent.
    oldest_seconds: float | None
    #: (active + queued) / slots.
    value: float


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["ops"])

    @router.get("/api/scale/{pool}", responses=errors(404))
    def scale(pool: Name, _: Ops) -> PoolLoadResponse:
        """The load of one pool, all its workers together."""
        beats = context.ledger.beats.live(now=context.ledger.now())
        known = known_pools(pools(context.settings), beats)
        if pool not in known:
            names = ", ".join(sorted(known))
            raise HttpError(404, "not_found", f"there is no pool {pool}; the pools are {names}")
        return load_of(known[pool], beats, waiting(context.app, known[pool].queues))

    return router


def known_pools(configured: Sequence[Pool], beats: Sequence[Beat]) -> dict[str, Pool]:
    """The pools of the stack, and any other that has a worker now."""
    present = {
        beat.pool: Pool(name=beat.pool, queues=beat.queues, slots=max(beat.slots, 1))
        for beat in beats
    }
    return present | {pool.name: pool for pool in configured}


def load_of(pool: Pool, beats: Sequence[Beat], lines: dict[str, QueueDepth]) -> PoolLoadResponse:
    """The load of a pool, from its workers' beats and what waits in its queues."""
    mine = [beat for beat in beats if beat.pool == pool.name]
    queued = sum(line.depth for line in lines.values())
    ages = [line.oldest_seconds for line in lines.values() if line.oldest_seconds is not None]
    active = sum(beat.active for beat in mine)
    slots = sum(beat.slots for beat in mine) or pool.slots
    return PoolLoadResponse(
        pool=pool.name,
        active=active,
        queued=queued,
        slots=slots,
        workers=len(mine),
        oldest_seconds=round(max(ages), 3) if ages else None,
        value=PoolLoad(slots=slots, active=active, queued=queued, share=queued).value,
    )
