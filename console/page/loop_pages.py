"""The pages of loops: all loops, and one loop with its items, budget and log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse

from mulligan.console.http.access import Reader
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.models.loop_models import budget_rows, repo_of, runner_name
from mulligan.console.http.models.work_models import pending_rollback
from mulligan.console.http.routes.loop_routes import visible_loop
from mulligan.console.page.checkpoint_reader import CheckpointReader
from mulligan.console.page.render import ShortText, Text, address, page
from mulligan.console.page.work_pages import read_for_loop
from mulligan.policies.loops.commands import MOVES, Verb
from mulligan.policies.loops.loop import (
    DONE,
    LOOP_STATES,
    SHOWN_STATES,
    ItemRecord,
    LoopRecord,
    LoopState,
    ShownState,
)
from mulligan.policies.loops.spec import ItemSpec
from mulligan.tasks.loops.monitor import check_health
from mulligan.tasks.loops.registry import list_loops, read_log
from mulligan.tasks.loops.view import LoopView, why_item_of, why_of

#: Maximum loops, items and lines of the log on one page.
_LOOPS = 100
_ITEMS = 100
_NOTES = 20
#: States of items in which a sentence says what they wait for.
_WAITING = frozenset({"pending", "ready", "blocked"})


@dataclass(frozen=True, kw_only=True)
class ItemLine:
    """One item on the page, and what may be done with it."""

    spec: ItemSpec
    record: ItemRecord
    state: ShownState
    #: Why it waits or how it ended.
    reason: str
    resettable: bool
    skippable: bool


def add(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/loops")
    def loops(request: Request, caller: Reader, state: Text = "") -> HTMLResponse:
        chosen: LoopState | None = next((each for each in LOOP_STATES if each == state), None)
        found = list_loops(
            context.services.loops,
            tenant=caller.tenant,
            owner=caller.owner,
            state=chosen,
            limit=_LOOPS + 1,
        )
        return page(
            request,
            "loops.html",
            caller=caller,
            loops=found[:_LOOPS],
            more=len(found) > _LOOPS,
            most=_LOOPS,
            chosen=chosen,
            states=LOOP_STATES,
            now=context.ledger.now(),
        )

    reader = CheckpointReader(context.services.loops)

    @router.get("/loops/{name}")
    def loop(
        request: Request,
        caller: Reader,
        name: str,
        state: Text = "",
        start: Annotated[ShortText, Query(pattern=r"^\d{0,9}$")] = "",
    ) -> HTMLResponse:
        view, services = visible_loop(context, caller, name), context.services.loops
        snapshot, now = view.snapshot, context.ledger.now()
        specs = [s for s in snapshot.specs if state in ("", view.state(s.id))]
        first = int(start or 0)
        following = first + _ITEMS
        return page(
            request,
            "loop.html",
            caller=caller,
            view=view,
            l=snapshot.loop,
            summary=view.summary,
            why=why_of(services, view),
            verbs=_verbs(snapshot.loop),
            health=check_health(services, view).status,
            runner=runner_name(snapshot.config.runner),
            budget=budget_rows(view),
            lines=[_line(view, spec, now) for spec in specs[first:following]],
            first=first,
            total=len(specs),
            previous=_page(name, state, max(0, first - _ITEMS)) if first else None,
            following=_page(name, state, following) if following < len(specs) else None,
            state=state,
            item_states=SHOWN_STATES,
            checkpoints=read_for_loop(reader, caller, snapshot),
            repo=repo_of(snapshot.config),
            pending=pending_rollback(snapshot.loop),
            log=read_log(services, name, limit=_NOTES, tenant=caller.tenant, owner=caller.owner),
            now=now,
        )


def _page(name: str, state: str, start: int) -> str:
    return address(f"/loops/{name}", state=state, start=str(start) if start else None)


def _verbs(loop: LoopRecord) -> list[Verb]:
    """Return what a person may do with a loop now."""
    found: list[Verb] = [verb for verb, move in MOVES.items() if loop.state in move.origins]
    # Stopping one that does nothing is possible, but of no use.
    return [verb for verb in found if verb != "stop" or loop.state not in ("created", "completed")]


def _line(view: LoopView, spec: ItemSpec, now: float) -> ItemLine:
    record, repo = view.snapshot.record(spec.id), view.snapshot.config.repo
    reason = record.reason
    if record.state in _WAITING:
        text = why_item_of(view, spec.id, now).text
        reason = text.removeprefix(f"{spec.id} waits: ")
    return ItemLine(
        spec=spec,
        record=record,
        state=view.state(spec.id),
        reason=reason,
        # Merged work is undone on the item's own page.
        resettable=record.state not in (_WAITING if repo is None else {*_WAITING, "passed"}),
        skippable=record.state not in DONE,
    )
