"""Loops as the ledger stores them: records, limits, and what its scripts answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from mulligan.policies.coordination.critical_path import WaitingLoop
from mulligan.policies.coordination.locks import FileLock
from mulligan.policies.coordination.order import ItemOrders
from mulligan.policies.loops.admission import LEAST_URGENT, Demand, WaitingItem, demand_of
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
from mulligan.policies.loops.merge_batches import START_WINDOW
from mulligan.policies.loops.progress import AgentProgress
from mulligan.policies.loops.spec import MOST_FILES, ItemSpec, LoopConfig
from mulligan.policies.path_patterns import pattern_problem
from mulligan.policies.regressions.record import Regression, RegressionLog
from mulligan.tasks.ports.ledger import EmittedEvent, LiveItem, LoopFleet
from mulligan.workers.ledger.stored import rows
from mulligan.workers.ledger.stored.amounts import amounts, read_amounts

#: Ready items are sorted by their priority, then by how long they wait.
_RANKS = 1e13
_DAY = 86400.0


#: What the configuration of a loop begins with that releases before schema 6 must leave alone: they
#: cannot read its items. They show no such loop, and with a negative concurrency they give it no
#: slot. So they can plan all others.
NEEDS_SCHEMA_6 = "needs schema 6: "


def config_fields(config: LoopConfig, specs: Sequence[ItemSpec]) -> dict[str, Any]:
    """Return the configuration, and those of its values that scripts read."""
    text = config.model_dump_json(exclude_defaults=True, exclude={"specs"})
    is_new = config.regressions is not True or any(spec.emits or spec.outer_waits for spec in specs)
    return {
        "config": NEEDS_SCHEMA_6 + text if is_new else text,
        "priority": config.priority,
        "weight": config.weight,
        "concurrency": -config.concurrency if is_new else config.concurrency,
    }


def read_config(text: str) -> LoopConfig:
    return LoopConfig.model_validate_json(text.removeprefix(NEEDS_SCHEMA_6))


def declared_files(specs: Sequence[ItemSpec], address: str) -> dict[str, Any]:
    """Return what scripts know of the items beside their states.

    ``address``: of the specs. An earlier release writes specs without this.
    """
    usable = {
        spec.id: [each for each in spec.touches if not pattern_problem(each)] for spec in specs
    }
    waits = dict.fromkeys(each for spec in specs for each in spec.outer_waits)
    return {
        "files": {item: _as_text(files) for item, files in usable.items() if files},
        "outer": "\n".join(waits),
        "emits": emit_lines(specs),
        "address": address,
    }


def limit_fields(budget: LoopBudget, caps: Mapping[Resource, float]) -> dict[str, Any]:
    """Return the limits that attempts share, by the names that scripts use."""
    shared = {f"{scope}:{what}": limit for (scope, what), limit in budget.shared().items()}
    return {**shared, "attempt": amounts(caps)}


def ready_score(item: WaitingItem, place: int) -> float:
    """Return where an item is sorted: by who waits for it, its priority, and how long it waits.

    Of those that became ready at once, in the specs' order.
    """
    rank = item.urgency * 10 + item.priority
    return rank * _RANKS + (item.since - item.head_start) * 1000 + place


def emit_lines(specs: Sequence[ItemSpec]) -> str:
    """Return the events that items give off, a line each."""
    return "\n".join(dict.fromkeys(each for spec in specs for each in spec.emits))


def _as_text(values: Sequence[str]) -> str:
    return json.dumps(list(values), separators=(",", ":"), ensure_ascii=False)


def stored_files(files: Sequence[str]) -> str:
    """Return files that an item was seen to change, as the ledger stores them."""
    return _as_text(files) if files else ""


def read_files(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text)) if text else ()


def stored_lock(lock: FileLock, ttl: float) -> str:
    """Return a lock as the ledger stores it. ``ttl``: seconds that it lasts without a slot."""
    fields = {"loop": lock.loop, "item": lock.item, "space": lock.space, "files": list(lock.files)}
    times = {"since": lock.since, "ttl": int(ttl * 1000)}
    return json.dumps(
        {**fields, "token": lock.token, **times}, separators=(",", ":"), ensure_ascii=False
    )


def read_lock(job_id: str, text: str) -> FileLock:
    """Read a lock. Raises ValueError if it is damaged."""
    found = json.loads(text)
    expires = found.get("expires")
    return FileLock(
        job_id=job_id,
        loop=found["loop"],
        item=found["item"],
        space=found["space"],
        files=tuple(found["files"]),
        token=found["token"],
        since=float(found["since"]),
        expires=None if expires is None else float(expires) / 1000,
    )


def read_locks(answer: Sequence[Sequence[str]]) -> list[FileLock]:
    """Read all locks, those that were granted first at the beginning."""
    found = [read_lock(job_id, text) for job_id, text in answer]
    return sorted(found, key=lambda each: (each.since, each.name))


def read_orders(row: Mapping[str, str]) -> dict[str, ItemOrders]:
    return {item: ItemOrders.parse(text) for item, text in row.items()}


def read_others(
    outer: Sequence[str],
    split: Sequence[str],
    emitted: Sequence[str],
    orders: Sequence[str],
    seen: Sequence[str],
) -> dict[str, Any]:
    """Read what a snapshot says about what its loop has to do with others."""
    return {
        "outer": rows.fields(outer),
        "split": rows.fields(split),
        "emitted": {
            item: int(text.partition("|")[0]) for item, text in rows.fields(emitted).items()
        },
        "orders": read_orders(rows.fields(orders)),
        "seen_files": {item: read_files(text) for item, text in rows.fields(seen).items()},
    }


def read_event(answer: Sequence[Any]) -> EmittedEvent:
    """Read an event by its name, `tenant/event`."""
    name, text, items, total = answer
    tenant, _, event = name.rpartition("/")
    found = json.loads(text)
    person = found.get("person") or ""
    return EmittedEvent(
        name=event,
        tenant=tenant,
        at=float(found["at"]),
        by=(*items, *filter(None, [person])),
        more=int(total) - len(items),
        person=person,
    )


def read_loop(name: str, row: Mapping[str, str]) -> LoopRecord:
    """Read a loop. Raises ValueError if its record is damaged."""
    state: Any = row["state"]
    paused_by: Any = row.get("paused_by", "")
    return LoopRecord(
        name=name,
        config=read_config(row["config"]),
        state=state,
        since=_seconds(row, "since") or 0.0,
        reason=row.get("reason", ""),
        paused_by=paused_by,
        tenant=row.get("tenant", ""),
        owner=row.get("owner", ""),
        draft=row.get("draft", ""),
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
        admitted_at=_seconds(row, "admitted_at") or 0.0,
        space=row.get("space", ""),
        declared=row.get("declared", ""),
        scored=row.get("scored", ""),
        asks=json.loads(row.get("asks") or "{}"),
        rollback=row.get("rollback", ""),
        delivered=row.get("delivered", ""),
        delivery_problem=row.get("delivery_problem", ""),
        delivering=float(row.get("delivering", 0)),
        merge_window=int(row.get("merge_window", START_WINDOW)),
        incidents=incidents_from_json(row.get("incidents", "")),
        regressions=RegressionLog.from_text(row.get("regressions", "")),
    )


def read_items(row: Mapping[str, str]) -> dict[str, ItemRecord]:
    """Read the states of a loop's items. Raises ValueError if one is damaged."""
    return {item: ItemRecord.parse(text) for item, text in row.items()}


def read_heals(texts: Sequence[str]) -> tuple[HealRecord, ...]:
    """Read what was done to heal a loop. Raises ValueError if a record is damaged."""
    return tuple(sorted(map(HealRecord.parse, texts), key=lambda each: each.number))


def regression_events(found: Sequence[Regression]) -> list[dict[str, Any]]:
    """Return what the events of a loop say about regressions: nothing that quotes texts."""
    return [
        {
            "regression": each.status,
            "item": each.item,
            "culprit": each.culprit,
            "culprit_item": each.culprit_item,
        }
        for each in found
    ]


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
    epoch, slots, lines, live, demands, locks, waiting, denied, undeclared = answer
    items = [live_item(each, lease) for each in live]
    return LoopFleet(
        slots=int(slots) if slots else None,
        live=items,
        lines={int(priority): float(at) for priority, at in rows.fields(lines).items()},
        epoch=epoch,
        demands=[_demand(each, items, now) for each in demands if each[5]],
        versions={each[0]: int(each[5]) for each in demands if each[5]},
        locks=read_locks(locks),
        waiting=[
            WaitingLoop(loop=loop, tenant=tenant, asks=json.loads(text))
            for loop, tenant, text in waiting
        ],
        denied=rows.fields(denied),
        undeclared=tuple(undeclared),
    )


def _demand(answer: Sequence[Any], live: Sequence[LiveItem], now: float) -> Demand:
    loop, priority, weight, share, concurrency, _, ready, *budget, waiting, begun = answer[:12]
    space, admitted_at, goes_on_since, more, items, *parts = answer[12:]
    details = {item: _Details(*each) for item, *each in zip(items, *parts, strict=True)}
    running = [each.item for each in live if each.loop == loop]
    return demand_of(
        loop,
        priority=int(priority),
        weight=float(weight),
        share=float(share or 0),
        concurrency=abs(int(concurrency)),
        live=running,
        begun=int(begun),
        affordable=read_budget(*budget, now=now).room(len(running)),
        waiting=[
            details[item].described(
                WaitingItem(
                    item=item,
                    since=float(since or 0) / 1000,
                    job_id=job_id,
                    urgency=int(urgency or LEAST_URGENT),
                )
            )
            for job_id, item, since, urgency in waiting
        ],
        ready=[
            details[item].described(_ready_item(item, float(score), details[item]))
            for item, score in zip(ready[::2], ready[1::2], strict=True)
        ],
        space=space,
        admitted_at=float(admitted_at or 0) / 1000,
        goes_on_since=float(goes_on_since or 0) / 1000,
        more=int(more),
    )


class _Details(NamedTuple):
    """What the ledger knows of an item that waits for a slot; empty where nothing is."""

    record: str
    files: str
    seen: str
    orders: str

    def described(self, item: WaitingItem) -> WaitingItem:
        return replace(
            item,
            files=(*read_files(self.files), *read_files(self.seen))[:MOST_FILES],
            orders=ItemOrders.parse(self.orders).words,
        )


def _ready_item(item: str, score: float, details: _Details) -> WaitingItem:
    rank, ranked_since = divmod(score, _RANKS)
    # Earlier releases wrote the item's own priority alone.
    urgency, priority = divmod(int(rank), 10) if rank >= 10 else (LEAST_URGENT, int(rank))
    since = ItemRecord.parse(details.record).since if details.record else ranked_since / 1000
    return WaitingItem(
        item=item,
        priority=priority,
        since=since,
        head_start=since - ranked_since / 1000,
        urgency=urgency,
    )


def spec_text(specs: Sequence[ItemSpec]) -> str:
    """Return the items as the ledger stores them. Scripts never read them."""
    items = [spec.model_dump(mode="json", exclude_defaults=True) for spec in specs]
    return json.dumps(items, separators=(",", ":"), ensure_ascii=False)


def read_specs(text: str) -> tuple[ItemSpec, ...]:
    return tuple(ItemSpec.model_validate(each) for each in json.loads(text))
