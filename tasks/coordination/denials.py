"""Denials: which items are kept from files now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mulligan.policies.coordination.locks import Denial, FileLock
from mulligan.tasks.loops.context import LoopContext


def standing_denials(
    context: LoopContext, denied: Mapping[str, str], locks: Iterable[FileLock]
) -> dict[str, Denial]:
    """Return the denials that hold items back now, by `loop/item`.

    A denial is stored when it is made. Since then, who was denied the files may wait no more, who
    has them may have given them back, and who waits for them longer may have them, or not wait.
    """
    holders = {each.name for each in locks}
    found = {name: Denial.parse(text) for name, text in denied.items()}
    waiting = _waiting(context, {*found, *(each.holder for each in found.values())})
    return {
        name: replace(each, reserved=each.holder not in holders)
        for name, each in found.items()
        if name in waiting and (each.holder in holders or each.holder in waiting)
    }


def _waiting(context: LoopContext, names: Iterable[str]) -> set[str]:
    """Return which of these items wait for a slot in a loop that runs."""
    asked = sorted(names)
    if not asked:
        return set()
    running = {each.name for each in context.ledger.loops() if each.state == "running"}
    loops = sorted({name.partition("/")[0] for name in asked} & running)
    items = dict(zip(loops, context.ledger.loop_items(loops), strict=True))
    return {
        name
        for name in asked
        if (record := items.get(name.partition("/")[0], {}).get(name.partition("/")[2]))
        and record.state in ("ready", "running")
    }
