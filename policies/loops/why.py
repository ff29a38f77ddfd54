"""Why a loop or an item does not run, and the one command that changes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from mulligan.policies.figures.format import duration
from mulligan.policies.loops.admission import Demand
from mulligan.policies.loops.budget import BudgetState, Resource, SharedScope, breaches
from mulligan.policies.loops.loop import DONE, GAVE_UP, ItemRecord, LoopSnapshot
from mulligan.policies.loops.plan import WORDS

#: What holds an item or a loop back; ``runs`` and ``done`` if nothing does.
Cause = Literal[
    "dependency",
    "slot",
    "budget",
    "fairness",
    "provider",
    "pause",
    "quarantine",
    "failure",
    "not_started",
    "planning",
    "runs",
    "done",
]


@dataclass(frozen=True, kw_only=True)
class Reason:
    """A sentence, its cause for programs, and the command that changes it, if there is one."""

    cause: Cause
    text: str
    command: str | None = None


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the fleet does: the slots of all loops, and who else waits for one."""

    slots: int
    live: int
    live_of_loop: int
    #: The other loops that ask for a slot.
    others: Sequence[Demand] = ()
    budget: BudgetState = field(default_factory=BudgetState)


@dataclass(frozen=True, kw_only=True)
class JobWaits:
    """What the job of a running item waits for; empty if a worker runs it or takes it next."""

    waiting_for: str = ""
    behind: str = ""
    #: The rest of the sentence "waits for …".
    words: str = ""
    worker: str = ""


def why_item(
    snapshot: LoopSnapshot, item: str, around: Surroundings, job: JobWaits, now: float
) -> Reason:
    """Say why an item does not run, or that it does."""
    record, name = snapshot.record(item), snapshot.loop.name
    if record.state in DONE:
        return Reason(cause="done", text=f"{item} {WORDS[record.state]}{_because(record)}")
    if record.state in GAVE_UP:
        cause: Cause = "quarantine" if record.state == "quarantined" else "failure"
        text = f"{item} {WORDS[record.state]} ({record.reason}, {duration(now - record.since)} ago)"
        return Reason(cause=cause, text=text, command=f"mulligan loops reset {name} {item}")
    if record.state in ("pending", "blocked"):
        return _why_pending(snapshot, item, now)
    if (held := _why_held(snapshot, around, now)) is not None:
        return Reason(cause=held.cause, text=f"{item} waits: {held.text}", command=held.command)
    if record.state == "running":
        return _why_running(snapshot, item, around, job)
    waits = _why_no_slot(snapshot, around)
    return Reason(cause=waits.cause, text=f"{item} waits: {waits.text}", command=waits.command)


def why_loop(snapshot: LoopSnapshot, around: Surroundings, now: float) -> Reason:
    """Say why a loop does not run, or that it does."""
    loop = snapshot.loop
    if (held := _why_held(snapshot, around, now)) is not None:
        return held
    match loop.state:
        case "completed":
            return Reason(cause="done", text="every item passed or was skipped")
        case "blocked":
            stuck = next(
                (s.id for s in snapshot.specs if snapshot.record(s.id).state in GAVE_UP), ""
            )
            return Reason(
                cause="failure",
                text=f"nothing can go on: {loop.reason}",
                command=f"mulligan loops reset {loop.name} {stuck}" if stuck else None,
            )
    if around.live_of_loop:
        return Reason(cause="runs", text=f"{around.live_of_loop} of its items run")
    if snapshot.count("ready"):
        return _why_no_slot(snapshot, around)
    return Reason(cause="runs", text="its items wait for something: ask about each of them")


def _because(record: ItemRecord) -> str:
    return f" ({record.reason})" if record.reason else ""


def _why_pending(snapshot: LoopSnapshot, item: str, now: float) -> Reason:
    """Name the item at the root of the chain that this one waits for."""
    name, root = snapshot.loop.name, item
    while (spec := snapshot.spec(root)) is not None:
        waits = [each for each in spec.depends_on if snapshot.record(each).state not in DONE]
        if not waits or snapshot.record(root).state not in ("pending", "blocked"):
            break
        # What gave up first, because only a person changes it. There are no cycles.
        root = min(waits, key=lambda each: snapshot.record(each).state not in GAVE_UP)
    if snapshot.spec(root) is None:
        text = f"{item} waits: dependency {root} does not exist"
        return Reason(cause="dependency", text=text, command=f"mulligan loops skip {name} {item}")
    record = snapshot.record(root)
    if root == item:
        text = f"{item} waits: the planner has not seen its last change yet"
        return Reason(cause="planning", text=text)
    state = WORDS[record.state]
    if record.state in GAVE_UP:
        since = f"{duration(now - record.since)} ago"
        text = f"{item} waits: dependency {root} {state} ({record.reason}, {since})"
        return Reason(cause="dependency", text=text, command=f"mulligan loops reset {name} {root}")
    text = f"{item} waits: dependency {root} {state}"
    return Reason(cause="dependency", text=text, command=f"mulligan loops why {name} {root}")


def _why_held(snapshot: LoopSnapshot, around: Surroundings, now: float) -> Reason | None:
    """Say what holds the whole loop back, if something does."""
    loop = snapshot.loop
    if loop.state in ("created", "stopped"):
        text = "the loop was not started" if loop.state == "created" else "the loop was stopped"
        return Reason(cause="not_started", text=text, command=f"mulligan loops start {loop.name}")
    if loop.state != "paused":
        return None
    if loop.paused_by == "budget":
        broken = breaches(loop.config.budget, snapshot.used)
        command = _raise_budget(loop.name, around.budget, *broken[0]) if broken else None
        return Reason(cause="budget", text=loop.reason, command=command)
    text = f"the loop was paused {duration(now - loop.since)} ago"
    return Reason(cause="pause", text=text, command=f"mulligan loops resume {loop.name}")


def _raise_budget(name: str, budget: BudgetState, scope: SharedScope, resource: Resource) -> str:
    limit = budget.limits.get((scope, resource), 0.0)
    more = max(limit, budget.used.get((scope, resource), 0.0)) * 2
    return f"mulligan loops set {name} --budget {scope}.{resource}={more:g}"


def _why_running(snapshot: LoopSnapshot, item: str, around: Surroundings, job: JobWaits) -> Reason:
    name = snapshot.loop.name
    kind, _, of = job.behind.partition(":")
    match kind:
        case "slot":
            waits = _why_no_slot(snapshot, around)
            text = f"{item} waits: {waits.text}"
            return Reason(cause=waits.cause, text=text, command=waits.command)
        case "budget":
            return _why_reserved(snapshot, item, around)
        case "provider":
            command = f"mulligan queue resume provider:{of}"
            return Reason(cause="provider", text=f"{item} waits for {job.words}", command=command)
        case "queue" | "task_type":
            command = f"mulligan queue resume {job.behind}"
            return Reason(cause="pause", text=f"{item} waits for {job.words}", command=command)
        case "quota":
            return Reason(cause="budget", text=f"{item} waits for {job.words}")
    where = f" on {job.worker}" if job.worker else ""
    if job.words:
        return Reason(cause="runs", text=f"{item} waits for {job.words}")
    return Reason(cause="runs", text=f"{item} runs{where}", command=f"mulligan loops show {name}")


def _why_reserved(snapshot: LoopSnapshot, item: str, around: Surroundings) -> Reason:
    budget, name = around.budget, snapshot.loop.name
    for scope, resource in budget.limits:
        limit, used = budget.limits[scope, resource], budget.used.get((scope, resource), 0.0)
        reserved = budget.reserved.get(resource, 0.0)
        left = limit - used - reserved
        if left <= 0 or left < budget.caps.get(resource, 0.0):
            text = (
                f"{item} waits: of the {scope} budget of {limit:g} {resource},"
                f" {used:g} are used and {reserved:g} are reserved by running attempts"
            )
            command = _raise_budget(name, budget, scope, resource)
            return Reason(cause="budget", text=text, command=command)
    return Reason(cause="budget", text=f"{item} waits for the budget of its loop")


def _why_no_slot(snapshot: LoopSnapshot, around: Surroundings) -> Reason:
    """Say why a loop with something to do gets no slot."""
    config, name = snapshot.config, snapshot.loop.name
    affordable = around.budget.room(around.live_of_loop)
    if affordable is not None and affordable <= 0:
        reserved = _why_reserved(snapshot, "", around)
        text = reserved.text.removeprefix(" waits: ").removeprefix(" waits for ")
        return Reason(cause="budget", text=text, command=reserved.command)
    if around.live_of_loop >= config.concurrency:
        return Reason(
            cause="slot",
            text=f"{around.live_of_loop} of {config.concurrency} items of this loop run",
            command=f"mulligan loops set {name} --concurrency {config.concurrency + 1}",
        )
    if around.live < around.slots:
        return Reason(cause="planning", text="the planner has not seen its last change yet")
    first = min(around.others, key=lambda each: each.priority, default=None)
    taken = f"{around.live} of {around.slots} slots of all loops are taken"
    if first is not None and first.priority < config.priority:
        return Reason(
            cause="fairness",
            text=f"{taken}, and {first.loop} with priority {first.priority} goes first",
            command=f"mulligan loops set {name} --priority {first.priority}",
        )
    if first is not None and first.priority == config.priority:
        return Reason(
            cause="fairness",
            text=f"{taken}, and {first.loop} with the same priority shares them",
            command=f"mulligan loops set {name} --priority {max(1, config.priority - 1)}",
        )
    return Reason(cause="slot", text=taken, command=f"mulligan loops slots {around.slots + 1}")
