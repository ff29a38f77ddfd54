"""The page of cycles: every mandatory retry and its result."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse

from mulligan.console.http.access import Reader
from mulligan.console.http.context import ConsoleContext
from mulligan.console.page.render import page
from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.policies.cycles.report import immediate_loop_report

_DAYS = 7
#: The most cycles that the figures count, that the list is filtered from, and that it shows.
_MAX_COUNTED = 5000
_MAX_READ = 500
_MAX_ROWS = 50


def add(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/cycles")
    def cycles(
        request: Request, caller: Reader, status: Annotated[str, Query(max_length=40)] = ""
    ) -> HTMLResponse:
        ledger = context.ledger
        now = ledger.now()
        since = now - _DAYS * 86400
        counted = ledger.cycle_rows.newest(since=since, limit=_MAX_COUNTED, tenant=caller.tenant)
        found = ledger.cycles(since=since, limit=_MAX_READ, tenant=caller.tenant)
        owned = ledger.owned([each.job_id for each in found], caller.owner)
        shown = [each for each in found if each.job_id in owned]
        matching = [each for each in shown if status in ("", each.status.value)]
        return page(
            request,
            "cycles.html",
            caller=caller,
            cycles=matching[:_MAX_ROWS],
            days=_DAYS,
            full=len(counted) == _MAX_COUNTED,
            more=len(matching) > _MAX_ROWS or len(found) == _MAX_READ,
            now=now,
            report=immediate_loop_report(counted, now=now, window_days=_DAYS),
            chosen=status,
            statuses=[each.value for each in CycleStatus],
        )
