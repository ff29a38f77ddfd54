"""What items wait for outside their loop: items of other loops, and events."""

from __future__ import annotations

from mulligan.policies.loops.loop import DONE, GAVE_UP, ItemRecord, LoopSnapshot
from mulligan.policies.loops.spec import EVENT, ItemSpec

#: Why an item was skipped whose parts do its work. read_loop.lua knows it, too.
SPLIT_INTO = "split into "
#: The state of an event that was given off, beside the states of items.
EMITTED = "emitted"


def open_waits(snapshot: LoopSnapshot, spec: ItemSpec, record: ItemRecord) -> list[str]:
    """Return what an item waits for outside its loop, as in `ItemSpec.outer_waits`.

    An event is taken once, when the item first begins: after that, it does not wait for it again.
    """
    if not spec.depends_on and not spec.waits_for:
        return []
    order = snapshot.orders.get(spec.id)
    return [
        each
        for each in spec.outer_waits
        if not (each.startswith(EVENT) and record.runs)
        and not _is_met(snapshot, each)
        and not (order is not None and order.ignores(each))
    ]


def _is_met(snapshot: LoopSnapshot, wait: str) -> bool:
    state = snapshot.outer.get(wait, "")
    return (
        state == EMITTED
        or state in DONE
        or (state in GAVE_UP and snapshot.config.on_blocked == "continue")
    )


def wait_words(wait: str, state: str) -> str:
    """Return how a sentence names what an item waits for outside its loop."""
    if wait.startswith(EVENT):
        return f"the event {wait.removeprefix(EVENT)}"
    return f"{wait} ({state or 'which does not exist'})"


def is_split(record: ItemRecord) -> bool:
    """Whether an item is done by its parts."""
    return record.state == "skipped" and record.reason.startswith(SPLIT_INTO)


def due_events(snapshot: LoopSnapshot) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the items whose events are to be given off now with their runs, and to be withdrawn.

    The events of an item that runs again, because its work was rolled back, are withdrawn: who has
    not taken them waits again.
    """
    emit, withdraw = dict[str, int](), list[str]()
    for spec in snapshot.specs:
        if not spec.emits:
            continue
        record, emitted = snapshot.record(spec.id), snapshot.emitted.get(spec.id)
        if is_split(record) or snapshot.loop.state == "created":
            continue  # its last part gives the events off
        if record.state in DONE and emitted != record.runs:
            emit[spec.id] = record.runs
        elif record.state not in DONE and emitted is not None:
            withdraw.append(spec.id)
    return emit, tuple(withdraw)
