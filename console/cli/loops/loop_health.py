"""`mulligan loops health`: which signal of a loop is missing, since when, and what follows."""

from __future__ import annotations

from typing import Annotated

import typer

from mulligan.console.cli.exit_codes import ExitCode
from mulligan.console.cli.loops.loop_options import open_loops
from mulligan.console.cli.options import Json
from mulligan.console.cli.output import screen
from mulligan.console.http.models.health_models import (
    IncidentRow,
    ItemHealthRow,
    LoopHealthDocument,
    health_document,
    health_row,
)
from mulligan.policies.figures.format import duration
from mulligan.policies.loops.health import MissingSignal, missing_words
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.monitor import check_all, check_health
from mulligan.tasks.loops.view import view_loop, why_of

_GOOD = ("healthy", "idle")


def health(
    name: Annotated[
        str | None, typer.Argument(metavar="[LOOP]", help="Name of the loop; all without it.")
    ] = None,
    json: Json = False,
) -> None:
    """Say whether loops are alive, and which signal is missing.

    Exits with 0 if all of them are healthy or idle, else with 1.
    """
    with open_loops() as context:
        good = _show_all(context, json=json) if name is None else _show(context, name, json=json)
    raise typer.Exit(int(ExitCode.OK if good else ExitCode.SOME_FAILED))


def _show_all(context: LoopContext, *, json: bool) -> bool:
    rows, now = [health_row(each) for each in check_all(context)], context.ledger.now()
    if json:
        screen.emit({"loops": [row.model_dump(mode="json") for row in rows]})
    for row in rows if not json else ():
        because = _because(row.missing, row.since, row.item, now)
        if row.status == "idle":
            because = f": {row.state}" + (f", {row.reason}" if row.reason else "")
        screen.say(f"{row.id} is {row.status}{because}")
        _print_incidents(row.incidents, now)
    return all(row.status in _GOOD for row in rows)


def _show(context: LoopContext, name: str, *, json: bool) -> bool:
    view, now = view_loop(context, name), context.ledger.now()
    check, why = check_health(context, view), why_of(context, view)
    found = health_document(view, check, why, now=now, texts=True)
    if json:
        screen.emit(found.model_dump(mode="json"))
    else:
        _print(name, found, now)
    return found.status in _GOOD


def _print(name: str, found: LoopHealthDocument, now: float) -> None:
    silent = found.silent_seconds
    since = "" if silent is None else f", last heartbeat {duration(silent)} ago"
    screen.say(f"{name} is {found.status}{since}")
    if found.missing and not found.item:
        screen.say(f"  {missing_words(found.missing, found.since, now)}")
    if not found.items:
        screen.say(f"  {found.why.text}")
    for each in found.items:
        screen.say(f"  {_item_line(each, now)}")
    _print_incidents(found.incidents, now)


def _item_line(row: ItemHealthRow, now: float) -> str:
    parts = [
        f"{row.item} is {row.status}{_because(row.missing, row.since, None, now)}",
        f"waits for a {row.waits_on}" if row.waits_on else "",
        "its processes are stopped" if row.stopped else "",
        row.finding or "",
        f"on {row.worker}" if row.worker and row.waits_on != "worker" else "",
    ]
    return ", ".join(part for part in parts if part)


def _because(missing: MissingSignal, since: float | None, item: str | None, now: float) -> str:
    if not missing:
        return ""
    return f": {f'{item}: ' if item else ''}{missing_words(missing, since, now)}"


def _print_incidents(incidents: list[IncidentRow], now: float) -> None:
    for each in incidents:
        ago = duration(now - each.stepped_at)
        screen.say(f"  {each.step} {ago} ago (severity {each.severity}): {each.text}")
