"""Coordination of loops over HTTP: what was decided and why, orders, and events."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi import Path as InPath

from mulligan.console.http.access import Caller, Ops, Reader
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import HttpError, errors
from mulligan.console.http.models.coordination_models import (
    CoordinationDocument,
    EventAnswer,
    EventRequest,
    OrderRequest,
    OverruledDecision,
    coordination_document,
    overruling_row,
)
from mulligan.console.http.models.loop_models import ItemDetail, item_detail
from mulligan.console.http.routes.loop_routes import (
    Changes,
    LoopId,
    TestId,
    loop_tenant,
    visible_loop,
)
from mulligan.tasks.coordination import orders
from mulligan.tasks.coordination.view import CoordinationView, view_coordination
from mulligan.tasks.loops.view import no_such_item, view_item

Number = Annotated[
    str, InPath(pattern=r"^[0-9]{1,15}$", description="A decision's number", examples=["12"])
]
OneLoop = Annotated[str | None, Query(max_length=200, description="Only what concerns this loop")]


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["loops"])
    loops = context.services.loops

    @router.get("/api/coordination", responses=errors(404))
    def coordination(
        caller: Reader,
        loop: OneLoop = None,
        limit: Annotated[int, Query(ge=1, le=1000, description="Rows of each list")] = 100,
    ) -> CoordinationDocument:
        """Show who has which files, who waits for whom, the events, and the newest decisions."""
        view = visible_coordination(context, caller, loop, limit=limit)
        return coordination_document(view, limit=limit, texts=caller.texts)

    @router.post("/api/coordination/decisions/{number}/overrule", responses=errors(404, 409))
    def overrule(number: Number, caller: Ops, changes: Changes) -> OverruledDecision:
        """Overrule a decision: `overruling` of the decision says what that does."""
        done = orders.overrule(loops, number, changes, tenant=caller.tenant)
        return OverruledDecision(number=int(number), done=overruling_row(done))

    @router.put("/api/loops/{loop_id}/tests/{test_id}/order", responses=errors(404, 409))
    def order(
        loop_id: LoopId, test_id: TestId, body: OrderRequest, caller: Ops, changes: Changes
    ) -> ItemDetail:
        """Say what happens to an item until it gets its slot; null for the usual rules."""
        if visible_loop(context, caller, loop_id).snapshot.spec(test_id) is None:
            raise no_such_item(loop_id, test_id)
        orders.give_order(loops, loop_id, test_id, body.order, changes)
        shown = view_item(loops, loop_id, test_id, tenant=caller.tenant, owner=caller.owner)
        return item_detail(shown, texts=caller.texts)

    @router.post("/api/loop-events", responses=errors(403, 409))
    def emit(body: EventRequest, caller: Reader) -> EventAnswer:
        """Give an event off, for the loops of a tenant, or take it back. Twice changes nothing."""
        tenant = _event_tenant(context, caller, body.tenant)
        if body.withdraw:
            gone = orders.withdraw(loops, body.event, tenant=tenant)
            return EventAnswer(event=body.event, emitted=False, withdrawn=gone)
        waiting = orders.count_waiting(loops, body.event, tenant=tenant)
        of = caller.tenant or ""
        emitted = orders.emit(loops, body.event, tenant=tenant, by=caller.name, of=of)
        return EventAnswer(event=body.event, emitted=emitted, waiting=waiting)

    return router


def _event_tenant(context: ConsoleContext, caller: Caller, requested: str | None) -> str:
    """Return whose loops get an event: a producer's own tenant, or one in which it has a loop."""
    tenant = loop_tenant(caller, requested)
    if caller.owner is not None and tenant not in ("", caller.tenant):
        loops = context.ledger.loops()
        if not any(each.is_of(tenant, caller.owner) for each in loops):
            raise HttpError(403, "other_tenant", "tenant: you have no loop of this tenant")
    return tenant


def visible_coordination(
    context: ConsoleContext, caller: Caller, loop: str | None, *, limit: int
) -> CoordinationView:
    """Return what the caller may see, or raise 404 for a loop that it may not."""
    return view_coordination(
        context.services.loops, tenant=caller.tenant, owner=caller.owner, loop=loop, limit=limit
    )
