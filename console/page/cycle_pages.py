"""Cycles: every mandatory retry, and what became of it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse

from mulligan.console.http.access import Caller, needs
from mulligan.console.http.context import ConsoleContext
from mulligan.console.page.render import page
from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.policies.cycles.report import immediate_loop_report

Reader = Annotated[Caller, Depends(needs("producer", "ops"))]
_DAYS = 7
#: Cycles that the figures at the top are made of, that the list is chosen from, and its rows.
_COUNTED = 5000
_LOOKED_AT = 500
_SHOWN = 50


def add(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/cycles")
    def cycles(
        request: Request, caller: Reader, status: Annotated[str, Query(max_length=40)] = ""
    ) -> HTMLResponse:
        ledger = context.ledger
        now = ledger.now()
        since = now - _DAYS * 86400
        counted = ledger.cycle_rows.since(since, limit=_COUNTED, tenant=caller.tenant)
        found = ledger.cycles(since=since, limit=_LOOKED_AT, tenant=caller.tenant)
        listed = [each for each in found if status in ("", each.status.value)]
        return page(
            request,
            "cycles.html",
            caller=caller,
            cycles=listed[:_SHOWN],
            days=_DAYS,
            full=len(counted) == _COUNTED,
            more=len(listed) > _SHOWN or len(found) == _LOOKED_AT,
            now=now,
            report=immediate_loop_report(counted, now=now, window_days=_DAYS),
            chosen=status,
            statuses=[each.value for each in CycleStatus],
        )
