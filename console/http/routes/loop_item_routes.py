"""The items of loops over HTTP: their specs and states, what they ran, and changes to them.

Seed programs call an item of a loop a test; so do the paths.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from mulligan.console.http.access import Caller, Producer, Reader
from mulligan.console.http.broadcast import EventFilter
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import errors
from mulligan.console.http.loop_body import AddedItems, read_items_body
from mulligan.console.http.models.loop_models import (
    ItemDetail,
    ItemList,
    SkipReason,
    TranscriptList,
    item_detail,
    item_rows,
    transcript_rows,
)
from mulligan.console.http.routes.event_routes import (
    EVENTS,
    After,
    EventStream,
    LastEventId,
    just_before,
    open_stream,
)
from mulligan.console.http.routes.loop_routes import Changes, LoopId, TestId, visible_loop
from mulligan.console.jobfiles.model_schema import inline_schema
from mulligan.policies.loops.loop import ShownState
from mulligan.policies.loops.spec import ItemSpec
from mulligan.tasks.loops import change
from mulligan.tasks.loops.registry import read_runs
from mulligan.tasks.loops.view import no_such_item, view_item

_NO_REASON = SkipReason()
_ITEMS = {
    "anyOf": [inline_schema(ItemSpec), inline_schema(AddedItems)],
    "description": "One item, or several, as in a spec file",
}
Start = Annotated[
    str, Query(pattern=r"^[0-9]{1,9}$", alias="cursor", description="The cursor of the last page")
]


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["loops"])
    _add_reading(router, context)
    _add_changing(router, context)
    _add_transcripts(router, context)
    return router


def _add_reading(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/api/loops/{loop_id}/tests", responses=errors(404))
    def tests(
        loop_id: LoopId,
        caller: Reader,
        state: ShownState | None = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        start: Start = "0",
    ) -> ItemList:
        """List the items of a loop, in the order of its specs."""
        found = item_rows(visible_loop(context, caller, loop_id), state=state)
        following = int(start) + limit
        return ItemList(
            tests=found[int(start) : following],
            total=len(found),
            cursor=str(following) if following < len(found) else None,
        )

    @router.get("/api/loops/{loop_id}/tests/{test_id}", responses=errors(404))
    def test(loop_id: LoopId, test_id: TestId, caller: Reader) -> ItemDetail:
        """Show an item: its spec, its state, the attempts of its last run and why it waits."""
        return _shown(context, caller, loop_id, test_id)


def _add_changing(router: APIRouter, context: ConsoleContext) -> None:
    loops = context.services.loops

    @router.post("/api/loops/{loop_id}/tests", status_code=201, responses=errors(404, 409))
    def inject(
        loop_id: LoopId,
        body: Annotated[Any, Body(json_schema_extra=_ITEMS)],
        caller: Producer,
        changes: Changes,
    ) -> ItemList:
        """Add items to a loop, also to one that is running or completed."""
        items = read_items_body(body)
        visible_loop(context, caller, loop_id)
        change.inject(loops, loop_id, items, changes)
        chosen = {each.id for each in items}
        found = item_rows(visible_loop(context, caller, loop_id), chosen=chosen)
        return ItemList(tests=found, total=len(found), cursor=None)

    @router.post("/api/loops/{loop_id}/tests/{test_id}/reset", responses=errors(404, 409))
    def reset(loop_id: LoopId, test_id: TestId, caller: Reader, changes: Changes) -> ItemDetail:
        """Run an item again in a new context: its failures are forgotten.

        An item whose work is on the loop's branch is refused: roll it back.
        """
        _shown(context, caller, loop_id, test_id)
        change.reset(loops, loop_id, test_id, changes)
        return _shown(context, caller, loop_id, test_id)

    @router.post("/api/loops/{loop_id}/tests/{test_id}/skip", responses=errors(404, 409))
    def skip(
        loop_id: LoopId,
        test_id: TestId,
        caller: Reader,
        changes: Changes,
        body: SkipReason = _NO_REASON,
    ) -> ItemDetail:
        """Leave an item out. What depends on it goes on."""
        _shown(context, caller, loop_id, test_id)
        change.skip(loops, loop_id, test_id, changes, reason=body.reason)
        return _shown(context, caller, loop_id, test_id)


def _add_transcripts(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/api/loops/{loop_id}/transcripts", responses=errors(404))
    def transcripts(
        loop_id: LoopId,
        caller: Reader,
        test: Annotated[str | None, Query(max_length=200)] = None,
        limit: Annotated[int, Query(ge=1, le=100, description="Runs, each a job")] = 20,
        start: Start = "0",
    ) -> TranscriptList:
        """List every attempt of a loop's items: prompt, answer, verdict and usage."""
        snapshot = visible_loop(context, caller, loop_id).snapshot
        if test is not None and snapshot.spec(test) is None:
            raise no_such_item(loop_id, test)
        items = [spec.id for spec in snapshot.specs if test in (None, spec.id)]
        runs, following = read_runs(
            context.services.loops, snapshot, items=items, start=int(start), limit=limit
        )
        return TranscriptList(
            transcripts=transcript_rows(runs, texts=caller.texts),
            cursor=None if following is None else str(following),
        )

    @router.get(
        "/api/loops/{loop_id}/transcripts/stream",
        response_class=EventStream,
        responses={**EVENTS, **errors(404)},
    )
    async def stream(
        request: Request,
        loop_id: LoopId,
        caller: Reader,
        after: After = None,
        last_event_id: LastEventId = None,
    ) -> Response:
        """Stream the events of a loop, its items and their jobs since it was created."""
        view = await run_in_threadpool(visible_loop, context, caller, loop_id)
        start = last_event_id or after or just_before(view.snapshot.loop.created_at)
        chosen = EventFilter(
            loop=loop_id, tenant=caller.tenant, owner=caller.owner, texts=caller.texts
        )
        position = context.broadcast.position(start)
        return await open_stream(context, request, caller, chosen, position)


def _shown(context: ConsoleContext, caller: Caller, loop: str, item: str) -> ItemDetail:
    view = view_item(context.services.loops, loop, item, tenant=caller.tenant, owner=caller.owner)
    return item_detail(view, texts=caller.texts)
