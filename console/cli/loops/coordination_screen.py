"""What loops have to do with each other, as people see it on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.console.cli.output import screen
from mulligan.console.http.models.coordination_models import (
    CoordinationDocument,
    DecisionRow,
    EventRow,
    LockRow,
    OrderRow,
    WaitingRow,
    WaitRow,
)
from mulligan.policies.coordination.outer_waits import wait_name, wait_words
from mulligan.policies.figures.format import duration, timestamp
from mulligan.tasks.coordination.orders import ORDERED


def print_coordination(found: CoordinationDocument, now: float) -> None:
    totals = found.totals
    _print("files", [_lock(each, now) for each in found.locks], totals.locks)
    denied = [
        f"{d.loop}/{d.test} waits for {d.files}: {d.holder}"
        f" {'waits for it longer' if d.reserved else 'has it'}"
        for d in found.denied
    ]
    _print("waiting for files", denied, totals.denied)
    _print("waiting for others", [_waiting(each, now) for each in found.waiting], totals.waiting)
    deadlocks = [
        f"{' → '.join([*each.cycle, each.cycle[0]])}: {each.test} will not wait for"
        f" {wait_name(each.wait)} any more"
        for each in found.deadlocks
    ]
    _print("deadlocks", deadlocks, len(deadlocks))
    events = [_event(each, now) for each in found.events]
    _print("events", events, totals.events)
    _print("orders", [_order(each, now) for each in found.orders], totals.orders)
    decisions = [line for each in found.decisions for line in _decision(each)]
    _print("decisions", decisions, len(decisions))
    if not any((found.locks, denied, found.waiting, events, found.orders, decisions)):
        screen.say("loops have nothing to do with each other")


def _print(title: str, lines: Sequence[str], total: int) -> None:
    if not lines:
        return
    screen.say(title, style="bold")
    for each in lines:
        screen.say(f"  {each}")
    if total > len(lines):
        screen.note(f"{total - len(lines):,} more: --limit {total}")


def _lock(row: LockRow, now: float) -> str:
    lost = f"; others may take them in {duration(row.expires - now)}" if row.expires else ""
    return f"{row.loop}/{row.test} has {', '.join(row.files)} for {duration(now - row.since)}{lost}"


def _waiting(row: WaitingRow, now: float) -> str:
    waits = ", ".join(_wait(each) for each in row.waits)
    held = ", and a person holds it" if row.held else ""
    return f"{row.loop}/{row.test} waits for {waits}{held}, for {duration(now - row.since)}"


def _wait(row: WaitRow) -> str:
    more = [f"{row.more:,} more"] if row.more else []
    by = f" of {', '.join([*row.by, *more])}" if row.what.startswith("event:") and row.by else ""
    return f"{wait_words(row.what, row.state)}{by}"


def _event(row: EventRow, now: float) -> str:
    tenant = f" of {row.tenant}" if row.tenant else ""
    more = f" and {row.more:,} more" if row.more else ""
    return f"{row.event}{tenant}, {duration(now - row.at)} ago by {row.by}{more}"


def _order(row: OrderRow, now: float) -> str:
    return (
        f"{row.loop}/{row.test} {ORDERED[row.order]}: by {row.by}, {duration(now - row.at)} ago;"
        f" to end it: mulligan loops order {row.loop} {row.test} none"
    )


def _decision(row: DecisionRow) -> list[str]:
    lines = [f"{row.number}  {timestamp(row.at, None)}  {row.loop}/{row.test}: {row.text}"]
    if row.overruled_by:
        lines.append(f"    overruled by {row.overruled_by}")
    elif row.overruling is not None:
        lines.append(f"    mulligan loops overrule {row.number}: {row.overruling.text}")
    return lines
