"""The most that one attempt of a loop may use, by its budget and the current prices."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.policies.loops.budget import Resource, attempt_caps
from mulligan.policies.loops.spec import ItemSpec, LoopConfig
from mulligan.tasks.loops.context import LoopContext


def current_caps(
    context: LoopContext, config: LoopConfig, items: Sequence[ItemSpec]
) -> dict[Resource, float]:
    """Return the caps of the most expensive runner."""
    own = ((item.runner or config.runner) for item in items)
    runners = dict.fromkeys((*config.escalate_to, *own))
    prices = [context.price(runner) for runner in runners if runner is not None]
    known = [price for price in prices if price is not None]
    price = max(known) if known and len(known) == len(prices) else None
    return attempt_caps(config.budget, price=price)
