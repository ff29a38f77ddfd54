"""Healing of loops over HTTP: what was done, why an item failed, and what to do about it."""

from __future__ import annotations

from fastapi import APIRouter

from mulligan.console.http.access import Reader
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import errors
from mulligan.console.http.models.heal_models import (
    AnalysisDocument,
    HealList,
    HealRequest,
    HealRow,
    analysis_document,
    heal_row,
)
from mulligan.console.http.routes.loop_routes import Changes, LoopId, TestId, visible_loop
from mulligan.tasks.loops import heal
from mulligan.tasks.loops.view import no_such_item

_NEXT = HealRequest()


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["loops"])
    loops = context.services.loops

    @router.get("/api/loops/{loop_id}/heals", responses=errors(404))
    def heals(loop_id: LoopId, caller: Reader) -> HealList:
        """List what was done to heal a loop, newest first, and what came of it."""
        found = visible_loop(context, caller, loop_id).snapshot.heals
        return HealList(heals=[heal_row(each, texts=caller.texts) for each in reversed(found)])

    @router.post("/api/loops/{loop_id}/heal", responses=errors(404, 409))
    def repair(loop_id: LoopId, caller: Reader, changes: Changes) -> HealList:
        """Heal every item that gave up and blocks others, each by its next step."""
        visible_loop(context, caller, loop_id)
        made = heal.repair_dependency_chain(loops, loop_id, changes)
        return HealList(heals=[heal_row(each, texts=caller.texts) for each in made])

    @router.post("/api/loops/{loop_id}/tests/{test_id}/heal", responses=errors(404, 409))
    def heal_test(
        loop_id: LoopId,
        test_id: TestId,
        caller: Reader,
        changes: Changes,
        body: HealRequest = _NEXT,
    ) -> HealRow:
        """Heal an item that gave up, by an action or by the next one that was not tried."""
        if visible_loop(context, caller, loop_id).snapshot.spec(test_id) is None:
            raise no_such_item(loop_id, test_id)
        made = heal.heal_item(
            loops,
            loop_id,
            test_id,
            changes,
            action=body.action,
            parameter=body.to_checkpoint,
            to_human=body.to_human,
            reason=body.reason,
        )
        return heal_row(made, texts=caller.texts)

    @router.get("/api/loops/{loop_id}/tests/{test_id}/analysis", responses=errors(404, 409))
    def analysis(loop_id: LoopId, test_id: TestId, caller: Reader) -> AnalysisDocument:
        """Say why an item failed: the pattern, what its attempts differ in, what may help."""
        snapshot = visible_loop(context, caller, loop_id).snapshot
        if snapshot.spec(test_id) is None:
            raise no_such_item(loop_id, test_id)
        found = heal.analyse_failed(loops, snapshot, test_id)
        command = heal.suggest(snapshot, test_id, context.ledger.now())
        return analysis_document(found, command, texts=caller.texts)

    return router
