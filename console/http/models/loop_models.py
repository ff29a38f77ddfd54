"""Loops and their items as the API returns them, with or without their texts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mulligan.console.http.models.job_models import (
    REDACTED,
    AttemptDocument,
    document,
    redacted_options,
)
from mulligan.console.http.models.why_models import WhyRow, why_row
from mulligan.console.http.models.work_models import RollbackRow, pending_rollback
from mulligan.console.reports.job_document import shown_repository
from mulligan.policies.coordination.locks import plain_pattern
from mulligan.policies.coordination.order import ItemOrders, OrderWord
from mulligan.policies.jobs.job import RunnerSpec, Usage
from mulligan.policies.loops.budget import RESOURCES, SHARED_SCOPES, Resource, SharedScope
from mulligan.policies.loops.loop import ItemRecord, LoopState, ShownState
from mulligan.policies.loops.numbers import NotBoolean
from mulligan.policies.loops.spec import PLAIN_LINE, ItemSpec, LoopConfig
from mulligan.policies.loops.why import Reason
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.registry import ItemRunView, LoopPreview, LoopSummary
from mulligan.tasks.loops.view import ItemView, LoopView
from mulligan.tasks.ports.ledger import LiveItem, LoopNote

#: The most items that one request may add.
MAX_ITEMS = 1000


class LoopProgress(BaseModel):
    passed: int
    total: int


class LoopRow(BaseModel):
    """A loop without its items. Times are seconds since 1970."""

    #: Its name.
    id: str
    status: LoopState
    #: Why it has this status, if somebody or something decided it.
    reason: str
    since: float
    priority: int
    weight: float
    progress: LoopProgress
    #: The number of items in each state that occurs.
    counts: dict[ShownState, int]
    #: The item that runs longest.
    current_test: str | None
    tenant: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    #: Why a completed loop is not delivered.
    delivery_problem: str | None
    #: How many merges may be made at once; null without a repository.
    merge_window: int | None


class LoopList(BaseModel):
    #: The newest first.
    loops: list[LoopRow]


class HolderRow(BaseModel):
    """A worker that holds an item."""

    item: str
    job_id: str
    attempt: int
    worker: str
    claimed_at: float | None
    renewed_at: float | None


class LoopResources(BaseModel):
    #: The profile or kind of the loop's runner; null if every item names its own.
    model: str | None
    max_concurrent: int
    slots_in_use: int
    #: The slots that all loops share.
    slots: int


class BudgetRow(BaseModel):
    """How much of one resource a loop used. Without a limit, only what was used is known."""

    scope: SharedScope
    resource: Resource
    limit: float | None
    used: float
    #: What running attempts may still use.
    reserved: float
    #: Attempts that did not report it: what they had reserved counts as used.
    unknown: int


class LoopDetail(LoopRow):
    """A loop: its state, who works on it, what it used and why it does not run."""

    holders: list[HolderRow]
    last_heartbeat: float | None
    resources: LoopResources
    budget: list[BudgetRow]
    why: WhyRow
    #: Raised by every change.
    version: int
    #: As it was configured, without default values.
    config: dict[str, Any]
    #: The repository that its items change, without credentials, and the branch with passed work.
    repo: str | None
    branch: str | None
    #: A rollback that is not finished yet.
    rollback: RollbackRow | None
    #: The commit of the branch that was delivered last.
    delivered: str | None
    #: What its items wait for outside the loop (`loop/item`, `event:name`) → its state; empty if
    #: there is none.
    waits_for: dict[str, str]
    #: Items → the orders of people about them.
    orders: dict[str, list[OrderWord]]


class CreatedLoop(LoopDetail):
    #: seen: the same loop had been created before.
    created: Literal["created", "seen"]


class LoopPlan(BaseModel):
    """What the loop would do. Nothing was created."""

    model_config = ConfigDict(from_attributes=True)

    dry_run: Literal[True] = True
    id: str
    #: Whether a loop of this name exists.
    name_in_use: bool
    #: Its items, each after those that it depends on.
    order: list[str]
    #: The items that could run at once.
    ready: list[str]


class NoteRow(BaseModel):
    at: float
    note: str
    by: str


class LoopLog(BaseModel):
    #: The newest first.
    log: list[NoteRow]


class ItemRow(BaseModel):
    """An item and its state."""

    id: str
    title: str
    state: ShownState
    since: float
    reason: str
    #: How many jobs were made for it, and the last one.
    runs: int
    job_id: str | None
    priority: int
    depends_on: list[str]
    #: Events that it gives off when it is done, and those that it waits for.
    emits: list[str]
    waits_for: list[str]
    touches: list[str]
    #: What people say about it until it gets its slot.
    orders: list[OrderWord]
    #: What it does not wait for any more until then, because of a deadlock.
    broken_waits: list[str]


class ItemList(BaseModel):
    #: In the order of the specs.
    tests: list[ItemRow]
    #: Of the chosen state.
    total: int
    #: Send it to get the next page; null on the last page.
    cursor: str | None


class ItemDetail(ItemRow):
    """An item with its spec, the attempts of its last run and why it does not run."""

    prompt: str
    pass_criteria: list[str]
    verifiers: list[dict[str, Any]]
    runner: dict[str, Any] | None
    #: Files that it was seen to change beside `touches`: it declares them, too.
    files_seen: list[str]
    #: Who has its files now, as `loop/item`; null if nobody keeps them from it.
    files_held_by: str | None
    attempts: list[AttemptDocument]
    why: WhyRow


class TranscriptRow(BaseModel):
    """One attempt of an item: what was asked, what came back, and the verdict."""

    item: str
    run: int
    job_id: str
    attempt: int
    mode: str
    state: str
    prompt: str
    answer: str | None
    score: float | None
    success: bool | None
    #: The kind of its failure.
    failure: str | None
    #: Null until it is reported.
    usage: Usage | None
    model: str | None
    worker: str | None
    started_at: float | None
    settled_at: float | None


class TranscriptList(BaseModel):
    #: In the order of the specs, each item's runs and attempts from the first to the last.
    transcripts: list[TranscriptRow]
    cursor: str | None


class LoopSlots(BaseModel):
    #: The slots that all loops share.
    slots: int
    #: Whether a person set them; otherwise they are `loop_slots` of the settings.
    set: bool


class SlotsChange(BaseModel):
    model_config = ConfigDict(extra="forbid")

    #: Null: those of the settings.
    slots: Annotated[int, Field(ge=0, le=100_000), NotBoolean] | None


class SkipReason(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str, Field(max_length=200, pattern=PLAIN_LINE)] = ""


# -- loops -----------------------------------------------------------------------------------------


def row(summary: LoopSummary) -> LoopRow:
    return LoopRow(**_row_fields(summary))


def detail(view: LoopView, why: Reason, *, texts: bool) -> LoopDetail:
    return LoopDetail(**_detail_fields(view, why, texts=texts))


def created(view: LoopView, why: Reason, *, texts: bool, seen: bool) -> CreatedLoop:
    fields = _detail_fields(view, why, texts=texts)
    return CreatedLoop(created="seen" if seen else "created", **fields)


def _row_fields(summary: LoopSummary) -> dict[str, Any]:
    loop, counts = summary.loop, summary.counts
    running = summary.running
    return {
        "id": loop.name,
        "status": loop.state,
        "reason": loop.reason,
        "since": loop.since,
        "priority": loop.config.priority,
        "weight": loop.config.weight,
        "progress": LoopProgress(passed=counts.get("passed", 0), total=len(summary.items)),
        "counts": counts,
        "current_test": running[0] if running else None,
        "tenant": loop.tenant or None,
        "created_at": loop.created_at,
        "started_at": loop.started_at,
        "finished_at": loop.finished_at,
        "delivery_problem": loop.delivery_problem or None,
        "merge_window": loop.merge_window if loop.config.repo is not None else None,
    }


def _detail_fields(view: LoopView, why: Reason, *, texts: bool) -> dict[str, Any]:
    snapshot = view.snapshot
    config = snapshot.config
    shown = config if config.repo is None else config.model_copy(update={"repo": repo_of(config)})
    if not texts and config.runner is not None:
        shown = shown.model_copy(update={"runner": redacted_options(config.runner)})
    return {
        **_row_fields(view.summary),
        "holders": holder_rows(view.holders),
        "last_heartbeat": view.last_heartbeat,
        "resources": LoopResources(
            model=runner_name(config.runner),
            max_concurrent=config.concurrency,
            slots_in_use=view.fleet_state.live_of_loop,
            slots=view.slots,
        ),
        "budget": budget_rows(view),
        "why": why_row(why, texts=texts),
        "version": snapshot.loop.version,
        "config": shown.model_dump(mode="json", exclude_defaults=True),
        "repo": repo_of(config),
        "branch": config.target if config.repo is not None else None,
        "rollback": pending_rollback(snapshot.loop),
        "delivered": snapshot.loop.delivered or None,
        "waits_for": dict(snapshot.outer),
        "orders": {item: list(each.words) for item, each in snapshot.orders.items() if each.words},
    }


def repo_of(config: LoopConfig) -> str | None:
    """Return the repository of a loop without credentials."""
    return None if config.repo is None else shown_repository(config.repo)


def runner_name(runner: RunnerSpec | None) -> str | None:
    return None if runner is None else runner.profile or runner.kind


def holder_rows(holders: Iterable[LiveItem]) -> list[HolderRow]:
    return [HolderRow.model_validate(each, from_attributes=True) for each in holders]


def budget_rows(view: LoopView) -> list[BudgetRow]:
    """Return every resource that is limited or was used."""
    budget, unknown = view.reading.budget, view.reading.unknown
    return [
        BudgetRow(
            scope=scope,
            resource=resource,
            limit=budget.limits.get((scope, resource)),
            used=budget.used.get((scope, resource), 0.0),
            reserved=budget.reserved.get(resource, 0.0),
            unknown=unknown.get(resource, 0),
        )
        for scope in SHARED_SCOPES
        for resource in RESOURCES
        if (scope, resource) in budget.limits or budget.used.get((scope, resource))
    ]


def note_rows(notes: Iterable[LoopNote]) -> list[NoteRow]:
    return [NoteRow.model_validate(each, from_attributes=True) for each in notes]


def plan_document(preview: LoopPreview) -> LoopPlan:
    return LoopPlan.model_validate(preview, from_attributes=True)


def slots(context: LoopContext) -> LoopSlots:
    found = context.ledger.loop_slots()
    return LoopSlots(slots=context.slots() if found is None else found, set=found is not None)


# -- items -----------------------------------------------------------------------------------------


def item_rows(
    view: LoopView, *, state: ShownState | None = None, chosen: Collection[str] | None = None
) -> list[ItemRow]:
    """Return the items in a state, or the chosen ones, in the order of the specs."""
    return [
        ItemRow(
            **_item_fields(
                spec,
                view.snapshot.record(spec.id),
                view.state(spec.id),
                view.snapshot.orders_of(spec.id),
            )
        )
        for spec in view.snapshot.specs
        if state in (None, view.state(spec.id)) and (chosen is None or spec.id in chosen)
    ]


def _item_fields(
    spec: ItemSpec, record: ItemRecord, state: ShownState, orders: ItemOrders
) -> dict[str, Any]:
    return {
        "id": spec.id,
        "title": spec.title,
        "state": state,
        "since": record.since,
        "reason": record.reason,
        "runs": record.runs,
        "job_id": record.job_id or None,
        "priority": spec.priority,
        "depends_on": list(spec.depends_on),
        "emits": list(spec.emits),
        "waits_for": list(spec.waits_for),
        "touches": list(spec.touches),
        "orders": list(orders.words),
        "broken_waits": list(orders.broken),
    }


def item_detail(view: ItemView, *, texts: bool) -> ItemDetail:
    spec = view.spec
    verifiers = [each if texts else redacted_options(each) for each in spec.verifiers]
    runner = spec.runner if texts or spec.runner is None else redacted_options(spec.runner)
    return ItemDetail(
        **_item_fields(spec, view.record, view.state, view.orders),
        prompt=spec.prompt if texts else REDACTED,
        pass_criteria=[each if texts else REDACTED for each in spec.pass_criteria],
        verifiers=[each.model_dump(mode="json", exclude_defaults=True) for each in verifiers],
        runner=runner.model_dump(mode="json", exclude_defaults=True) if runner else None,
        files_seen=[plain_pattern(each) if texts else REDACTED for each in view.seen_files],
        files_held_by=view.files_held_by or None,
        attempts=document(view.job, texts=texts).attempts if view.job else [],
        why=why_row(view.why, texts=texts),
    )


def transcript_rows(runs: Iterable[ItemRunView], *, texts: bool) -> list[TranscriptRow]:
    """Return the attempts of these runs. Jobs that are no longer kept have none."""
    return [
        TranscriptRow(
            item=each.item,
            run=each.run,
            job_id=each.job.id,
            attempt=attempt.number,
            mode=attempt.mode,
            failure=attempt.failure.kind if attempt.failure else None,
            **attempt.model_dump(include=_OF_ATTEMPT),
        )
        for each in runs
        if each.job is not None
        for attempt in document(each.job, texts=texts).attempts
    ]


_OF_ATTEMPT = {
    "state", "prompt", "answer", "score", "success", "usage", "model", "worker", "started_at",
    "settled_at",
}  # fmt: skip
