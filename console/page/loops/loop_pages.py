"""The pages of loops: all loops, and one loop as a board with its graph, budget and log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse

from mulligan.console.http.access import Caller, Producer, Reader
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.loop_body import storable_object
from mulligan.console.http.models.loop_models import budget_rows, repo_of, runner_name
from mulligan.console.http.models.work_models import (
    SessionEventRow,
    pending_rollback,
    session_rows,
)
from mulligan.console.http.routes.loop_routes import visible_loop
from mulligan.console.jobfiles.source_document import parse_document
from mulligan.console.page.loops.checkpoint_reader import CheckpointReader
from mulligan.console.page.loops.loop_board import BOARD_STATES, BoardItems
from mulligan.console.page.loops.loop_graph import GraphLayouts, loop_graph, shape
from mulligan.console.page.loops.loop_list import loop_lines
from mulligan.console.page.loops.loop_remedies import remedy_button
from mulligan.console.page.loops.loop_signs import loop_sign
from mulligan.console.page.loops.work_pages import read_for_loop
from mulligan.console.page.render import ShortText, Text, address, page
from mulligan.policies.loops.commands import MOVES, Verb
from mulligan.policies.loops.loop import LOOP_STATES, LoopRecord, LoopState
from mulligan.tasks.loops.monitor import check_health
from mulligan.tasks.loops.registry import list_loops, read_log
from mulligan.tasks.loops.session_views import session_tail
from mulligan.tasks.loops.view import LoopView, why_of
from mulligan.tasks.ports.ledger import LiveItem

#: Maximum loops, items, lines of the log, healings and events of a transcript on one page.
_LOOPS = 100
_ITEMS = 100
_NOTES = 20
_HEALS = 10
_EVENTS = 10
#: Characters of a document that a page may send. Longer ones are for the command line.
_LONGEST_DOCUMENT = 60_000


class DocumentText(BaseModel):
    """A loop or items that somebody wrote on the page."""

    text: str = Field(max_length=_LONGEST_DOCUMENT)


@dataclass(frozen=True, kw_only=True)
class TranscriptTail:
    """The end of the transcript of an attempt that runs."""

    live: LiveItem
    rows: Sequence[SessionEventRow]
    #: The number of the last event.
    last: int
    #: The other items whose agents work.
    others: Sequence[str]


def add(router: APIRouter, context: ConsoleContext) -> None:
    _add_list(router, context)
    _add_board(router, context)

    @router.post("/loops/document")
    def document(body: DocumentText, _caller: Producer) -> JSONResponse:
        """Read YAML or JSON from a form, so that the page can send it to the API."""
        found = parse_document(body.text, name="line", folder=Path())
        return JSONResponse(storable_object(found.data))


def _add_list(router: APIRouter, context: ConsoleContext) -> None:
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
            lines=loop_lines(context.services.loops, caller, found[:_LOOPS]),
            more=len(found) > _LOOPS,
            most=_LOOPS,
            chosen=chosen,
            states=LOOP_STATES,
            may_create=_may_create(caller),
            templates=_templates(context.settings.loop_templates) if _may_create(caller) else [],
            now=context.ledger.now(),
        )


def _may_create(caller: Caller) -> bool:
    return caller.role in ("producer", "admin")


def _templates(folder: Path | None) -> list[str]:
    return sorted(each.stem for each in folder.glob("*.yaml")) if folder else []


def _add_board(router: APIRouter, context: ConsoleContext) -> None:
    reader, layouts = CheckpointReader(context.services.loops), GraphLayouts()

    @router.get("/loops/{name}")
    def loop(
        request: Request,
        caller: Reader,
        name: str,
        state: Text = "",
        start: Annotated[ShortText, Query(pattern=r"^\d{0,9}$")] = "",
        watch: Text = "",
    ) -> HTMLResponse:
        view, services = visible_loop(context, caller, name), context.services.loops
        snapshot, now = view.snapshot, context.ledger.now()
        check, why = check_health(services, view), why_of(services, view)
        items = BoardItems(view=view, check=check, now=now, texts=caller.texts)
        return page(
            request,
            "loop.html",
            caller=caller,
            view=view,
            l=snapshot.loop,
            summary=view.summary,
            why=why,
            remedy=remedy_button(why, caller),
            verbs=_verbs(snapshot.loop),
            may_create=_may_create(caller),
            sign=loop_sign(check, now),
            runner=runner_name(snapshot.config.runner),
            columns=items.columns(),
            graph=loop_graph(items, layouts),
            shape=shape,
            budget=budget_rows(view),
            heals=list(reversed(snapshot.heals[-_HEALS:])),
            regressions=list(reversed(snapshot.loop.regressions.found[-_HEALS:])),
            tail=_tail(context, caller, view, watch),
            checkpoints=read_for_loop(reader, caller, snapshot),
            repo=repo_of(snapshot.config),
            pending=pending_rollback(snapshot.loop),
            log=read_log(services, name, limit=_NOTES, tenant=caller.tenant, owner=caller.owner),
            now=now,
            **_listed(items, state, int(start or 0)),
        )


def _listed(items: BoardItems, state: str, first: int) -> dict[str, Any]:
    """Return one page of the list of items."""
    name = items.view.snapshot.loop.name
    specs = [s for s in items.view.snapshot.specs if state in ("", items.state(s.id))]
    following = first + _ITEMS
    return {
        "lines": [items.line(spec) for spec in specs[first:following]],
        "first": first,
        "total": len(specs),
        "previous": _page(name, state, max(0, first - _ITEMS)) if first else None,
        "following": _page(name, state, following) if following < len(specs) else None,
        "state": state,
        "item_states": BOARD_STATES,
        "counts": items.counts,
    }


def _page(name: str, state: str, start: int) -> str:
    return address(f"/loops/{name}", state=state, start=str(start) if start else None) + "#items"


def _verbs(loop: LoopRecord) -> list[Verb]:
    """Return what a person may do with a loop now."""
    found: list[Verb] = [verb for verb, move in MOVES.items() if loop.state in move.origins]
    # Stopping one that does nothing is possible, but of no use.
    useless = "stop" if loop.state in ("created", "completed") else ""
    refused = "start" if loop.has_moved else ""
    return [verb for verb in found if verb not in (useless, refused)]


def _tail(
    context: ConsoleContext, caller: Caller, view: LoopView, watch: str
) -> TranscriptTail | None:
    """Return what the chosen agent did last, or that of the item that runs longest."""
    if view.snapshot.config.repo is None:
        return None
    agents = {each.item: each for each in view.holders}
    names = [each for each in view.summary.running if each in agents]
    if not names:
        return None
    live = agents[watch if watch in names else names[0]]
    events = session_tail(context.services.loops, live.job_id, live.attempt, most=_EVENTS)
    return TranscriptTail(
        live=live,
        rows=list(session_rows(events, texts=caller.texts)),
        last=int(events[-1]["seq"]) if events else 0,
        others=[each for each in names if each != live.item],
    )
