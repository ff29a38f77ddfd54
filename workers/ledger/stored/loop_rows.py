"""Loops as the ledger stores them: records, limits, and what its scripts answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mulligan.policies.loops.admission import Demand, WaitingItem, demand_of
from mulligan.policies.loops.budget import (
    RESOURCES,
    SHARED_SCOPES,
    BudgetState,
    LoopBudget,
    Resource,
    SharedScope,
)
from mulligan.policies.loops.heal_record import HealRecord
from mulligan.policies.loops.incident import incidents_from_json
from mulligan.policies.loops.loop import ItemRecord, LoopRecord
from mulligan.policies.loops.progress import AgentProgress
from mulligan.policies.loops.spec import ItemSpec, LoopConfig
from mulligan.tasks.ports.ledger import LiveItem, LoopFleet
from mulligan.workers.ledger.stored import rows
from mulligan.workers.ledger.stored.amounts import amounts, read_amounts

#: Ready items are sorted by their priority, then by how long they wait.
_RANKS = 1e13
_DAY = 86400.0


def config_fields(config: LoopConfig) -> dict[str, Any]:
    """Return the configuration, and those of its values that scripts read."""
    return {
        "config": config.model_dump_json(exclude_defaults=True, exclude={"specs"}),
        "priority": config.priority,
        "weight": config.weight,
        "concurrency": config.concurrency,
    }


def limit_fields(budget: LoopBudget, caps: Mapping[Resource, float]) -> dict[str, Any]:
    """Return the limits that attempts share, by the names that scripts use."""
    shared = {f"{scope}:{what}": limit for (scope, what), limit in budget.shared().items()}
    return {**shared, "attempt": amounts(caps)}


def ready_score(spec: ItemSpec, record: ItemRecord, place: int) -> float:
    """Return where an item is sorted. Of those that became ready at once, in the specs' order."""
    return spec.priority * _RANKS + record.since * 1000 + place


def read_loop(name: str, row: Mapping[str, str]) -> LoopRecord:
    """Read a loop. Raises ValueError if its record is damaged."""
    state: Any = row["state"]
    paused_by: Any = row.get("paused_by", "")
    return LoopRecord(
        name=name,
        config=LoopConfig.model_validate_json(row["config"]),
        state=state,
        since=_seconds(row, "since") or 0.0,
        reason=row.get("reason", ""),
        paused_by=paused_by,
        tenant=row.get("tenant", ""),
        owner=row.get("owner", ""),
        uid=row.get("uid", ""),
        spec=row.get("spec", ""),
        version=int(row["version"]),
        dirty=int(row.get("dirty", 0)),
        planned=int(row.get("planned", 0)),
        created_at=_seconds(row, "created_at") or 0.0,
        started_at=_seconds(row, "started_at"),
        finished_at=_seconds(row, "finished_at"),
        planned_at=_seconds(row, "planned_at"),
        share=float(row.get("share", 0)),
        rollback=row.get("rollback", ""),
        delivered=row.get("delivered", ""),
        delivery_problem=row.get("delivery_problem", ""),
        delivering=float(row.get("delivering", 0)),
        incidents=incidents_from_json(row.get("incidents", "")),
    )


def read_items(row: Mapping[str, str]) -> dict[str, ItemRecord]:
    """Read the states of a loop's items. Raises ValueError if one is damaged."""
    return {item: ItemRecord.parse(text) for item, text in row.items()}


def read_heals(texts: Sequence[str]) -> tuple[HealRecord, ...]:
    """Read what was done to heal a loop. Raises ValueError if a record is damaged."""
    return tuple(sorted(map(HealRecord.parse, texts), key=lambda each: each.number))


def _seconds(row: Mapping[str, str], name: str) -> float | None:
    return float(row[name]) / 1000 if row.get(name) else None


def read_budget(
    limits: Sequence[str], spent: Sequence[str], reserved: Sequence[str], *, now: float
) -> BudgetState:
    """Read the limits of a loop, and what is used and reserved of them."""
    limit_row, reserved_row = rows.fields(limits), rows.fields(reserved)
    return BudgetState(
        limits={key: float(limit_row[_name(key)]) for key in _KEYS if _name(key) in limit_row},
        used=read_used(rows.fields(spent), now),
        reserved=_read_reserved(reserved_row),
        reservations=len(reserved_row),
        unlimited=_read_unlimited(reserved_row),
        caps=read_amounts(limit_row.get("attempt", "")),
    )


_KEYS = tuple((scope, resource) for scope in SHARED_SCOPES for resource in RESOURCES)


def _name(key: tuple[SharedScope, Resource]) -> str:
    return ":".join(key)


def read_used(row: Mapping[str, str], now: float) -> dict[tuple[SharedScope, Resource], float]:
    """Read what a loop has used; what was used on another day does not count for this one."""
    today = row.get("day") == str(int(now // _DAY))
    return {key: float(row.get(_name(key), 0)) for key in _KEYS if key[0] == "loop" or today}


def read_unknown(row: Mapping[str, str]) -> dict[Resource, int]:
    return {name: int(row[f"unknown:{name}"]) for name in RESOURCES if f"unknown:{name}" in row}


def _read_reserved(row: Mapping[str, str]) -> dict[Resource, float]:
    total: dict[Resource, float] = {}
    for text in row.values():
        for name, amount in read_amounts(text).items():
            total[name] = total.get(name, 0.0) + amount
    return total


def _read_unlimited(row: Mapping[str, str]) -> frozenset[Resource]:
    """Read what some attempt has not reserved. Most attempts reserve the same."""
    amounts = [read_amounts(text) for text in set(row.values())]
    return frozenset(name for name in RESOURCES if any(name not in each for each in amounts))


def live_item(answer: Sequence[Any], lease: float) -> LiveItem:
    job_id, loop, item, attempt, worker, claimed_at, expires, held, progress = answer
    return LiveItem(
        job_id=job_id,
        loop=loop,
        item=item,
        attempt=int(attempt),
        worker=worker,
        claimed_at=float(claimed_at) / 1000 if claimed_at else None,
        renewed_at=float(expires) / 1000 - lease if expires else None,
        held=bool(held),
        progress=_read_progress(progress),
    )


def _read_progress(text: str) -> AgentProgress | None:
    """Read when a worker said something, and what. None if it is missing or damaged."""
    said_at, _, said = text.partition(" ")
    try:
        return AgentProgress.parse(said).since(float(said_at) / 1000)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def read_fleet(answer: Sequence[Any], *, now: float, lease: float) -> LoopFleet:
    """Read the part of the answer of `read_loop` that is about all loops."""
    epoch, slots, lines, live, demands = answer
    items = [live_item(each, lease) for each in live]
    return LoopFleet(
        slots=int(slots) if slots else None,
        live=items,
        lines={int(priority): float(at) for priority, at in rows.fields(lines).items()},
        epoch=epoch,
        demands=[_demand(each, items, now) for each in demands if each[5]],
        versions={each[0]: int(each[5]) for each in demands if each[5]},
    )


def _demand(answer: Sequence[Any], live: Sequence[LiveItem], now: float) -> Demand:
    loop, priority, weight, share, concurrency, _, ready, *budget, waiting, begun = answer
    running = [each.item for each in live if each.loop == loop]
    return demand_of(
        loop,
        priority=int(priority),
        weight=float(weight),
        share=float(share or 0),
        concurrency=int(concurrency),
        live=running,
        begun=int(begun),
        affordable=read_budget(*budget, now=now).room(len(running)),
        waiting=[
            WaitingItem(item=item, since=float(since or 0) / 1000, job_id=job_id)
            for job_id, item, since in waiting
        ],
        ready=[
            WaitingItem(item=item, priority=int(rank), since=since / 1000)
            for item, text in zip(ready[::2], ready[1::2], strict=True)
            for rank, since in [divmod(float(text), _RANKS)]
        ],
    )


def spec_text(specs: Sequence[ItemSpec]) -> str:
    """Return the items as the ledger stores them. Scripts never read them."""
    items = [spec.model_dump(mode="json", exclude_defaults=True) for spec in specs]
    return json.dumps(items, separators=(",", ":"), ensure_ascii=False)


def read_specs(text: str) -> tuple[ItemSpec, ...]:
    return tuple(ItemSpec.model_validate(each) for each in json.loads(text))
