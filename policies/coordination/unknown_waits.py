"""What items wait for outside their loop that is not there: perhaps not yet, perhaps misspelt."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mulligan.policies.loops.spec import EVENT, MOST_HINTS, ItemSpec
from mulligan.policies.suggestions import did_you_mean


@dataclass(frozen=True, kw_only=True)
class UnknownWait:
    """A wait for something that is not there."""

    #: The place of the item among those of its loop.
    index: int
    item: str
    message: str


def unknown_waits(
    items: Sequence[ItemSpec], loops: Mapping[str, Collection[str]], events: Collection[str]
) -> Iterator[UnknownWait]:
    """Yield the waits of items that nothing would end now.

    ``loops``: the other loops with their items. ``events``: those that are there, or that items of
    others give off.
    """
    given = {*events, *(each for item in items for each in item.emits)}
    hints = MOST_HINTS
    for index, item in enumerate(items):
        for wait in item.outer_waits:
            found = _unknown(wait, loops, given)
            if found is not None:
                message, name, known = found
                hint = did_you_mean(name, known) if hints > 0 else ""
                hints -= 1
                yield UnknownWait(index=index, item=item.id, message=f"{message}{hint}")


def _unknown(
    wait: str, loops: Mapping[str, Collection[str]], events: Collection[str]
) -> tuple[str, str, Collection[str]] | None:
    """Return what is said of a wait, the name that is not known, and those that are."""
    if wait.startswith(EVENT):
        event = wait.removeprefix(EVENT)
        message = f"waits for the event {event}, which nothing gives off yet"
        return None if event in events else (message, event, events)
    loop, _, item = wait.partition("/")
    if loop not in loops:
        return f"waits for {wait}: there is no loop {loop!r} yet", loop, loops
    if item not in loops[loop]:
        return f"waits for {wait}: that loop has no item {item!r} yet", item, loops[loop]
    return None
