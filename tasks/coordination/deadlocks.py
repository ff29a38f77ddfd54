"""Deadlocks: find items that wait for each other, and break the wait of the youngest.

The monitor does this now and then. Two at once do no harm: a wait is broken by an order for the
item, which is written by compare-and-swap, and an item that has one is not waiting any more.
"""

from __future__ import annotations

from collections.abc import Iterator

from mulligan.policies.coordination.decision import Decision
from mulligan.policies.coordination.order import DEADLOCK_RULE, Order
from mulligan.policies.coordination.wait_graph import Deadlock, WaitGraph, build_graph
from mulligan.policies.loops.heal_record import HealRecord
from mulligan.policies.loops.healing import PERSON
from mulligan.policies.loops.loop import LoopChange, LoopSnapshot
from mulligan.tasks.loops.change import NoSuchLoop, change_loop
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.ports.ledger import Coordination, Requester

_RULE = Requester(by=DEADLOCK_RULE)
#: Seconds for which an event that nobody waits for is kept.
EVENT_RETENTION = 30 * 86400.0


def run_coordination(context: LoopContext) -> int:
    """Break deadlocks, and forget old events. Return how much was done."""
    found = context.ledger.coordination(limit=0)
    return break_deadlocks(context, found) + forget_old_events(context, found)


def break_deadlocks(context: LoopContext, found: Coordination) -> int:
    """Break one wait of each deadlock. Return how many."""
    if not found.coupled:
        return 0
    deadlocks = read_graph(context, found).deadlocks()
    if not deadlocks:
        return 0
    # Loops are read one after the other. Who waited in both rounds waited at once between them.
    again = read_graph(context, found).deadlocks()
    certain = [each for each in deadlocks if each in again]
    for each in certain:
        _break(context, each)
    return len(certain)


def read_graph(context: LoopContext, found: Coordination) -> WaitGraph:
    """Return who waits for whom. All loops that could be part of a deadlock are coupled."""
    return build_graph([*coupled_snapshots(context, found)])


def coupled_snapshots(context: LoopContext, found: Coordination) -> Iterator[LoopSnapshot]:
    """Yield the loops that wait for others or for events, or that give events off."""
    readings = (context.ledger.read_loop(name) for name in sorted(found.coupled))
    return (each.snapshot for each in readings if each is not None)


def _break(context: LoopContext, deadlock: Deadlock) -> None:
    victim, wait = deadlock.victim, deadlock.wait

    def decide(found: LoopSnapshot, now: float) -> LoopChange:
        old = found.orders.get(victim.item)
        waits = old is not None and (old.word == "hold" or old.ignores(wait))
        if waits or found.record(victim.item).state != "pending":
            return LoopChange()
        return _broken(found, deadlock, old, now)

    try:
        change_loop(context, victim.loop, _RULE, decide)
    except NoSuchLoop:
        return  # it was deleted meanwhile


def _broken(
    snapshot: LoopSnapshot, deadlock: Deadlock, old: Order | None, now: float
) -> LoopChange:
    item, wait = deadlock.victim.item, deadlock.wait
    before = old.waits if old is not None and old.word == "ignore_waits" else ()
    order = Order(word="ignore_waits", by=DEADLOCK_RULE, at=now, waits=(*before, wait))
    why = f"deadlock: {deadlock}; {deadlock.victim.name} is the youngest"
    # Who sees the loop need not see the others: the decision names them to those who may.
    short = f"a deadlock of {len(deadlock.cycle)} items, of which it is the youngest"
    heal = HealRecord(
        number=max((each.number for each in snapshot.heals), default=0) + 1,
        at=now,
        item=item,
        action="escalate",
        parameter=PERSON,
        reason=f"it goes on without {wait}: {short}",
        pattern="deadlock",
        run=snapshot.record(item).runs,
        by=DEADLOCK_RULE,
    )
    decision = Decision(
        kind="deadlock",
        loop=snapshot.loop.name,
        item=item,
        text=f"{why}, so that it goes on without {wait}",
        other=wait if "/" in wait else "",
        by=DEADLOCK_RULE,
    )
    return LoopChange(
        orders={item: order},
        decisions=(decision,),
        heals=(heal,),
        note=f"{item} goes on without {wait}: {short}",
    )


def forget_old_events(context: LoopContext, found: Coordination) -> int:
    """Forget events that nobody has waited for in a long time. Return how many."""
    old = [e for e in found.events if context.ledger.now() - e.at > EVENT_RETENTION]
    return context.ledger.forget_events(old)
