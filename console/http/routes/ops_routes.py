"""Whether the console lives and is ready; queues, breakers, pauses."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Response
from pydantic import BaseModel

from mulligan.console.cli.commands.queue import PAUSABLE
from mulligan.console.http.access import Caller, needs
from mulligan.console.http.context import Site
from mulligan.console.http.errors import Problem, errors, invalid
from mulligan.policies.figures import trend
from mulligan.policies.jobs.breaker import Breaker
from mulligan.tasks.ports.world import LedgerUnavailable
from mulligan.workers.celery.factory import QUEUES
from mulligan.workers.celery.queue_depth import depths
from mulligan.workers.figures.windows import Figures
from mulligan.workers.ledger import keys
from mulligan.workers.services import redis_breakers

#: Without a sweep for this long, nothing that waits is let go.
SWEEP_AGE = 30.0
#: How far back a tenant's task types are looked for, in seconds.
_REMEMBERED = 86400
Ops = Annotated[Caller, Depends(needs("ops"))]
What = Annotated[
    str,
    Path(
        max_length=220,
        description="queue:NAME, task_type:NAME or provider:NAME",
        examples=["queue:attempt"],
    ),
]


class Alive(BaseModel):
    ok: Literal[True] = True


class Ready(BaseModel):
    ok: bool
    #: Why not: ledger or sweep.
    why: Literal["ledger", "sweep"] | None = None


class Queue(BaseModel):
    name: str
    #: Messages that wait in the broker.
    waiting: int
    paused: bool


class Queues(BaseModel):
    queues: list[Queue]


class BreakerRow(BaseModel):
    provider: str
    state: Literal["closed", "open", "half_open"]
    faults: int
    #: When it lets somebody through again, while it is open.
    until: float | None


class Breakers(BaseModel):
    breakers: list[BreakerRow]


class Pauses(BaseModel):
    paused: list[str]


def create_router(site: Site) -> APIRouter:
    router = APIRouter(tags=["ops"])

    @router.get("/healthz")
    async def healthz() -> Alive:
        """Whether this process is alive."""
        return Alive()

    @router.get("/readyz", responses={503: {"model": Ready}})
    def readyz(response: Response) -> Ready:
        """Whether the ledger answers and the sweep runs."""
        ready = readiness(site)
        response.status_code = 200 if ready.ok else 503
        return ready

    @router.get("/api/queues")
    def queues(_: Ops) -> Queues:
        """How much waits in each queue."""
        paused = site.ledger.paused()
        waiting = depths(site.app, QUEUES)
        return Queues(
            queues=[
                Queue(name=name, waiting=depth, paused=f"queue:{name}" in paused)
                for name, depth in waiting.items()
            ]
        )

    @router.get("/api/breakers")
    def breakers(caller: Ops) -> Breakers:
        """Every provider with faults on record; a tenant's token is told of none."""
        found = visible_breakers(site, caller.tenant)
        return Breakers(
            breakers=[
                BreakerRow(
                    provider=name, state=one.state, faults=one.faults, until=one.until or None
                )
                for name, one in sorted(found.items())
            ]
        )

    _add_pauses(router, site)
    return router


def _add_pauses(router: APIRouter, site: Site) -> None:
    @router.get("/api/pauses")
    def pauses(caller: Ops) -> Pauses:
        """What is paused; a tenant's token is told of queues and of its own task types."""
        return Pauses(paused=visible_pauses(site, caller.tenant))

    @router.put("/api/pauses/{what:path}", responses=errors(404, 422))
    def pause(what: What, caller: Ops) -> Pauses:
        """Start nothing more of this kind. What runs goes on to its end."""
        _for_everybody(caller)
        site.ledger.pause(known_pause(what))
        return Pauses(paused=site.ledger.paused())

    @router.delete("/api/pauses/{what:path}", responses=errors(404, 422))
    def resume(what: What, caller: Ops) -> Pauses:
        """Lift a pause; lifting one that is not there changes nothing."""
        _for_everybody(caller)
        site.ledger.resume(known_pause(what))
        return Pauses(paused=site.ledger.paused())


def _for_everybody(caller: Caller) -> None:
    if caller.tenant is not None:
        raise Problem(403, "tenants", "a pause is everybody's: it needs a token without a tenant")


def visible_breakers(site: Site, tenant: str | None) -> dict[str, Breaker]:
    """The breakers that somebody bound to a tenant may know of: which providers there are, and
    how they fare, tells of other tenants' work."""
    return redis_breakers(site.settings, site.ledger).all() if tenant is None else {}


def visible_pauses(site: Site, tenant: str | None) -> list[str]:
    """What is paused, as far as somebody bound to a tenant may know: queues are everybody's, task
    types are told of that the tenant had jobs of lately."""
    paused = site.ledger.paused()
    if tenant is None:
        return paused
    own: set[str] = set()
    if any(what.startswith("task_type:") for what in paused):
        found = Figures(site.ledger.calls, site.settings).window(
            _REMEMBERED, now=site.ledger.now(), compare=False
        )
        types = trend.task_types((bucket.rows for bucket in found.buckets), tenant=tenant)
        own = {f"task_type:{name}" for name in types}
    return [what for what in paused if what.startswith("queue:") or what in own]


def known_pause(what: str) -> str:
    """The name of a pause as the ledger looks it up, or 422."""
    kind, _, name = what.partition(":")
    if (kind in ("task_type", "provider") and name) or (kind == "queue" and name in PAUSABLE):
        return what
    raise invalid(f"what: name queue:{', queue:'.join(PAUSABLE)}, task_type:NAME or provider:NAME")


def readiness(site: Site) -> Ready:
    """Whether work is taken and let go."""
    try:
        age = sweep_age(site)
    except LedgerUnavailable:
        return Ready(ok=False, why="ledger")
    return Ready(ok=True) if age is not None and age < SWEEP_AGE else Ready(ok=False, why="sweep")


def sweep_age(site: Site) -> float | None:
    """Seconds since the last sweep of the partition that was swept least; None: never."""
    settings = site.settings
    now = site.ledger.now()
    ages = []
    for number in range(settings.partitions):
        prefix = keys.partition_prefix(settings.key_prefix, f"p{number:02d}")
        swept = site.ledger.calls.run("GET", prefix + "swept_at")
        if swept is None:
            return None
        ages.append(now - float(swept) / 1000)
    return max(ages)
