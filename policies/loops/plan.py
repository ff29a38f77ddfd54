"""Plan a loop: which items may run, which are blocked, and what state the loop itself is in."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import TopologicalSorter

from mulligan.policies.loops.budget import breaches
from mulligan.policies.loops.loop import (
    DONE,
    GAVE_UP,
    PLANNED,
    ItemRecord,
    ItemState,
    LoopChange,
    LoopSnapshot,
    LoopState,
)
from mulligan.policies.loops.spec import ItemSpec, OnBlocked

#: How sentences about an item go on.
WORDS: dict[ItemState, str] = {
    "pending": "is pending",
    "ready": "is ready",
    "running": "is running",
    "passed": "passed",
    "failed": "failed",
    "quarantined": "is quarantined",
    "blocked": "is blocked",
    "skipped": "was skipped",
}
#: States that depend on other items only. The others end by a job or a person.
_PLANNED_ITEMS = frozenset({"pending", "ready", "blocked"})


def plan_loop(snapshot: LoopSnapshot, now: float) -> LoopChange:
    """Return every transition that follows from the snapshot; nothing if it is up to date."""
    items = _plan_items(snapshot, now)
    planned = {**snapshot.items, **items}
    state, reason = _plan_state(snapshot, planned)
    loop = snapshot.loop
    if (state, reason) == (loop.state, loop.reason):
        return LoopChange(items=items)
    return LoopChange(
        items=items,
        state=state,
        reason=reason,
        paused_by="budget" if state == "paused" else "",
        note=f"{state}: {reason}" if reason else state,
    )


def _plan_items(snapshot: LoopSnapshot, now: float) -> dict[str, ItemRecord]:
    """Return the new records of the items whose dependencies changed."""
    records = {spec.id: snapshot.record(spec.id) for spec in snapshot.specs}
    changed: dict[str, ItemRecord] = {}
    for spec in in_order(snapshot.specs):
        record = records[spec.id]
        if record.state not in _PLANNED_ITEMS:
            continue
        blocker = _blocker(spec, records, snapshot.config.on_blocked)
        if blocker is not None:
            planned = record.moved("blocked", now=now, reason=blocker)
        elif all(_satisfied(records[each], snapshot.config.on_blocked) for each in spec.depends_on):
            planned = record.moved("ready", now=now)
        else:
            planned = record.moved("pending", now=now)
        if (planned.state, planned.reason) != (record.state, record.reason):
            records[spec.id] = changed[spec.id] = planned
    return changed


def in_order(specs: Sequence[ItemSpec]) -> Sequence[ItemSpec]:
    """Return the items, each after those that it depends on. Loops have no cycles: see commands."""
    by_id = {spec.id: spec for spec in specs}
    after = {spec.id: [each for each in spec.depends_on if each in by_id] for spec in specs}
    return [by_id[name] for name in TopologicalSorter(after).static_order()]


def _satisfied(record: ItemRecord, on_blocked: OnBlocked) -> bool:
    return record.state in DONE or (on_blocked == "continue" and record.state in GAVE_UP)


def _blocker(spec: ItemSpec, records: dict[str, ItemRecord], on_blocked: OnBlocked) -> str | None:
    """Return why an item cannot run until a person acts, if it cannot."""
    for each in spec.depends_on:
        record = records.get(each)
        if record is None:
            return f"{each} does not exist"
        if record.state == "blocked":
            return record.reason
        if record.state in GAVE_UP and on_blocked == "wait":
            return (
                f"{each} {record.state}" if record.state == "failed" else f"{each} is quarantined"
            )
    return None


def _plan_state(snapshot: LoopSnapshot, items: dict[str, ItemRecord]) -> tuple[LoopState, str]:
    loop = snapshot.loop
    broken = breaches(snapshot.config.budget, snapshot.used)
    if loop.state == "paused" and loop.paused_by == "budget" and not broken:
        return _running_state(snapshot, items)
    if loop.state not in PLANNED:
        return loop.state, loop.reason
    state, reason = _running_state(snapshot, items)
    if broken and state != "completed":
        scope, resource = broken[0]
        return "paused", f"the {scope} budget of {resource} is used up"
    return state, reason


def _running_state(snapshot: LoopSnapshot, items: dict[str, ItemRecord]) -> tuple[LoopState, str]:
    states = [items[spec.id].state for spec in snapshot.specs if spec.id in items]
    if all(state in DONE for state in states):
        return "completed", ""
    if any(state in ("running", "ready") for state in states):
        return "running", ""
    stuck = next(
        spec.id for spec in snapshot.specs if items[spec.id].state in (*GAVE_UP, "blocked")
    )
    record = items[stuck]
    return "blocked", f"{stuck} {WORDS[record.state]}"
