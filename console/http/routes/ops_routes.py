"""Health checks, queues, providers and pauses."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from mulligan.console.http.access import Caller, Ops
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import HttpError, errors, unavailable
from mulligan.console.reports.providers import (
    ParkedWork,
    ProviderRow,
    provider_rows,
    visible_parked,
)
from mulligan.console.reports.visibility import visible_pauses
from mulligan.policies.figures.format import duration
from mulligan.policies.jobs.sweep_health import sweep_health
from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.workers.celery.broker.queue_depth import depths
from mulligan.workers.celery.broker.queues import SHOWN_QUEUES, pause_name
from mulligan.workers.ledger.stores.quarantine import QuarantinedEntry
from mulligan.workers.ledger.stores.refused_submissions import RefusedSubmission

What = Annotated[
    str,
    Path(
        max_length=220,
        description="queue:NAME, task_type:NAME or provider:NAME",
        examples=["queue:attempt"],
    ),
]


class Liveness(BaseModel):
    ok: Literal[True] = True


class Readiness(BaseModel):
    ok: bool
    #: What is not ready.
    why: Literal["ledger", "sweep"] | None = None
    #: The reason in words.
    detail: str | None = None


class QueueRow(BaseModel):
    name: str
    #: Messages waiting in the broker.
    waiting: int
    paused: bool


class QueueList(BaseModel):
    queues: list[QueueRow]
    #: For a tenant's token, only its own quota.
    parked: list[ParkedWork]


class ProviderList(BaseModel):
    providers: list[ProviderRow]


class OutboxList(BaseModel):
    #: Quarantined entries, newest first.
    entries: list[QuarantinedEntry]


class RefusedList(BaseModel):
    #: Newest first.
    submissions: list[RefusedSubmission]


class OutboxChange(BaseModel):
    #: A misspelled `ids` would otherwise mean all entries.
    model_config = ConfigDict(extra="forbid")

    #: The entries; without it, all of them.
    ids: Annotated[list[str] | None, Field(min_length=1, max_length=1000)] = None


class OutboxChanged(BaseModel):
    #: The entries that were changed; the others are not quarantined, or nothing is left to send.
    entries: list[str]


class PauseList(BaseModel):
    paused: list[str]


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["ops"])

    @router.get("/livez")
    @router.get("/healthz")
    async def healthz() -> Liveness:
        """Whether this process is alive."""
        return Liveness()

    @router.get("/readyz", responses={503: {"model": Readiness}})
    def readyz(response: Response) -> Readiness:
        """Whether the ledger answers and stores, and the sweep runs."""
        ready = readiness(context)
        response.status_code = 200 if ready.ok else 503
        return ready

    @router.get("/api/queues")
    def queues(caller: Ops) -> QueueList:
        """List the queues with the number of waiting messages, and what is parked outside them."""
        paused = context.ledger.paused()
        waiting = depths(context.app, SHOWN_QUEUES)
        return QueueList(
            queues=[
                QueueRow(name=name, waiting=depth, paused=f"queue:{name}" in paused)
                for name, depth in waiting.items()
            ],
            parked=list(visible_parked(context.services, caller.tenant)),
        )

    @router.get("/api/providers")
    def providers(caller: Ops) -> ProviderList:
        """List the providers with their limits and faults; none for a tenant's token."""
        return ProviderList(providers=provider_rows(context.services, caller.tenant))

    @router.get("/api/submissions/refused")
    def refused(caller: Ops, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> RefusedList:
        """List refused submissions with their problems; a tenant's token sees its own."""
        found = context.ledger.refused_submissions.newest(limit=limit, tenant=caller.tenant)
        if not caller.texts:  # a message may begin with a prompt
            found = [replace(each, begins=None) for each in found]
        return RefusedList(submissions=found)

    _add_outbox(router, context)
    _add_pauses(router, context)
    return router


def _add_outbox(router: APIRouter, context: ConsoleContext) -> None:
    quarantine = context.ledger.quarantine

    @router.get("/api/outbox")
    def outbox(caller: Ops, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> OutboxList:
        """List entries that could not be sent or read; a tenant's token sees its own."""
        found = quarantine.entries(limit=limit, tenant=caller.tenant)
        return OutboxList(entries=found)

    @router.post("/api/outbox/retry", responses=errors(422))
    def retry(body: OutboxChange, caller: Ops) -> OutboxChanged:
        """Send quarantined entries again. Their jobs go on, and their escalations end."""
        done = quarantine.retry(body.ids, by=caller.name, tenant=caller.tenant)
        return OutboxChanged(entries=done)

    @router.post("/api/outbox/drop", responses=errors(422))
    def drop(body: OutboxChange, caller: Ops) -> OutboxChanged:
        """Drop quarantined entries and resolve their escalations."""
        done = quarantine.drop(body.ids, by=caller.name, tenant=caller.tenant)
        return OutboxChanged(entries=done)


def _add_pauses(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/api/pauses")
    def pauses(caller: Ops) -> PauseList:
        """List what is paused; for a tenant's token, queues and its own task types."""
        return PauseList(paused=visible_pauses(context.services, caller.tenant))

    @router.put("/api/pauses/{what:path}", responses=errors(404, 422))
    def pause(what: What, caller: Ops) -> PauseList:
        """Start no more of this work. Running attempts finish."""
        _refuse_tenants(caller)
        context.ledger.pause(pause_name(what))
        return PauseList(paused=context.ledger.paused())

    @router.delete("/api/pauses/{what:path}", responses=errors(404, 422))
    def resume(what: What, caller: Ops) -> PauseList:
        """Resume paused work. Resuming what is not paused changes nothing."""
        _refuse_tenants(caller)
        context.ledger.resume(pause_name(what))
        return PauseList(paused=context.ledger.paused())


def _refuse_tenants(caller: Caller) -> None:
    if caller.tenant is not None:
        raise HttpError(
            403, "tenants", "a pause affects all tenants: it needs a token without a tenant"
        )


def readiness(context: ConsoleContext) -> Readiness:
    """Return whether the ledger answers and stores, and the sweep runs."""
    try:
        age = context.ledger.sweep_age()
        refused = context.ledger.write_problem()
    except LedgerUnavailable as error:
        return Readiness(ok=False, why="ledger", detail=unavailable(error))
    if refused is not None:
        return Readiness(ok=False, why="ledger", detail=unavailable(refused))
    if sweep_health(age, interval=context.settings.sweep_interval) == "ok":
        return Readiness(ok=True)
    # Waiting work does not start.
    last = "has never run" if age is None else f"last ran {duration(age)} ago"
    return Readiness(ok=False, why="sweep", detail=f"the sweep {last}")
