"""View: what loops have to do with each other, as people and programs see it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mulligan.policies.coordination.decision import (
    MOST_DECISIONS,
    Decision,
    Overruling,
    overruling,
    replaced,
)
from mulligan.policies.coordination.locks import FileLock
from mulligan.policies.coordination.order import NO_ORDERS, ItemOrders, Order
from mulligan.policies.coordination.wait_graph import Deadlock, WaitGraph, WaitingNode, build_graph
from mulligan.policies.loops.loop import ItemRecord, LoopSnapshot
from mulligan.policies.loops.spec import EVENT
from mulligan.tasks.coordination.denials import standing_denials
from mulligan.tasks.coordination.orders import does_something
from mulligan.tasks.loops.change import no_such_loop
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.view import ANOTHER
from mulligan.tasks.ports.ledger import Coordination, EmittedEvent

#: An item in a sentence about a deadlock.
_ITEM = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*)/[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True)
class DeniedItem:
    """An item that waits for files that another one has."""

    loop: str
    item: str
    holder: str
    files: str
    #: Whether the other one waits for them, too, and longer.
    reserved: bool = False

    @property
    def name(self) -> str:
        return f"{self.loop}/{self.item}"


@dataclass(frozen=True, kw_only=True)
class OrderedItem:
    """An item with an order that is in force."""

    loop: str
    item: str
    order: Order

    @property
    def name(self) -> str:
        return f"{self.loop}/{self.item}"


@dataclass(frozen=True, kw_only=True)
class CoordinationView:
    """Who has which files, who waits for whom, and what was decided, as the caller may see it."""

    locks: Sequence[FileLock]
    denied: Sequence[DeniedItem]
    events: Sequence[EmittedEvent]
    graph: WaitGraph
    deadlocks: Sequence[Deadlock]
    #: The newest first; the names of other loops are replaced where the caller may not see them.
    decisions: Sequence[Decision]
    #: A loop and what its items wait for → the state of that; empty if there is none.
    states: Mapping[tuple[str, str], str] = field(default_factory=dict)
    #: What overruling the decisions does, by their ids: if the caller may, and it does something.
    overrulings: Mapping[str, Overruling] = field(default_factory=dict)
    #: The orders that are in force, the oldest first.
    orders: Sequence[OrderedItem] = ()


def view_coordination(
    context: LoopContext,
    *,
    tenant: str | None = None,
    owner: str | None = None,
    loop: str | None = None,
    limit: int = 100,
) -> CoordinationView:
    """Read what loops have to do with each other. ``limit``: of the decisions.

    ``tenant``, ``owner``: whose loops the caller sees; None for all. ``loop``: only of this one.
    Raises NoSuchLoop.
    """
    is_all = tenant is None and owner is None
    # Those that are not shown must not take the place of others.
    most = limit if is_all and not loop else MOST_DECISIONS
    found = context.ledger.coordination(limit=most, tenant=tenant)
    of_tenant = [each for each in context.ledger.loops() if each.is_of(tenant)]
    visible = {each.name for each in of_tenant if each.is_of(tenant, owner)}
    if loop is not None and loop not in visible:
        raise no_such_loop(context, loop, tenant, owner)
    shown = visible if loop is None else {loop}
    # Nobody waits for a loop of another tenant.
    known = {each.name for each in of_tenant}
    coupled = [each for each in context.ledger.coupled_loops() if each in known]
    snapshots = [*context.ledger.loop_waits(coupled)]
    graph = build_graph(snapshots)
    nodes = [_node(each, visible) for each in graph.nodes.values() if each.loop in shown]
    own = [each for each in snapshots if each.loop.name in shown]
    events = found.events if loop is None else [*_events_of(own, found.events)]
    decisions = [
        _shown(each, visible)
        for each in found.decisions
        if tenant in (None, each.tenant)
        and (each.loop in shown or _is_against(each, loop, visible) or (is_all and loop is None))
    ][:limit]
    ordered = [
        OrderedItem(loop=name, item=item, order=order)
        for name, orders in found.orders.items()
        if name in shown
        for item, given in orders.items()
        for order in given.said
    ]
    ordered.sort(key=lambda each: each.order.at)
    return CoordinationView(
        locks=[each for each in found.locks if each.loop in shown],
        denied=[*_denied(context, found, shown, visible)],
        events=[_event(each, visible) for each in events],
        graph=WaitGraph(
            nodes={each.name: each for each in nodes},
            emitters={event: _seen(items, visible) for event, items in graph.emitters.items()},
        ),
        deadlocks=[each for each in graph.deadlocks() if _concerns(each, shown, visible)],
        decisions=decisions,
        states=_states(own, nodes),
        overrulings=_overrulings(context, decisions, visible),
        orders=ordered,
    )


def _is_against(decision: Decision, loop: str | None, visible: Collection[str]) -> bool:
    """Whether it was decided against the chosen loop, in favour of one that the caller sees."""
    return decision.loop in visible and decision.other.partition("/")[0] == loop


def _denied(
    context: LoopContext, found: Coordination, shown: Collection[str], visible: Collection[str]
) -> Iterable[DeniedItem]:
    """Yield who waits for files that somebody has now, or waits for longer."""
    denied = {name: why for name, why in found.denied.items() if name.partition("/")[0] in shown}
    for name, denial in sorted(standing_denials(context, denied, found.locks).items()):
        loop, _, item = name.partition("/")
        seen = denial.holder.partition("/")[0] in visible
        yield DeniedItem(
            loop=loop,
            item=item,
            holder=denial.holder if seen else ANOTHER,
            files=denial.files,
            reserved=denial.reserved,
        )


def _events_of(
    snapshots: Iterable[LoopSnapshot], events: Iterable[EmittedEvent]
) -> Iterable[EmittedEvent]:
    """Yield the events that some loops wait for, or have given off."""
    names = {
        (each.loop.tenant, event)
        for each in snapshots
        for spec in each.specs
        for event in (*spec.waits_for, *(spec.emits if spec.id in each.emitted else ()))
    }
    return (each for each in events if (each.tenant, each.name) in names)


def _event(event: EmittedEvent, visible: Collection[str]) -> EmittedEvent:
    """Hide the names of loops that the caller may not see."""
    names = (by if "/" not in by or by.partition("/")[0] in visible else ANOTHER for by in event.by)
    return replace(event, by=tuple(dict.fromkeys(names)))


def _node(node: WaitingNode, visible: Collection[str]) -> WaitingNode:
    """Hide the items that the caller may not see; what the loop itself waits for stays."""
    waits = tuple(
        each if each.by.startswith(EVENT) or _seen([each.by], visible) else replace(each, by="")
        for each in node.waits
    )
    return replace(node, waits=waits)


def _seen(items: Iterable[str], visible: Collection[str]) -> list[str]:
    return [each for each in items if each.partition("/")[0] in visible]


def _concerns(deadlock: Deadlock, shown: Collection[str], visible: Collection[str]) -> bool:
    loops = {name.partition("/")[0] for name in deadlock.cycle}
    return loops.issubset(visible) and not loops.isdisjoint(shown)


def _states(
    snapshots: Iterable[LoopSnapshot], nodes: Iterable[WaitingNode]
) -> dict[tuple[str, str], str]:
    loops, found = {each.loop.name: each for each in snapshots}, dict[tuple[str, str], str]()
    for node in nodes:
        snapshot = loops[node.loop]
        for wait in node.waits:
            own = snapshot.record(wait.what.partition("/")[2]).state
            found[node.loop, wait.what] = snapshot.outer.get(wait.what, "") if wait.outer else own
    return found


def _overrulings(
    context: LoopContext, decisions: Sequence[Decision], visible: Collection[str]
) -> dict[str, Overruling]:
    """Return what overruling decisions does now, as far as the caller may see their items."""
    later = replaced(decisions)
    effects = {
        each.id: effect
        for each in decisions
        if each.id not in later
        and (effect := overruling(each)) is not None
        and effect.loop in visible
    }
    names = sorted({effect.loop for effect in effects.values()})
    if not names:
        return {}
    items = dict(zip(names, context.ledger.loop_items(names), strict=True))
    orders = dict(zip(names, context.ledger.loop_orders(names), strict=True))
    live = {each.job_id for each in context.ledger.live_items()}

    def is_of_use(effect: Overruling) -> bool:
        record: ItemRecord | None = items[effect.loop].get(effect.item)
        given: ItemOrders = orders[effect.loop].get(effect.item, NO_ORDERS)
        return record is not None and does_something(
            effect, record, given, has_slot=record.job_id in live
        )

    return {number: effect for number, effect in effects.items() if is_of_use(effect)}


def _shown(decision: Decision, visible: Collection[str]) -> Decision:
    """Fill in the name of the other loop, as far as the caller may know it."""
    loop = decision.other.partition("/")[0]
    seen = not loop or loop in visible
    name = decision.other if decision.kind == "denied" else loop
    text = decision.text.replace("{other}", name if seen else ANOTHER)
    if decision.kind == "deadlock":  # it names all who were part of it
        text = _ITEM.sub(lambda found: found[0] if found[1] in visible else ANOTHER, text)
    other = decision.other if seen else f"{ANOTHER}/"
    return replace(decision, text=text, other=other)
