"""Orders: let people say what happens to an item, overrule decisions, and give events off."""

from __future__ import annotations

import re
from dataclasses import replace

from mulligan.policies.coordination.decision import (
    MOST_DECISIONS,
    Decision,
    Overruling,
    overruling,
    replaced,
)
from mulligan.policies.coordination.order import ORDER_WORDS, ItemOrders, Order, OrderWord
from mulligan.policies.coordination.outer_waits import open_waits, wait_name
from mulligan.policies.figures.format import counted
from mulligan.policies.loops.commands import NotPossible
from mulligan.policies.loops.loop import DONE, GAVE_UP, ItemRecord, LoopChange, LoopSnapshot
from mulligan.policies.loops.plan import WORDS
from mulligan.policies.loops.spec import EVENT, NAME_PATTERN
from mulligan.tasks.loops.change import LoopConflict, change_loop
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import LoopReading, Requester

_LONGEST_EVENT = 80
#: What an order says about an item, for people.
ORDERED: dict[OrderWord, str] = {
    "first": "gets the next free slot",
    "hold": "gets no slot until the order ends",
    "ignore_locks": "need not wait for files that others change",
    "ignore_waits": "need not wait for other loops and events",
}


class NoSuchDecision(BadInput):
    """There is no decision of this number any more, or the caller may not see it."""


def give_order(
    context: LoopContext, name: str, item: str, word: OrderWord | None, caller: Requester
) -> LoopReading:
    """Say what happens to an item until it begins. None: the usual rules.

    Raises NoSuchLoop, or LoopConflict for an item that has a slot or has ended.
    """
    if word is not None and word not in ORDER_WORDS:
        raise BadInput.at("order", f"must be one of {', '.join(ORDER_WORDS)}")
    if word is not None:
        _refuse_if_running(context.ledger.read_loop(name), item)
    return change_loop(
        context,
        name,
        caller,
        lambda found, now: _ordered(found, item, word, caller.by, now),
    )


def _refuse_if_running(reading: LoopReading | None, item: str) -> None:
    """Refuse an order for an item that has a slot: it would count for its next run only."""
    if reading is None:
        return
    job_id, name = reading.snapshot.record(item).job_id, reading.snapshot.loop.name
    if job_id and any(each.job_id == job_id and each.loop == name for each in reading.fleet.live):
        raise LoopConflict(f"{item} runs: an order is for what waits")


def _ordered(
    snapshot: LoopSnapshot, item: str, word: OrderWord | None, by: str, now: float
) -> LoopChange:
    """Return the change that gives an order, or ends all of them. Raises NotPossible."""
    if snapshot.spec(item) is None:
        raise NotPossible(f"the loop has no item {item!r}")
    old = snapshot.orders_of(item)
    if word is None:
        return _changed(snapshot, item, replace(old, said=()), "follows the usual rules again", by)
    if word in old.words:
        return LoopChange()
    _refuse_unless_waiting(item, snapshot.record(item))
    new = old.with_order(Order(word=word, by=by, at=now))
    return _changed(snapshot, item, new, ORDERED[word], by, word)


def _refuse_unless_waiting(item: str, record: ItemRecord) -> None:
    if record.state not in ("pending", "ready", "blocked", "running"):
        raise NotPossible(f"{item} {WORDS[record.state]}: an order is for what waits")


def _changed(
    snapshot: LoopSnapshot,
    item: str,
    orders: ItemOrders,
    text: str,
    by: str,
    word: OrderWord | None = None,
) -> LoopChange:
    if orders == snapshot.orders_of(item):
        return LoopChange()
    decision = Decision(
        kind="order",
        loop=snapshot.loop.name,
        item=item,
        text=f"it {text}: by {by}",
        by=by,
        word=word,
    )
    return LoopChange(orders={item: orders}, decisions=(decision,), note=f"{item} {text}")


def find_decision(context: LoopContext, number: str, *, tenant: str | None = None) -> Decision:
    """Return a decision. Raises NoSuchDecision."""
    return _find(context, number, tenant)[0]


def _find(context: LoopContext, number: str, tenant: str | None) -> tuple[Decision, bool]:
    """Return a decision, and whether a later one replaces it. Raises NoSuchDecision."""
    found = context.ledger.coordination(limit=MOST_DECISIONS).decisions
    for each in found:
        if each.id == number and tenant in (None, each.tenant):
            return each, number in replaced(found)
    raise NoSuchDecision.at("decision", f"there is no decision {number!r}", "unknown_name")


def overrule(
    context: LoopContext, number: str, caller: Requester, *, tenant: str | None = None
) -> Overruling:
    """Do what overruling a decision means. Raises NoSuchDecision, or LoopConflict if it is late."""
    decision = find_decision(context, number, tenant=tenant)
    effect = overruling(replace(decision, overruled_by=""))
    if effect is None:
        raise LoopConflict(f"decision {number} cannot be overruled: nothing was decided against it")
    other = context.ledger.read_loop(effect.loop)
    if other is None or not other.snapshot.loop.is_of(tenant):  # its name may be another tenant's
        raise LoopConflict(f"decision {number} cannot be overruled: its other loop is not there")

    def decide(found: LoopSnapshot, now: float) -> LoopChange:
        # A repeated request has its key, and does not come here. Others may have come first.
        decision, is_replaced = _find(context, number, tenant)
        if by := decision.overruled_by:
            raise NotPossible(f"decision {number} cannot be overruled: {by} has done it")
        if effect.files:
            change = _without_files(found, effect)
        else:
            change = _overruled(found, effect, caller.by, now)
        if change.empty or is_replaced:
            raise NotPossible(f"decision {number} is not in force any more")
        return replace(change, overrules=number)

    if effect.word is not None and not decision.overruled_by:
        _refuse_if_running(other, effect.item)
    change_loop(context, effect.loop, caller, decide)
    return effect


def _overruled(snapshot: LoopSnapshot, effect: Overruling, by: str, now: float) -> LoopChange:
    """Return the change of an item's orders. Raises NotPossible."""
    if effect.word is not None:
        _refuse_unless_waiting(effect.item, snapshot.record(effect.item))
    orders = effect.applied(snapshot.orders_of(effect.item), by=by, at=now)
    again = f"waits for {wait_name(effect.wait)} again, and " if effect.wait else ""
    ended = f"has no order {effect.ends} any more"
    text = again + (ORDERED[effect.word] if effect.word is not None else ended)
    return _changed(snapshot, effect.item, orders, text, by, effect.word)


def does_something(
    effect: Overruling, record: ItemRecord, orders: ItemOrders, *, has_slot: bool
) -> bool:
    """Whether overruling a decision that nobody has replaced changes something about its item."""
    if effect.files:
        return record.state not in DONE
    waits = record.state not in (*DONE, *GAVE_UP) and not has_slot
    changes = effect.applied(orders, by="", at=0.0) != orders
    return changes and (waits or effect.word is None)


def _without_files(snapshot: LoopSnapshot, effect: Overruling) -> LoopChange:
    seen = snapshot.seen_files.get(effect.item, ())
    kept = tuple(each for each in seen if each not in effect.files)
    if kept == seen:
        return LoopChange()
    # The log is for everybody who sees the loop, and what was changed is not.
    note = f"{effect.item} does not declare {counted(len(effect.files), 'file')} any more"
    return LoopChange(seen_files={effect.item: kept}, note=note)


def emit(context: LoopContext, name: str, *, tenant: str, by: str, of: str = "") -> bool:
    """Give an event off. Return whether it was not there yet. Raises BadInput or LoopConflict.

    ``of``: the tenant of who does it, in which that name is used once; empty if it has none.
    """
    _check_event(name)
    answer, publish = context.ledger.emit_event(name, tenant=tenant, by=by, account=f"{of}/{by}")
    if answer == "full":
        raise LoopConflict(f"{by} gave off too many events that are kept: withdraw some of them")
    context.publish(publish)
    return answer == "emitted"


def count_waiting(context: LoopContext, name: str, *, tenant: str) -> int:
    """Return how many items wait for an event."""
    snapshots = context.ledger.loop_waits(context.ledger.coupled_loops())
    return sum(
        EVENT + name in open_waits(snapshot, spec, snapshot.record(spec.id))
        for snapshot in snapshots
        if snapshot.loop.tenant == tenant
        for spec in snapshot.specs
        if snapshot.record(spec.id).state == "pending"
    )


def withdraw(context: LoopContext, name: str, *, tenant: str) -> bool:
    """Take back an event that a person gave off. Return whether it was there.

    Raises BadInput, or LoopConflict for what items gave off.
    """
    _check_event(name)
    answer, publish = context.ledger.withdraw_event(name, tenant=tenant)
    if answer == "held":
        raise LoopConflict(f"items gave {name} off: it is withdrawn when they run again")
    context.publish(publish)
    return answer == "withdrawn"


def _check_event(name: str) -> None:
    if len(name) > _LONGEST_EVENT or not re.fullmatch(NAME_PATTERN, name):
        raise BadInput.at("event", "is not the name of an event, such as api-ready")
