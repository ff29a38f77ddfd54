"""Escalations: alike ones are one row; each can be ended here, alone or all at once."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse

from mulligan.console.http.access import Caller, needs
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import not_found
from mulligan.console.page.render import only, page
from mulligan.tasks.escalations.end_escalations import find_group, list_groups

Reader = Annotated[Caller, Depends(needs("ops"))]
Show = Annotated[str, Query(max_length=10)]
Tenant = Annotated[str, Query(max_length=200)]
_GROUPS = 100
_ROWS = 50


def add(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/escalations")
    def groups(
        request: Request,
        caller: Reader,
        show: Show = "open",
        tenant: Tenant = "",
    ) -> HTMLResponse:
        whose = only(caller, tenant)
        found = list_groups(context.ledger, only_open=show != "all", tenant=whose, limit=_GROUPS)
        return page(
            request,
            "escalations.html",
            caller=caller,
            groups=found,
            now=context.ledger.now(),
            show=show,
            tenant=tenant if caller.tenant is None else "",
        )

    @router.get("/escalations/{signature:path}")
    def group(
        request: Request,
        caller: Reader,
        signature: str,
        show: Show = "open",
        tenant: Tenant = "",
    ) -> HTMLResponse:
        whose = only(caller, tenant)
        found = find_group(context.ledger, signature, tenant=whose)
        if found is None:
            raise not_found(f"group of escalations {signature}")
        rows = context.ledger.escalations(
            signature=signature, only_open=show != "all", tenant=whose, limit=_ROWS
        )
        return page(
            request,
            "escalation_group.html",
            caller=caller,
            g=found,
            now=context.ledger.now(),
            rows=rows,
            show=show,
            tenant=tenant if caller.tenant is None else "",
        )
