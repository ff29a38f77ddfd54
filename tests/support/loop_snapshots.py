"""Loops as the policies see them: snapshots, without a ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mulligan.policies.loops.budget import Resource, SharedScope
from mulligan.policies.loops.heal_record import HealRecord
from mulligan.policies.loops.loop import (
    ItemRecord,
    ItemState,
    LoopChange,
    LoopRecord,
    LoopSnapshot,
    LoopState,
    PausedBy,
)
from mulligan.policies.loops.spec import ItemSpec
from support.loops import document, item

#: A row of specs: an item's id with those that it depends on.
Specs = Mapping[str, tuple[str, ...]]


def specs_of(items: Specs) -> tuple[ItemSpec, ...]:
    return document(*(item(name, *after) for name, after in items.items())).items


def snapshot(
    items: Specs | None = None,
    states: Mapping[str, ItemState | ItemRecord] | None = None,
    *,
    state: LoopState = "running",
    reason: str = "",
    paused_by: PausedBy = "",
    used: Mapping[tuple[SharedScope, Resource], float] | None = None,
    heals: Sequence[HealRecord] = (),
    **config: Any,
) -> LoopSnapshot:
    """Return a loop whose items have these states since second 0; the others are pending."""
    specs = specs_of(items or {"a": ()})
    loop = LoopRecord(
        name="alpha",
        config=document(item("x"), **config).loop,
        state=state,
        reason=reason,
        paused_by=paused_by,
    )
    given = {
        name: each if isinstance(each, ItemRecord) else ItemRecord(state=each)
        for name, each in (states or {}).items()
    }
    return LoopSnapshot(
        loop=loop,
        specs=specs,
        items={spec.id: given.get(spec.id, ItemRecord()) for spec in specs},
        used=used or {},
        heals=heals,
    )


def applied(before: LoopSnapshot, change: LoopChange) -> LoopSnapshot:
    """Return the loop after a change, as the ledger stores it."""
    stored = {name: ItemRecord.parse(str(record)) for name, record in change.items.items()}
    loop = before.loop
    if change.state is not None:
        loop = replace(loop, state=change.state, reason=change.reason, paused_by=change.paused_by)
    return replace(
        before,
        loop=replace(loop, config=change.config or loop.config),
        specs=change.specs or before.specs,
        items={**before.items, **stored},
    )
