"""Registry: which loops exist, how far they are, what they ran, and what a new one would do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mulligan.policies.loops.loop import (
    ItemRecord,
    LoopRecord,
    LoopSnapshot,
    LoopState,
    ShownState,
    shown_state,
)
from mulligan.policies.loops.plan import in_order, plan_loop
from mulligan.policies.loops.spec import LoopDocument
from mulligan.tasks.loops.change import check_loop
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.ports.errors import refuse
from mulligan.tasks.ports.ledger import JobView, LiveItem, LoopNote


@dataclass(frozen=True, kw_only=True)
class LoopSummary:
    """A loop and the states of its items, without their specs."""

    loop: LoopRecord
    items: Mapping[str, ItemRecord]
    #: What has a slot, by its job.
    live: Mapping[str, LiveItem]

    @property
    def counts(self) -> dict[ShownState, int]:
        return dict(Counter(shown_state(record, self.live) for record in self.items.values()))

    def is_held(self, record: ItemRecord) -> bool:
        """Whether a worker runs or verifies the job of an item."""
        found = self.live.get(record.job_id)
        return found is not None and found.held

    @property
    def running(self) -> list[str]:
        """The items that workers run or verify, the longest one first."""
        found = [
            (record.since, name)
            for name, record in self.items.items()
            if record.state == "running" and self.is_held(record)
        ]
        return [name for _, name in sorted(found)]

    @property
    def last_heartbeat(self) -> float | None:
        """The newest sign of life: of what runs, or of the planner if nothing does."""
        beats = [
            each.renewed_at or each.claimed_at or self.items[each.item].since
            for each in self.live.values()
            if each.loop == self.loop.name and each.item in self.items
        ]
        return max(beats, default=self.loop.planned_at)


def list_loops(
    context: LoopContext,
    *,
    tenant: str | None = None,
    owner: str | None = None,
    state: LoopState | None = None,
    limit: int = 100,
) -> list[LoopSummary]:
    """Return loops, the newest first. ``tenant``, ``owner``: only its own."""
    found = [
        each
        for each in context.ledger.loops()
        if each.is_of(tenant, owner) and state in (None, each.state)
    ][:limit]
    items = context.ledger.loop_items([each.name for each in found])
    live = {each.job_id: each for each in context.ledger.live_items()}
    return [
        LoopSummary(loop=loop, items=records, live=live)
        for loop, records in zip(found, items, strict=True)
    ]


def read_log(
    context: LoopContext,
    name: str,
    *,
    limit: int,
    tenant: str | None = None,
    owner: str | None = None,
) -> list[LoopNote]:
    """Return a loop's log, the newest line first; for a tenant or a producer without the names of
    others."""
    notes = context.ledger.loop_log(name, limit=limit)
    if tenant is None and owner is None:
        return notes
    return [
        LoopNote(at=each.at, by=each.by, note=each.note.partition(": ")[0])
        if each.by == "admission"
        else each
        for each in notes
    ]


# -- what a loop ran -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ItemRunView:
    """One run of an item: a job with its attempts. None if it is no longer kept."""

    item: str
    run: int
    job: JobView | None


def read_runs(
    context: LoopContext, snapshot: LoopSnapshot, *, items: Sequence[str], start: int, limit: int
) -> tuple[list[ItemRunView], int | None]:
    """Return a page of the runs of these items, in their order, and where the next page starts."""
    runs = [(item, n) for item in items for n in range(1, snapshot.record(item).runs + 1)]
    page = runs[start : start + limit]
    found = [
        ItemRunView(
            item=item,
            run=n,
            job=context.ledger.job(context.ledger.item_job_id(snapshot.loop, item, n)),
        )
        for item, n in page
    ]
    following = start + limit
    return found, following if following < len(runs) else None


# -- what a new loop would do ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LoopPreview:
    """What a loop would do first, if it were created and started."""

    id: str
    #: Whether a loop of this name exists.
    name_in_use: bool
    #: Its items, each after those that it depends on, and those that could run at once.
    order: Sequence[str]
    ready: Sequence[str]


def preview_loop(context: LoopContext, document: LoopDocument) -> LoopPreview:
    """Check a loop without creating it. Raises BadInput with every problem."""
    refuse(check_loop(context, document))
    snapshot = LoopSnapshot(
        loop=LoopRecord(name=document.loop.name, config=document.loop, state="running"),
        specs=document.items,
        items={
            item.id: ItemRecord(state=document.states.get(item.id, "pending"))
            for item in document.items
        },
    )
    planned = plan_loop(snapshot, context.ledger.now()).items
    order = [item.id for item in in_order(document.items)]
    ready = [item for item in order if item in planned and planned[item].state == "ready"]
    name = document.loop.name
    in_use = context.ledger.read_loop(name) is not None
    return LoopPreview(id=name, name_in_use=in_use, order=order, ready=ready)
