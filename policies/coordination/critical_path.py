"""What others wait for: the longest chain after an item, and the most urgent loop behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mulligan.policies.coordination.outer_waits import open_waits
from mulligan.policies.loops.admission import LEAST_URGENT
from mulligan.policies.loops.loop import DONE, LoopSnapshot
from mulligan.policies.loops.plan import in_order
from mulligan.policies.loops.spec import EVENT


@dataclass(frozen=True, kw_only=True)
class WaitingLoop:
    """A loop that waits for others."""

    loop: str
    tenant: str
    #: What for, as in `ItemSpec.outer_waits` → the priority with which it waits.
    asks: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Weight:
    """How much waits for an item."""

    #: Items of its loop on the longest chain after it that are not done.
    chain: int = 0
    #: The priority of the most urgent loop that waits for it or for what comes after it.
    urgency: int = LEAST_URGENT


def weigh_items(
    snapshot: LoopSnapshot, waiting: Sequence[WaitingLoop] = ()
) -> Mapping[str, Weight]:
    """Return how much waits for each item that is not done."""
    urgent = _urgent_waits(snapshot, waiting)
    chain, urgency = dict[str, int](), dict[str, int]()
    for spec in reversed(in_order(snapshot.specs)):
        if snapshot.record(spec.id).state in DONE:
            continue
        names = (f"{snapshot.loop.name}/{spec.id}", *(EVENT + each for each in spec.emits))
        own = [urgent[each] for each in names if each in urgent]
        urgency[spec.id] = min([*own, urgency.get(spec.id, LEAST_URGENT)])
        chain.setdefault(spec.id, 0)
        for each in spec.own_dependencies:
            chain[each] = max(chain.get(each, 0), chain[spec.id] + 1)
            urgency[each] = min(urgency.get(each, LEAST_URGENT), urgency[spec.id])
    return {
        spec.id: Weight(chain=chain[spec.id], urgency=urgency[spec.id])
        for spec in snapshot.specs
        if snapshot.record(spec.id).state not in DONE
    }


def _urgent_waits(snapshot: LoopSnapshot, waiting: Sequence[WaitingLoop]) -> dict[str, int]:
    """Return what other loops of the tenant wait for, with the most urgent of their priorities."""
    found = dict[str, int]()
    for loop in waiting:
        if loop.tenant == snapshot.loop.tenant and loop.loop != snapshot.loop.name:
            for wait, priority in loop.asks.items():
                found[wait] = min(found.get(wait, LEAST_URGENT), priority)
    return found


def asks_of(snapshot: LoopSnapshot, weights: Mapping[str, Weight]) -> dict[str, int]:
    """Return what a loop waits for outside of it now, each with the most urgent priority.

    What waits for one of its items may be more urgent than the loop itself.
    """
    found = dict[str, int]()
    for spec in snapshot.specs:
        record = snapshot.record(spec.id)
        for wait in open_waits(snapshot, spec, record) if record.state == "pending" else ():
            urgency = min(snapshot.config.priority, weights[spec.id].urgency)
            found[wait] = min(found.get(wait, LEAST_URGENT), urgency)
    return found
