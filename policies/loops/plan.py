"""Plan a loop: which items may run, which are blocked, and what state the loop itself is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from graphlib import TopologicalSorter

from mulligan.policies.coordination.outer_waits import due_events, open_waits, wait_words
from mulligan.policies.loops.budget import Resource, SharedScope, breaches
from mulligan.policies.loops.loop import (
    DONE,
    GAVE_UP,
    PLANNED,
    ItemRecord,
    ItemState,
    LoopChange,
    LoopSnapshot,
    LoopState,
    short_reason,
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
    state, reason = _plan_state(replace(snapshot, items={**snapshot.items, **items}))
    loop = snapshot.loop
    emit = due_events(replace(snapshot, items={**snapshot.items, **items}))
    if (state, reason) == (loop.state, loop.reason):
        return LoopChange(items=items, emit=emit)
    return LoopChange(
        items=items,
        emit=emit,
        state=state,
        reason=reason,
        paused_by="budget" if state == "paused" else "",
        note=f"{state}: {reason}" if reason else state,
    )


def _plan_items(snapshot: LoopSnapshot, now: float) -> dict[str, ItemRecord]:
    """Return the new records of the items whose dependencies changed."""
    records = {spec.id: snapshot.record(spec.id) for spec in snapshot.specs}
    on_blocked = snapshot.config.on_blocked
    changed: dict[str, ItemRecord] = {}
    for spec in in_order(snapshot.specs):
        record = records[spec.id]
        if record.state not in _PLANNED_ITEMS:
            continue
        blocker = _blocker(spec, records, on_blocked)
        state: ItemState = "pending"
        if blocker is not None:
            state = "blocked"
        elif all(
            satisfied(records[each], on_blocked) for each in spec.own_dependencies
        ) and not open_waits(snapshot, spec, record):
            state = "ready"
        reason = short_reason(blocker or "")
        if (state, reason) != (record.state, record.reason):
            records[spec.id] = changed[spec.id] = record.moved(state, now=now, reason=reason)
    return changed


def in_order(specs: Sequence[ItemSpec]) -> Sequence[ItemSpec]:
    """Return the items, each after those that it depends on. Loops have no cycles: see commands."""
    by_id = {spec.id: spec for spec in specs}
    after = {spec.id: [each for each in spec.own_dependencies if each in by_id] for spec in specs}
    seen: set[str] = set()
    for name, dependencies in after.items():
        if not seen.issuperset(dependencies):
            return [by_id[each] for each in TopologicalSorter(after).static_order()]
        seen.add(name)
    return specs  # as most people write them, which costs a tenth of sorting


def satisfied(record: ItemRecord, on_blocked: OnBlocked) -> bool:
    """Return whether an item may run after this one."""
    return record.state in DONE or (on_blocked == "continue" and record.state in GAVE_UP)


def _blocker(spec: ItemSpec, records: dict[str, ItemRecord], on_blocked: OnBlocked) -> str | None:
    """Return why an item cannot run until a person acts, if it cannot."""
    for each in spec.own_dependencies:
        record = records.get(each)
        if record is None:
            return f"{each} does not exist"
        if record.state == "blocked":
            return record.reason
        if record.state in GAVE_UP and on_blocked != "continue":
            return f"{each} {WORDS[record.state]}"
    return None


def _plan_state(snapshot: LoopSnapshot) -> tuple[LoopState, str]:
    loop = snapshot.loop
    paused_by_budget = loop.state == "paused" and loop.paused_by == "budget"
    if loop.state not in PLANNED and not paused_by_budget:
        return loop.state, loop.reason
    state, reason = running_state(snapshot)
    broken = breaches(snapshot.config.budget, snapshot.used)
    if broken and state != "completed":
        return "paused", used_up(*broken[0])
    return state, reason


def used_up(scope: SharedScope, resource: Resource) -> str:
    return f"the {scope} budget of {resource} is used up"


def running_state(snapshot: LoopSnapshot) -> tuple[LoopState, str]:
    """Return the state of a loop that may run, and its reason. The first that fits counts.

    1. ``completed``: every item is done.
    2. ``running``: an item has begun, or is ready and nobody holds it.
    3. ``blocked``: an item gave up, or depends on what did. That needs a person, whatever others
       wait for, who go on by themselves.
    4. ``waiting``: for other loops, for events, or for the end of an order.
    """
    records = [snapshot.record(spec.id) for spec in snapshot.specs]
    if all(record.state in DONE for record in records):
        return "completed", ""
    if any(
        record.state == "running" or (record.state == "ready" and not snapshot.held_by(spec.id))
        for spec, record in zip(snapshot.specs, records, strict=True)
    ):
        return "running", ""
    if stuck := stuck_items(snapshot):
        record = snapshot.record(stuck[0])
        words = f"{stuck[0]} {WORDS[record.state]}"
        return "blocked", record.reason if record.state == "blocked" else words
    return "waiting", waiting_reason(snapshot)  # for nothing of its own loop: see _plan_items


def waiting_item(snapshot: LoopSnapshot) -> str | None:
    """Return the first item that waits for what is outside the loop, or that a person holds."""
    for spec in snapshot.specs:
        record = snapshot.record(spec.id)
        if record.state == "pending" and open_waits(snapshot, spec, record):
            return spec.id
        if record.state == "ready" and snapshot.held_by(spec.id):
            return spec.id
    return None


def waiting_reason(snapshot: LoopSnapshot) -> str:
    """Say what the `waiting_item` waits for, or who holds it; nothing if there is none."""
    item = waiting_item(snapshot)
    spec = None if item is None else snapshot.spec(item)
    if spec is None:
        return ""
    if by := snapshot.held_by(spec.id):
        return f"{spec.id} is held by {by}"
    wait = open_waits(snapshot, spec, snapshot.record(spec.id))[0]
    state = snapshot.outer.get(wait, "")
    # The state of another item changes without this loop.
    return f"{spec.id} waits for {wait if state else wait_words(wait, state)}"


def stuck_items(snapshot: LoopSnapshot) -> list[str]:
    """Return the items that cannot go on without a person, those that gave up first."""
    gave_up = [s.id for s in snapshot.specs if snapshot.record(s.id).state in GAVE_UP]
    blocked = [s.id for s in snapshot.specs if snapshot.record(s.id).state == "blocked"]
    return gave_up + blocked
