"""Budgets of loops: tokens, money and seconds for each attempt, item, loop and day.

The ledger enforces them in the claim's own script (workers/ledger/lua/loops.lua), because two
claims at once must not spend the same rest. Here are the values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from mulligan.policies.jobs.job import Budget, Seconds
from mulligan.policies.loops.numbers import NotBoolean
from mulligan.policies.value import Value

Resource = Literal["tokens", "money", "seconds"]
#: The scopes of a budget that several attempts share. The budget of an item is its job's.
SharedScope = Literal["loop", "day"]
RESOURCES: tuple[Resource, ...] = get_args(Resource)
SHARED_SCOPES: tuple[SharedScope, ...] = get_args(SharedScope)

_NUMBER = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([kKM])?\s*$")
_FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6, None: 1.0}


def parse_amount(value: Any) -> Any:
    """Read ``5000``, ``"200k"`` or ``"5M"`` as a number; return what is not text as is."""
    if not isinstance(value, str | bool):
        return value
    match = _NUMBER.match(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not an amount: use 5000, 200k or 5M")
    return _whole(float(match.group(1)) * _FACTORS[match.group(2)])


def _whole(number: float) -> float | int:
    return int(number) if number.is_integer() else number


Amount = Annotated[int, BeforeValidator(parse_amount), Field(ge=1, le=10**15)]
Money = Annotated[float, BeforeValidator(parse_amount), Field(gt=0, le=1e12, allow_inf_nan=False)]


class Spending(Value):
    """Limits of one scope; None is no limit."""

    tokens: Amount | None = None
    money: Money | None = None
    seconds: Annotated[Seconds, NotBoolean, Field(gt=0, le=1e9)] | None = None

    def limits(self) -> dict[Resource, float]:
        """Return the limits that are set."""
        found: dict[Resource, float | None] = {
            "tokens": self.tokens,
            "money": self.money,
            "seconds": self.seconds,
        }
        return {name: float(limit) for name, limit in found.items() if limit is not None}


class LoopBudget(Value):
    """What a loop may use. A day is a day in UTC."""

    attempt: Spending = Spending()
    item: Spending = Spending()
    loop: Spending = Spending()
    day: Spending = Spending()

    def item_budget(self) -> Budget:
        """Return the budget of an item's job."""
        item = self.item
        return Budget(tokens=item.tokens, seconds=item.seconds, money=item.money)

    def shared(self) -> dict[tuple[SharedScope, Resource], float]:
        """Return the limits that the attempts of a loop share."""
        scopes: dict[SharedScope, Spending] = {"loop": self.loop, "day": self.day}
        return {
            (scope, resource): limit
            for scope, spending in scopes.items()
            for resource, limit in spending.limits().items()
        }


def attempt_caps(budget: LoopBudget, *, price: float | None) -> dict[Resource, float]:
    """Return the most that one attempt may use, as far as the budget says so.

    ``price``: the highest price of one token of the runner, if it has one. What one attempt may
    cost follows from its tokens. A resource without a cap is reserved whole, so that the attempts
    of the loop run one at a time.
    """
    caps = {**budget.item.limits(), **budget.attempt.limits()}
    for name, limit in budget.item.limits().items():
        caps[name] = min(caps[name], limit)
    if price is not None and "tokens" in caps:
        caps["money"] = min(caps.get("money", math.inf), caps["tokens"] * price)
    return caps


@dataclass(frozen=True, kw_only=True)
class BudgetState:
    """How much of the shared limits is used and reserved."""

    limits: Mapping[tuple[SharedScope, Resource], float] = field(default_factory=dict)
    used: Mapping[tuple[SharedScope, Resource], float] = field(default_factory=dict)
    reserved: Mapping[Resource, float] = field(default_factory=dict)
    #: How many attempts run.
    reservations: int = 0
    #: What some of them may use without a limit: they began before there was one.
    unlimited: Collection[Resource] = ()
    #: The most that one attempt may use.
    caps: Mapping[Resource, float] = field(default_factory=dict)

    def room(self, live: int) -> int | None:
        """Return how many more items fit beside the ``live`` ones; None without a limit.

        The claim decides. This keeps items from being admitted only to wait for the budget.
        """
        found = [self._room(scope, resource, live) for scope, resource in self.limits]
        return min(found, default=None)

    def _room(self, scope: SharedScope, resource: Resource, live: int) -> int:
        if resource in self.unlimited:
            return 0
        used = self.used.get((scope, resource), 0.0)
        left = self.limits[scope, resource] - used - self.reserved.get(resource, 0.0)
        alone = int(live == 0 and left > 0)
        if resource not in self.caps:
            return alone
        unclaimed = max(0, live - self.reservations)
        return max(alone, int(left // self.caps[resource]) - unclaimed)


def breaches(
    budget: LoopBudget, used: Mapping[tuple[SharedScope, Resource], float]
) -> list[tuple[SharedScope, Resource]]:
    """Return the shared limits that are used up, in the order of the budget."""
    return [key for key, limit in budget.shared().items() if used.get(key, 0.0) >= limit]
