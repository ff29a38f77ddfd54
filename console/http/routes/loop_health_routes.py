"""The health of loops over HTTP."""

from __future__ import annotations

from fastapi import APIRouter

from mulligan.console.http.access import Reader
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import errors
from mulligan.console.http.models.health_models import (
    LoopHealthDocument,
    LoopHealthList,
    health_document,
    health_row,
)
from mulligan.console.http.routes.loop_routes import LoopId, visible_loop
from mulligan.tasks.loops.monitor import check_all, check_health
from mulligan.tasks.loops.view import why_of


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["loops"])
    loops = context.services.loops

    @router.get("/api/loop-health")
    def index(caller: Reader) -> LoopHealthList:
        """List the health of every loop, newest first."""
        found = check_all(loops, tenant=caller.tenant, owner=caller.owner)
        return LoopHealthList(loops=[health_row(each) for each in found])

    @router.get("/api/loops/{loop_id}/health", responses=errors(404))
    def health(loop_id: LoopId, caller: Reader) -> LoopHealthDocument:
        """Say which signal of a loop or of its running items is missing, since when, and why."""
        view = visible_loop(context, caller, loop_id)
        check, why = check_health(loops, view), why_of(loops, view)
        return health_document(view, check, why, now=context.ledger.now(), texts=caller.texts)

    return router
