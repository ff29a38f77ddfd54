"""The page of operations: queues, providers, what was not sent or accepted, and pauses."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse

from mulligan.console.http.access import Ops
from mulligan.console.http.context import ConsoleContext
from mulligan.console.page.render import page
from mulligan.console.reports.overview import overview
from mulligan.console.reports.overview_values import Overview
from mulligan.console.reports.providers import provider_rows
from mulligan.workers.celery.broker.queues import DEFAULT_QUEUE, JOB_QUEUES, SUBMIT_QUEUE
from mulligan.workers.celery.broker.stranded import stranded_messages

#: The task types of this window are listed.
_WINDOW = "24h"
#: Maximum quarantined entries to show, the newest.
_ENTRIES = 50
#: Maximum refused submissions to show, the newest.
_REFUSED = 20


def add(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/operations")
    def operations(request: Request, caller: Ops) -> HTMLResponse:
        bound = caller.tenant is not None
        figures = overview(
            context.services, context.app, window=_WINDOW, tenant=caller.tenant, bound=bound
        )
        quarantined = context.ledger.quarantine.entries(limit=_ENTRIES, tenant=caller.tenant)
        return page(
            request,
            "operations.html",
            caller=caller,
            providers=provider_rows(context.services, caller.tenant),
            now=figures.at,
            o=figures,
            pausable=JOB_QUEUES,
            task_types=sorted({*figures.task_types, *_paused(figures, "task_type")}),
            quarantined=quarantined,
            quarantined_total=len(quarantined) if bound else context.ledger.quarantine.count(),
            refused=context.ledger.refused_submissions.newest(limit=_REFUSED, tenant=caller.tenant),
            stranded=None if bound else stranded_messages(context.app),
            default_queue=DEFAULT_QUEUE,
            submit_queue=SUBMIT_QUEUE,
            workers=[] if bound else context.ledger.beats.live(now=figures.at),
        )

    @router.get("/providers")
    @router.get("/queues")
    def moved(request: Request) -> RedirectResponse:
        return RedirectResponse(f"/operations#{request.url.path.strip('/')}", 307)


def _paused(figures: Overview, kind: str) -> list[str]:
    names = (what.partition(":") for what in figures.paused)
    return [name for found, _, name in names if found == kind]
