"""Decisions of the coordination: what was decided about an item, why, and how to overrule it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args

from mulligan.policies.coordination.order import ItemOrders, Order, OrderWord

#: ``slot``: it got a slot before others. ``denied``: files that it declares are locked.
#: ``undeclared``: it changed a file that it did not declare. ``deadlock``: its wait was broken.
#: ``lapsed``: it lost its files while it waited. ``order``: a person decided, or ended an order.
DecisionKind = Literal["slot", "denied", "undeclared", "deadlock", "lapsed", "order"]
DECISION_KINDS: tuple[DecisionKind, ...] = get_args(DecisionKind)
#: Decisions that are kept, of all loops together.
MOST_DECISIONS = 2000


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One decision. Its text quotes nothing of prompts and answers."""

    kind: DecisionKind
    loop: str
    item: str
    #: A sentence, with `{other}` for the other item or its loop.
    text: str
    #: The item that it was preferred to, or that holds it back: `loop/item`.
    other: str = ""
    tenant: str = ""
    by: str = "coordinator"
    #: For `undeclared`: the files.
    files: tuple[str, ...] = ()
    #: For `order`: what was ordered; None: orders ended.
    word: OrderWord | None = None
    #: For `deadlock`: the wait that was broken.
    wait: str = ""
    #: Given by the ledger.
    id: str = ""
    at: float = 0.0
    #: Who overruled it; empty if nobody did.
    overruled_by: str = ""

    @property
    def name(self) -> str:
        return f"{self.loop}/{self.item}"

    def as_json(self) -> str:
        """Return it as the ledger keeps it, without what is empty."""
        full = {name: value for name, value in asdict(self).items() if value}
        return json.dumps(full, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def parse(cls, text: str) -> Decision:
        """Read a decision; what a later release adds is left out. Raises ValueError if damaged."""
        found, known = json.loads(text), {each.name for each in fields(cls)}
        values = {name: value for name, value in found.items() if name in known}
        try:
            return cls(**{**values, "files": tuple(values.get("files", ()))})
        except TypeError as error:
            raise ValueError(str(error)) from None


@dataclass(frozen=True, kw_only=True)
class Overruling:
    """What overruling a decision does to an item."""

    loop: str
    item: str
    #: The order that it gets, and the one that ends.
    word: OrderWord | None = None
    ends: OrderWord | None = None
    #: What it waits for again.
    wait: str = ""
    #: Files that it does not declare any more.
    files: tuple[str, ...] = ()
    #: The same in words, for a button.
    text: str

    def applied(self, orders: ItemOrders, *, by: str, at: float) -> ItemOrders:
        """Return an item's orders after it; the same ones if it does nothing."""
        if self.ends:
            return orders.without(self.ends)
        if self.wait and self.wait not in orders.broken:
            return orders  # the item has begun since
        orders = orders.with_wait(self.wait)
        if self.word is None or self.word in orders.words:
            return orders
        return orders.with_order(Order(word=self.word, by=by, at=at))


def overruling(decision: Decision) -> Overruling | None:
    """Return what overruling a decision does; None if there is nothing to overrule."""
    if decision.overruled_by:
        return None
    loop, item, name = decision.loop, decision.item, decision.name
    other_loop, _, other_item = decision.other.partition("/")
    match decision.kind:
        case "slot" if other_item:
            text = f"{decision.other} goes first"
            return Overruling(loop=other_loop, item=other_item, word="first", text=text)
        case "denied":
            text = f"{name} need not wait for the files"
            return Overruling(loop=loop, item=item, word="ignore_locks", text=text)
        case "lapsed":
            return Overruling(loop=loop, item=item, word="first", text=f"{name} goes first")
        case "deadlock":
            text = f"{name} waits again, and another wait is broken"
            return Overruling(loop=loop, item=item, word="hold", wait=decision.wait, text=text)
        case "undeclared":
            text = f"{name} does not declare these files any more"
            return Overruling(loop=loop, item=item, files=decision.files, text=text)
        case "order" if decision.word:
            text = f"the order {decision.word} for {name} ends"
            return Overruling(loop=loop, item=item, ends=decision.word, text=text)
    return None


def replaced(decisions: Iterable[Decision]) -> set[str]:
    """Return the ids of orders that were given again later. ``decisions``: the newest first."""
    found, seen = set[str](), set[tuple[str, OrderWord]]()
    for each in decisions:
        if each.word is None:
            continue
        if (each.name, each.word) in seen:
            found.add(each.id)
        seen.add((each.name, each.word))
    return found
