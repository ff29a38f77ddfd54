"""Escalations: alike ones are one row; each can be ended here, alone or all at once."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse

from mulligan.console.http.access import Caller, needs
from mulligan.console.http.errors import not_found
from mulligan.console.http.site import Site
from mulligan.console.page.render import only, page
from mulligan.tasks.escalations import find_group, list_groups

Reader = Annotated[Caller, Depends(needs("ops"))]
_GROUPS = 100
_ROWS = 50


def add(router: APIRouter, site: Site) -> None:
    @router.get("/escalations")
    def groups(
        request: Request,
        caller: Reader,
        show: Annotated[str, Query(max_length=10)] = "open",
        tenant: Annotated[str, Query(max_length=200)] = "",
    ) -> HTMLResponse:
        whose = only(caller, tenant)
        found = list_groups(site.ledger, only_open=show != "all", tenant=whose, limit=_GROUPS)
        return page(
            request,
            "escalations.html",
            caller=caller,
            groups=found,
            now=site.ledger.now(),
            show=show,
            tenant=whose or "",
        )

    @router.get("/escalations/{signature:path}")
    def group(
        request: Request,
        caller: Reader,
        signature: str,
        show: Annotated[str, Query(max_length=10)] = "open",
    ) -> HTMLResponse:
        found = find_group(site.ledger, signature, tenant=caller.tenant)
        if found is None:
            raise not_found(f"group of escalations {signature}")
        rows = site.ledger.escalations(
            signature=signature, only_open=show != "all", tenant=caller.tenant, limit=_ROWS
        )
        return page(
            request,
            "escalation_group.html",
            caller=caller,
            g=found,
            now=site.ledger.now(),
            rows=rows,
            show=show,
        )
