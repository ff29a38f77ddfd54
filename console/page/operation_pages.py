"""Operations: queues and what is paused, breakers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse

from mulligan.console.http.access import Caller, needs
from mulligan.console.http.ops import visible_breakers
from mulligan.console.http.site import Site
from mulligan.console.overview import overview
from mulligan.console.page.render import page
from mulligan.console.queues import PAUSABLE

Reader = Annotated[Caller, Depends(needs("ops"))]


def add(router: APIRouter, site: Site) -> None:
    @router.get("/operations")
    def operations(request: Request, caller: Reader) -> HTMLResponse:
        figures = overview(site, tenant=caller.tenant, bound=caller.tenant is not None)
        breakers = visible_breakers(site, caller.tenant)
        providers = sorted(
            {*breakers, *(w.partition(":")[2] for w in figures.paused if w.startswith("provider:"))}
        )
        return page(
            request,
            "operations.html",
            caller=caller,
            breakers=[(name, breakers.get(name)) for name in providers],
            now=figures.at,
            o=figures,
            others=[what for what in figures.paused if what.startswith("task_type:")],
            pausable=PAUSABLE,
            task_types=sorted({name for row in figures.heat.values() for name in row}),
        )

    @router.get("/breakers")
    @router.get("/queues")
    def moved(request: Request) -> RedirectResponse:
        return RedirectResponse(f"/operations#{request.url.path.strip('/')}", 307)
