"""Admit items to the slots that all loops share: priority, then fair shares, then age.

Stride scheduling: each loop has a place on the line of its priority, the one that is furthest
behind goes next, and going moves it by 1/weight. A loop that was idle starts where the others are:
it may not catch up on what it did not ask for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, kw_only=True)
class WaitingItem:
    """An item that waits for a slot."""

    item: str
    priority: int = 5
    since: float = 0.0
    #: The job that it has begun: it lost its slot while it waited for something else.
    job_id: str = ""

    @property
    def rank(self) -> tuple[bool, int, float, str]:
        return (not self.job_id, self.priority, self.since, self.item)


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What one loop asks for."""

    loop: str
    priority: int = 5
    weight: float = 1.0
    #: The loop's place on the line of its priority.
    share: float = 0.0
    #: How many more of its items may run.
    room: int = 1
    candidates: Sequence[WaitingItem] = ()


def most_begun(concurrency: int) -> int:
    """Return how many items of a loop may have begun.

    Those that wait for a provider or a pause have no slot, so that others can go on. But a loop
    must not begin all its items while nothing can be done: each has its deadline from then on.
    """
    return 2 * concurrency


def demand_of(
    loop: str,
    *,
    priority: int,
    weight: float,
    share: float,
    concurrency: int,
    live: Collection[str],
    begun: int,
    affordable: int | None,
    waiting: Sequence[WaitingItem],
    ready: Sequence[WaitingItem],
) -> Demand:
    """Return what a loop asks for.

    ``live``: its items that have a slot, also those that were stopped and have not ended: none of
    them runs twice at once; ``begun``: how many have a job that has not ended;
    ``affordable``: how many more its budget allows; ``waiting``: what has begun and lost its slot.
    """
    room = concurrency - len(live)
    idle = [each for each in ready if each.item not in live]
    first = sorted(idle, key=lambda each: each.rank)[: max(0, most_begun(concurrency) - begun)]
    return Demand(
        loop=loop,
        priority=priority,
        weight=weight,
        share=share,
        room=room if affordable is None else min(room, affordable),
        candidates=[*waiting, *first],
    )


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """One item that gets a slot, and why it was its turn."""

    loop: str
    candidate: WaitingItem
    because: str


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Who goes next, and the new places of their loops."""

    admitted: tuple[Admitted, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    #: Where the line of each priority begins now.
    lines: Mapping[int, float] = field(default_factory=dict)


def admit(
    demands: Sequence[Demand], free_slots: int, lines: Mapping[int, float] | None = None
) -> Admission:
    """Give the free slots to the loops' items. ``lines``: where each priority's line begins."""
    starts = dict(lines or {})
    waiting = {
        each.loop: replace(
            each,
            share=max(each.share, starts.get(each.priority, 0.0)),
            candidates=sorted(each.candidates, key=lambda candidate: candidate.rank),
        )
        for each in demands
        if each.candidates and each.room > 0
    }
    admitted: list[Admitted] = []
    shares: dict[str, float] = {}
    while waiting and len(admitted) < free_slots:
        order = sorted(waiting.values(), key=_turn)
        first, other = order[0], order[1] if len(order) > 1 else None
        admitted.append(
            Admitted(loop=first.loop, candidate=first.candidates[0], because=_because(first, other))
        )
        starts[first.priority] = first.share
        moved = replace(
            first,
            share=first.share + 1 / first.weight,
            room=first.room - 1,
            candidates=first.candidates[1:],
        )
        shares[first.loop] = moved.share
        if moved.room > 0 and moved.candidates:
            waiting[first.loop] = moved
        else:
            del waiting[first.loop]
    return Admission(admitted=tuple(admitted), shares=shares, lines=starts)


def _turn(demand: Demand) -> tuple[int, float, str]:
    return (demand.priority, demand.share, demand.loop)


def _because(first: Demand, other: Demand | None) -> str:
    if other is None:
        return "no other loop waits"
    if first.priority != other.priority:
        return f"priority {first.priority} before {other.loop} with {other.priority}"
    if first.share == other.share:
        return f"share {first.share:.4g}, the same as {other.loop}: in the order of their names"
    return (
        f"share {first.share:.4g} (weight {first.weight:g})"
        f" before {other.loop} with {other.share:.4g} (weight {other.weight:g})"
    )
