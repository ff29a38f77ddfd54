"""Operations: queues and what is paused, breakers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse

from mulligan.console.http.access import Caller, needs
from mulligan.console.http.context import ConsoleContext
from mulligan.console.page.render import page
from mulligan.console.reports.overview import Overview, overview
from mulligan.console.reports.visibility import visible_breakers
from mulligan.workers.celery.queues import JOB_QUEUES

Reader = Annotated[Caller, Depends(needs("ops"))]
#: Task types of jobs of this window are listed.
_SEEN = "24h"


def add(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/operations")
    def operations(request: Request, caller: Reader) -> HTMLResponse:
        bound = caller.tenant is not None
        figures = overview(
            context.services, context.app, window=_SEEN, tenant=caller.tenant, bound=bound
        )
        breakers = visible_breakers(context.services, caller.tenant)
        configured = [] if bound else context.services.runners.providers()
        providers = sorted({*breakers, *configured, *_paused(figures, "provider")})
        return page(
            request,
            "operations.html",
            caller=caller,
            breakers=[(name, breakers.get(name)) for name in providers],
            now=figures.at,
            o=figures,
            pausable=JOB_QUEUES,
            task_types=sorted({*figures.task_types, *_paused(figures, "task_type")}),
        )

    @router.get("/breakers")
    @router.get("/queues")
    def moved(request: Request) -> RedirectResponse:
        return RedirectResponse(f"/operations#{request.url.path.strip('/')}", 307)


def _paused(figures: Overview, kind: str) -> list[str]:
    names = (what.partition(":") for what in figures.paused)
    return [name for found, _, name in names if found == kind]
