"""Deadlocks: find items that wait for each other, and break the wait of the youngest.

The monitor does this now and then. Two at once do no harm: that a wait is broken is kept with the
orders of its item and written by compare-and-swap, and the item does not wait any more.
"""

from __future__ import annotations

from mulligan.policies.coordination.decision import Decision
from mulligan.policies.coordination.order import DEADLOCK_RULE
from mulligan.policies.coordination.outer_waits import wait_name
from mulligan.policies.coordination.wait_graph import Deadlock, build_graph
from mulligan.policies.loops.heal_record import HealRecord
from mulligan.policies.loops.healing import PERSON
from mulligan.policies.loops.loop import LoopChange, LoopSnapshot
from mulligan.tasks.loops.change import NoSuchLoop, change_loop
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.ports.ledger import Requester

_RULE = Requester(by=DEADLOCK_RULE)
#: Seconds for which an event that nobody waits for is kept.
EVENT_RETENTION = 30 * 86400.0
#: Waits that one look breaks: each is a write of its own.
_MOST_BROKEN = 100


def run_coordination(context: LoopContext) -> int:
    """Break deadlocks, and forget old events. Return how much was done."""
    old = context.ledger.now() - EVENT_RETENTION
    return break_deadlocks(context) + context.ledger.forget_events(before=old)


def break_deadlocks(context: LoopContext) -> int:
    """Break one wait of each deadlock, of many at once only of the first. Return how many."""
    deadlocks = _find_deadlocks(context)
    if not deadlocks:
        return 0
    # Loops are read one after the other. Who waited in both rounds waited at once between them.
    again = {*_find_deadlocks(context)}
    certain = [each for each in deadlocks if each in again][:_MOST_BROKEN]
    for each in certain:
        _break(context, each)
    return len(certain)


def _find_deadlocks(context: LoopContext) -> list[Deadlock]:
    """Return all deadlocks. All loops that could be part of one are coupled."""
    loops = context.ledger.coupled_loops()
    return build_graph([*context.ledger.loop_waits(loops)]).deadlocks()


def _break(context: LoopContext, deadlock: Deadlock) -> None:
    victim, wait = deadlock.victim, deadlock.wait

    def decide(found: LoopSnapshot, now: float) -> LoopChange:
        ignored = found.orders_of(victim.item).ignores(wait)
        if ignored or found.held_by(victim.item) or found.record(victim.item).state != "pending":
            return LoopChange()
        return _broken(found, deadlock, now)

    try:
        change_loop(context, victim.loop, _RULE, decide)
    except NoSuchLoop:
        return  # it was deleted meanwhile


def _broken(snapshot: LoopSnapshot, deadlock: Deadlock, now: float) -> LoopChange:
    item, wait = deadlock.victim.item, deadlock.wait
    goes_on = f"does not wait for {wait_name(wait)} any more"
    # Who sees the loop need not see the others: the decision names them to those who may.
    short = f"a deadlock of {len(deadlock.cycle)} items, of which it is {deadlock.rank}"
    heal = HealRecord(
        number=max((each.number for each in snapshot.heals), default=0) + 1,
        at=now,
        item=item,
        action="escalate",
        parameter=PERSON,
        reason=f"it {goes_on}: {short}",
        pattern="deadlock",
        run=snapshot.record(item).runs,
        by=DEADLOCK_RULE,
    )
    decision = Decision(
        kind="deadlock",
        loop=snapshot.loop.name,
        item=item,
        text=f"deadlock: {deadlock}; {deadlock.victim.name} is {deadlock.rank}: it {goes_on}",
        other=wait if "/" in wait else "",
        wait=wait,
        by=DEADLOCK_RULE,
    )
    return LoopChange(
        orders={item: snapshot.orders_of(item).without_wait(wait)},
        decisions=(decision,),
        heals=(heal,),
        note=f"{item} {goes_on}: {short}",
    )
