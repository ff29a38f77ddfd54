"""Orders: what people say about one item instead of the usual rules, and what a deadlock did."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal, get_args

#: ``first``: it gets the next free slot. ``hold``: it gets none. ``ignore_locks``: it need not wait
#: for files that others change. ``ignore_waits``: nor for other loops and events.
OrderWord = Literal["first", "hold", "ignore_locks", "ignore_waits"]
ORDER_WORDS: tuple[OrderWord, ...] = get_args(OrderWord)
#: An item's turn: one of them replaces the other. All other orders stand beside each other.
_TURNS: frozenset[OrderWord] = frozenset({"first", "hold"})
#: Who breaks a wait of a deadlock.
DEADLOCK_RULE = "the rule for deadlocks"


@dataclass(frozen=True, kw_only=True)
class Order:
    """One thing that a person says about an item until it has begun."""

    word: OrderWord
    by: str
    at: float


@dataclass(frozen=True, kw_only=True)
class ItemOrders:
    """All that is to be done about one item until it has begun."""

    #: What people say, the oldest first.
    said: tuple[Order, ...] = ()
    #: The waits that the rule for deadlocks has broken, whatever people say.
    broken: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.said or self.broken)

    @property
    def words(self) -> tuple[OrderWord, ...]:
        return tuple(each.word for each in self.said)

    def ignores(self, wait: str) -> bool:
        return wait in self.broken or "ignore_waits" in self.words

    def with_order(self, order: Order) -> ItemOrders:
        ended = _TURNS if order.word in _TURNS else {order.word}
        kept = tuple(each for each in self.said if each.word not in ended)
        return replace(self, said=(*kept, order))

    def without(self, word: OrderWord) -> ItemOrders:
        return replace(self, said=tuple(each for each in self.said if each.word != word))

    def without_wait(self, wait: str) -> ItemOrders:
        return replace(self, broken=(*self.broken, wait))

    def with_wait(self, wait: str) -> ItemOrders:
        return replace(self, broken=tuple(each for each in self.broken if each != wait))

    def as_json(self) -> str:
        """Return it as the ledger keeps it; empty if there is nothing to keep."""
        if not self:
            return ""
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def parse(cls, text: str) -> ItemOrders:
        """Read orders; what a later release adds is left out. Raises ValueError if damaged."""
        if not text:
            return NO_ORDERS
        found, known = json.loads(text), {each.name for each in fields(Order)}
        try:
            said = (
                Order(**{name: value for name, value in each.items() if name in known})
                for each in found.get("said", ())
            )
            return cls(said=tuple(said), broken=tuple(found.get("broken", ())))
        except (TypeError, AttributeError) as error:
            raise ValueError(str(error)) from None


NO_ORDERS = ItemOrders()
