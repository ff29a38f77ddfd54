"""The pages of escalations: their groups, and one group with the actions that end them."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse

from mulligan.console.http.access import Ops
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import not_found
from mulligan.console.page.render import ShortText, Text, page
from mulligan.tasks.escalations.end_escalations import find_group, list_groups

_GROUPS = 100
_ROWS = 50


def add(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/escalations")
    def groups(
        request: Request, caller: Ops, show: ShortText = "open", tenant: Text = ""
    ) -> HTMLResponse:
        chosen = caller.tenant_filter(tenant)
        found = list_groups(context.ledger, only_open=show != "all", tenant=chosen, limit=_GROUPS)
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
        request: Request, caller: Ops, signature: str, show: ShortText = "open", tenant: Text = ""
    ) -> HTMLResponse:
        chosen = caller.tenant_filter(tenant)
        found = find_group(context.ledger, signature, tenant=chosen)
        if found is None:
            raise not_found(f"group of escalations {signature!r}")
        rows = context.ledger.escalations(
            signature=signature, only_open=show != "all", tenant=chosen, limit=_ROWS
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
