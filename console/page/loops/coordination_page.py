"""The page of coordination: decisions, who waits for whom, who has which files, and events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse

from mulligan.console.http.access import Reader
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.models.coordination_models import (
    CoordinationDocument,
    DeniedRow,
    LockRow,
    coordination_document,
)
from mulligan.console.http.routes.coordination_routes import visible_coordination
from mulligan.console.page.loops.wait_drawing import draw_waits, wait_lines
from mulligan.console.page.render import Text, page
from mulligan.tasks.coordination.orders import ORDERED

#: Decisions, and rows of each list on the page.
_DECISIONS = 50
_ROWS = 100


@dataclass(frozen=True, kw_only=True)
class LockLine:
    """The files of an item, and who waits for them."""

    lock: LockRow
    waiting: Sequence[DeniedRow]


def add(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/coordination")
    def coordination(request: Request, caller: Reader, loop: Text = "") -> HTMLResponse:
        view = visible_coordination(context, caller, loop or None, limit=_DECISIONS)
        found = coordination_document(view, limit=_ROWS, texts=caller.texts)
        lines = wait_lines(view)
        return page(
            request,
            "coordination.html",
            caller=caller,
            found=found,
            chosen=loop,
            locks=_lock_lines(found),
            drawing=draw_waits(view),
            lines=lines[:_ROWS],
            more_waits=len(lines) - _ROWS,
            most=_DECISIONS,
            ordered=ORDERED,
            now=context.ledger.now(),
        )


def _lock_lines(found: CoordinationDocument) -> list[LockLine]:
    return [
        LockLine(
            lock=each,
            waiting=[
                d for d in found.denied if not d.reserved and d.holder == f"{each.loop}/{each.test}"
            ],
        )
        for each in found.locks
    ]
