"""What items wait for outside their loop: items of other loops, and events."""

from __future__ import annotations

from mulligan.policies.loops.loop import DONE, GAVE_UP, ItemRecord, LoopSnapshot
from mulligan.policies.loops.spec import EVENT, ItemSpec

#: The state of an event that was given off, beside the states of items.
EMITTED = "emitted"


def open_waits(snapshot: LoopSnapshot, spec: ItemSpec, record: ItemRecord) -> list[str]:
    """Return what an item waits for outside its loop, as in `ItemSpec.outer_waits`.

    An event is taken once, when the item first begins: after that, it does not wait for it again.
    """
    if not spec.depends_on and not spec.waits_for:
        return []
    orders = snapshot.orders_of(spec.id)
    return [
        each
        for each in spec.outer_waits
        if not (each.startswith(EVENT) and record.runs)
        and not _is_met(snapshot, each)
        and not orders.ignores(each)
    ]


def _is_met(snapshot: LoopSnapshot, wait: str) -> bool:
    state = snapshot.outer.get(wait, "")
    return (
        state == EMITTED
        or state in DONE
        or (state in GAVE_UP and snapshot.config.on_blocked == "continue")
    )


def wait_name(wait: str) -> str:
    """Return how a sentence names what an item waits for outside its loop."""
    return f"the event {wait.removeprefix(EVENT)}" if wait.startswith(EVENT) else wait


def wait_words(wait: str, state: str) -> str:
    """Return the same with the state of the item."""
    if wait.startswith(EVENT):
        return wait_name(wait)
    return f"{wait} ({state or 'which does not exist'})"


def due_events(snapshot: LoopSnapshot) -> dict[str, int]:
    """Return the items whose events are to be given off now, with their runs.

    With an item that runs again they are withdrawn: see coordination.lua.
    """
    if snapshot.loop.state == "created":
        return {}
    done = (
        (spec.id, snapshot.record(spec.id))
        for spec in snapshot.specs
        if spec.emits and not snapshot.is_split(spec.id)  # its last part gives the events off
    )
    return {
        item: record.runs
        for item, record in done
        if record.state in DONE and snapshot.emitted.get(item) != record.runs
    }
