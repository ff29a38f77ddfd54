"""Regressions of loops over HTTP: what was found, and asking for a check."""

from __future__ import annotations

from fastapi import APIRouter

from mulligan.console.http.access import Reader
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import errors
from mulligan.console.http.models.regression_models import (
    RegressionList,
    VerifyRequest,
    regression_list,
)
from mulligan.console.http.routes.loop_routes import Changes, LoopId, visible_loop
from mulligan.tasks.loops.regressions import verify_loop
from mulligan.tasks.loops.view import no_such_item

_ALL = VerifyRequest()


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["loops"])

    @router.get("/api/loops/{loop_id}/regressions", responses=errors(404))
    def regressions(loop_id: LoopId, caller: Reader) -> RegressionList:
        """List what passed and broke later, newest first: the culprit, and what came of it."""
        loop = visible_loop(context, caller, loop_id).snapshot.loop
        return regression_list(loop, texts=caller.texts)

    @router.post("/api/loops/{loop_id}/verify", responses=errors(404, 409))
    def verify(
        loop_id: LoopId, caller: Reader, changes: Changes, body: VerifyRequest = _ALL
    ) -> RegressionList:
        """Verify an item, or every one that passed, next."""
        found = visible_loop(context, caller, loop_id).snapshot
        if body.test is not None and found.spec(body.test) is None:
            raise no_such_item(loop_id, body.test)
        verify_loop(context.services.loops, loop_id, changes, item=body.test)
        now = visible_loop(context, caller, loop_id).snapshot
        return regression_list(now.loop, texts=caller.texts)

    return router
