"""Orders: what people, or the rule for deadlocks, say about one item instead of the usual rules."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args

#: ``first``: it gets the next free slot. ``hold``: it gets none. ``ignore_locks``: it need not wait
#: for files that others change. ``ignore_waits``: nor for other loops and events.
OrderWord = Literal["first", "hold", "ignore_locks", "ignore_waits"]
ORDER_WORDS: tuple[OrderWord, ...] = get_args(OrderWord)
#: Who gives an order by itself.
DEADLOCK_RULE = "the rule for deadlocks"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be done about one item until it has begun."""

    word: OrderWord
    by: str
    at: float
    #: For `ignore_waits`: which ones; all of them if none is named.
    waits: tuple[str, ...] = ()

    def ignores(self, wait: str) -> bool:
        return self.word == "ignore_waits" and (not self.waits or wait in self.waits)

    def as_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def parse(cls, text: str) -> Order:
        """Read an order; what a later release adds is left out. Raises ValueError if damaged."""
        found, known = json.loads(text), {each.name for each in fields(cls)}
        try:
            values = {name: value for name, value in found.items() if name in known}
            return cls(**{**values, "waits": tuple(found.get("waits", ()))})
        except (TypeError, AttributeError) as error:
            raise ValueError(str(error)) from None
