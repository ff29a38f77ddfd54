"""The report of a loop: how far it is, what it cost, what failed and healed, and what is left.

The values are also the JSON document that programs get: times are seconds since 1970.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor

from mulligan.policies.failures.failure import FailureRecord
from mulligan.policies.loops.budget import (
    RESOURCES,
    SHARED_SCOPES,
    BudgetState,
    Resource,
    SharedScope,
)
from mulligan.policies.loops.end_estimate import TO_RUN, EndEstimate
from mulligan.policies.loops.heal_record import HealOutcome, HealRecord
from mulligan.policies.loops.loop import (
    DONE,
    GAVE_UP,
    ItemState,
    LoopSnapshot,
    LoopState,
    ShownState,
    shown_state,
)
from mulligan.policies.loops.spec import HealAction
from mulligan.policies.loops.why import Cause

#: Steps of the burn-down, and items that a row names.
_STEPS = 48
_MOST_EXAMPLES = 3
#: How what is left is listed: what needs a person, what runs, what waits.
_ORDER: tuple[ShownState, ...] = (
    "quarantined",
    "failed",
    "blocked",
    "running",
    "waiting",
    "ready",
    "pending",
)


@dataclass(frozen=True, kw_only=True)
class BurnDownPoint:
    """How many of the loop's present items were not done at a time."""

    at: float
    left: int


@dataclass(frozen=True, kw_only=True)
class LoopCost:
    """What a loop used of a resource, and what is reserved by running attempts."""

    scope: SharedScope
    resource: Resource
    limit: float | None
    used: float
    reserved: float
    #: Attempts that did not report it: what they had reserved counts as used.
    unknown: int
    #: All that the loop used, failed attempts too, for each item that passed in it.
    per_passed_item: float | None
    #: For how many more items the rest of the limit is enough, if they cost as much.
    enough_for: int | None


@dataclass(frozen=True, kw_only=True)
class GaveUpGroup:
    """Items that a person has to look at, by the reason that ended them."""

    state: ItemState
    reason: str
    items: int
    examples: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """Failed attempts with one signature."""

    kind: str
    cause: str | None
    signature: str
    attempts: int
    items: int
    #: How many of these items passed in the end.
    passed: int
    examples: Sequence[str]
    #: What one of them says; null without the right to read texts.
    message: str | None


@dataclass(frozen=True, kw_only=True)
class HealCount:
    """How often an action was taken, and what came of it."""

    action: HealAction
    outcomes: Mapping[HealOutcome, int]


@dataclass(frozen=True, kw_only=True)
class LeftItem:
    """An item that is not done, and why."""

    id: str
    title: str
    state: ShownState
    since: float
    cause: Cause
    why: str
    #: The command that changes it, if one does.
    command: str | None


@dataclass(frozen=True, kw_only=True)
class LastRun:
    """What the job of an item's last run says."""

    item: str
    #: Of one that passed, how long it took.
    seconds: float | None = None
    #: Of each attempt that failed.
    failures: Sequence[FailureRecord] = ()


@dataclass(frozen=True, kw_only=True)
class LoopReport:
    """A loop at a moment. Lists have at most as many rows as were asked for."""

    id: str
    status: LoopState
    reason: str
    at: float
    created_at: float
    started_at: float | None
    finished_at: float | None
    total: int
    counts: Mapping[ShownState, int]
    estimate: EndEstimate
    burn_down: Sequence[BurnDownPoint]
    cost: Sequence[LoopCost]
    gave_up: Sequence[GaveUpGroup]
    #: The most frequent ones, in the attempts of the last runs of `runs_read` items.
    failures: Sequence[FailureGroup]
    runs_read: int
    #: How many items have run.
    runs: int
    healed: Sequence[HealCount]
    #: The newest first.
    heals: Sequence[HealRecord]
    left: Sequence[LeftItem]
    #: How many items are left, listed or not.
    left_total: int
    #: The longest chain of items that are left and depend on each other.
    critical_path: Sequence[str]
    critical_path_length: int


def burn_down(snapshot: LoopSnapshot, now: float) -> list[BurnDownPoint]:
    """Return how many items were left, at equal steps of time, until now or the loop's end.

    The ledger keeps when an item got its state, so that an item which ran again counts by its end.
    """
    loop, records = snapshot.loop, [snapshot.record(spec.id) for spec in snapshot.specs]
    done = sorted(each.since for each in records if each.state in DONE)
    ran = [each.since for each in records if each.state in DONE and each.runs]
    start = min([loop.started_at or loop.created_at, *ran])
    end = max(start, (loop.finished_at or loop.since) if loop.state == "completed" else now)
    if loop.started_at is None and not ran:
        return []
    times = [start + (end - start) * step / _STEPS for step in range(_STEPS + 1)]
    return [BurnDownPoint(at=at, left=len(records) - bisect_right(done, at)) for at in times]


def loop_costs(
    snapshot: LoopSnapshot, budget: BudgetState, unknown: Mapping[Resource, int]
) -> list[LoopCost]:
    """Return every resource that is limited or was used."""
    records = [snapshot.record(spec.id) for spec in snapshot.specs]
    passed = sum(each.state == "passed" and each.runs > 0 for each in records)
    rates = {
        name: budget.used.get(("loop", name), 0.0) / passed if passed else None
        for name in RESOURCES
    }
    return [
        _cost(scope, name, budget, unknown, rates[name])
        for scope in SHARED_SCOPES
        for name in RESOURCES
        if (scope, name) in budget.limits or budget.used.get((scope, name))
    ]


def _cost(
    scope: SharedScope,
    resource: Resource,
    budget: BudgetState,
    unknown: Mapping[Resource, int],
    rate: float | None,
) -> LoopCost:
    limit, used = budget.limits.get((scope, resource)), budget.used.get((scope, resource), 0.0)
    enough = floor(max(0.0, limit - used) / rate) if limit is not None and rate else None
    return LoopCost(
        scope=scope,
        resource=resource,
        limit=limit,
        used=used,
        reserved=budget.reserved.get(resource, 0.0),
        unknown=unknown.get(resource, 0),
        per_passed_item=rate if scope == "loop" else None,
        enough_for=enough,
    )


def budget_caveat(snapshot: LoopSnapshot, costs: Sequence[LoopCost]) -> str:
    """Say which limit may be used up before the loop ends; empty if none may."""
    items = snapshot.count(*TO_RUN)
    short = [each for each in costs if each.enough_for is not None and each.enough_for < items]
    if not short:
        return ""
    first = min(short, key=lambda each: each.enough_for or 0)
    return (
        f"the {first.scope} budget of {first.resource} may be used up first: at this rate it is"
        f" enough for {first.enough_for} of {items} items"
    )


def gave_up_groups(snapshot: LoopSnapshot, limit: int) -> list[GaveUpGroup]:
    """Return what ended items without success, the most frequent reason first."""
    groups: dict[tuple[ItemState, str], list[str]] = defaultdict(list)
    for spec in snapshot.specs:
        record = snapshot.record(spec.id)
        if record.state in GAVE_UP:
            groups[record.state, record.reason].append(spec.id)
    found = [
        GaveUpGroup(state=state, reason=why, items=len(ids), examples=ids[:_MOST_EXAMPLES])
        for (state, why), ids in groups.items()
    ]
    return sorted(found, key=lambda each: -each.items)[:limit]


def failure_groups(
    snapshot: LoopSnapshot, runs: Sequence[LastRun], *, limit: int, texts: bool
) -> list[FailureGroup]:
    """Group the failed attempts of these runs by signature, the most frequent first."""
    groups: dict[tuple[str, str | None, str], list[tuple[str, FailureRecord]]] = defaultdict(list)
    for run in runs:
        for each in run.failures:
            groups[each.kind.value, each.cause, each.coarse_signature].append((run.item, each))
    found = [_failure_group(snapshot, key, found, texts) for key, found in groups.items()]
    return sorted(found, key=lambda each: (-each.attempts, -each.items))[:limit]


def _failure_group(
    snapshot: LoopSnapshot,
    key: tuple[str, str | None, str],
    found: Sequence[tuple[str, FailureRecord]],
    texts: bool,
) -> FailureGroup:
    kind, cause, signature = key
    items = list(dict.fromkeys(item for item, _ in found))
    return FailureGroup(
        kind=kind,
        cause=cause,
        signature=signature,
        attempts=len(found),
        items=len(items),
        passed=sum(snapshot.record(item).state == "passed" for item in items),
        examples=items[:_MOST_EXAMPLES],
        message=found[0][1].message if texts else None,
    )


def heal_counts(heals: Sequence[HealRecord]) -> list[HealCount]:
    """Count what came of each action, the most frequent action first."""
    outcomes: dict[HealAction, Counter[HealOutcome]] = defaultdict(Counter)
    for each in heals:
        outcomes[each.action][each.outcome] += 1
    found = [HealCount(action=action, outcomes=dict(each)) for action, each in outcomes.items()]
    return sorted(found, key=lambda each: -sum(each.outcomes.values()))


def newest_heals(heals: Sequence[HealRecord], *, limit: int, texts: bool) -> list[HealRecord]:
    """Return the newest healings, without what may quote attempts if texts are hidden."""
    newest = list(reversed(heals))[:limit]
    return newest if texts else [replace(each, reason="", result="", advice="") for each in newest]


def left_items(snapshot: LoopSnapshot, live: Collection[str]) -> list[tuple[str, ShownState]]:
    """Return the items that are not done: first what needs a person, then what runs and waits.

    ``live``: the jobs that have a slot.
    """
    states = [(spec.id, shown_state(snapshot.record(spec.id), live)) for spec in snapshot.specs]
    left = [each for each in states if each[1] in _ORDER]
    return sorted(left, key=lambda each: _ORDER.index(each[1]))
