"""Find what the items of a new loop wait for that is not there."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.policies.coordination.unknown_waits import unknown_waits
from mulligan.policies.loops.spec import ItemSpec
from mulligan.tasks.loops.spec_check import SpecFinding
from mulligan.tasks.ports.ledger import Ledger


def find_unknown_waits(
    ledger: Ledger, items: Sequence[ItemSpec], *, tenant: str
) -> list[SpecFinding]:
    """Return a warning for each wait for another loop, its item or an event that is not there."""
    names = [each.name for each in ledger.loops() if each.tenant == tenant]
    asked = {each.partition("/")[0] for item in items for each in item.depends_on if "/" in each}
    read = [name for name in names if name in asked]
    loops = {name: frozenset[str]() for name in names}
    loops |= {
        name: frozenset(records)
        for name, records in zip(read, ledger.loop_items(read), strict=True)
    }
    there = (each.name for each in ledger.coordination(limit=0).events if each.tenant == tenant)
    return [
        SpecFinding(
            message=each.message,
            path=(each.index,),
            code="unknown_wait",
            item=each.item,
            is_warning=True,
        )
        for each in unknown_waits(items, loops, {*ledger.event_sources(tenant), *there})
    ]
