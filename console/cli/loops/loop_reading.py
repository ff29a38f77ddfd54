"""`mulligan loops list`, `show`, `items`, `item`, `why`, `log` and `transcripts`."""

from __future__ import annotations

from typing import Annotated

import typer

from mulligan.console.cli.loops import loop_screen
from mulligan.console.cli.loops.loop_options import Item, Name, open_loops
from mulligan.console.cli.options import Json
from mulligan.console.cli.output import screen
from mulligan.console.http.models import loop_models, why_models
from mulligan.policies.figures.format import timestamp
from mulligan.policies.loops.loop import LoopState, ShownState
from mulligan.tasks.loops import registry, view

Limit = Annotated[int, typer.Option(help="Maximum rows.", min=1, max=10_000)]


def list_loops(
    state: Annotated[LoopState | None, typer.Option(help="Only loops in this state.")] = None,
    limit: Limit = 100,
    json: Json = False,
) -> None:
    """List the loops, newest first."""
    with open_loops() as context:
        found = registry.list_loops(context, state=state, limit=limit)
    if json:
        screen.emit({"loops": [loop_models.row(each).model_dump(mode="json") for each in found]})
    elif found:
        loop_screen.print_loops(found)
    else:
        screen.say(f"no loops{f' are {state}' if state else ''}")


def show(name: Name, json: Json = False) -> None:
    """Show a loop: progress, what runs, budget, why it waits."""
    with open_loops() as context:
        found = view.view_loop(context, name)
        why = view.why(context, name)
        now = context.ledger.now()
    if json:
        screen.emit(loop_models.detail(found, why, texts=True).model_dump(mode="json"))
    else:
        loop_screen.print_loop(found, why, now)


def items(
    name: Name,
    state: Annotated[ShownState | None, typer.Option(help="Only items in this state.")] = None,
    limit: Limit = 1000,
    json: Json = False,
) -> None:
    """List the items of a loop, in the order of its specs."""
    with open_loops() as context:
        every = loop_models.item_rows(view.view_loop(context, name), state=state)
        now = context.ledger.now()
    found = every[:limit]
    if json:
        screen.emit({"tests": [row.model_dump(mode="json") for row in found]})
    elif found:
        loop_screen.print_items(found, now)
        if len(found) < len(every):
            screen.note(f"{len(every) - limit:,} more: --limit {len(every)}, or --state STATE")
    else:
        screen.say(f"no items are {state}")


def item(name: Name, item: Item, json: Json = False) -> None:
    """Show an item: task, attempts, why it waits."""
    with open_loops() as context:
        found = view.view_item(context, name, item)
    if json:
        screen.emit(loop_models.item_detail(found, texts=True).model_dump(mode="json"))
    else:
        loop_screen.print_item(found)


def why(
    name: Name,
    item: Annotated[str | None, typer.Argument(metavar="[ITEM]", help="Id of an item.")] = None,
    json: Json = False,
) -> None:
    """Say why a loop or an item does not run."""
    with open_loops() as context:
        reason = view.why(context, name, item)
    if json:
        screen.emit(why_models.why_row(reason, texts=True).model_dump(mode="json"))
        return
    screen.say(reason.text)
    if reason.detail:
        screen.say(f"  {reason.detail}")
    if reason.command:
        screen.say(f"  do: {reason.command}")


def log(name: Name, limit: Limit = 50, json: Json = False) -> None:
    """List who changed a loop and who got slots, newest first."""
    with open_loops() as context:
        view.view_loop(context, name)
        notes = registry.read_log(context, name, limit=limit)
    if json:
        rows = loop_models.note_rows(notes)
        screen.emit({"log": [row.model_dump(mode="json") for row in rows]})
        return
    for note in notes:
        screen.say(f"{timestamp(note.at, None)}  {note.note}  ({note.by})")


def transcripts(
    name: Name,
    item: Annotated[str | None, typer.Option("--item", help="Only this item.")] = None,
    limit: Limit = 50,
    json: Json = False,
) -> None:
    """Print what attempts were asked and answered."""
    with open_loops() as context:
        snapshot = view.view_loop(context, name).snapshot
        if item is not None:
            view.view_item(context, name, item)  # an unknown one is refused
        chosen = [spec.id for spec in snapshot.specs] if item is None else [item]
        runs, following = registry.read_runs(context, snapshot, items=chosen, start=0, limit=limit)
    rows = loop_models.transcript_rows(runs, texts=True)
    if json:
        more = following is not None
        screen.emit({"transcripts": [row.model_dump(mode="json") for row in rows], "more": more})
        return
    for row in rows:
        loop_screen.print_transcript(row)
    if following is not None:
        screen.note(f"there are more: --limit {2 * limit}, or --item ITEM")
