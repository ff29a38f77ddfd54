"""Why a loop or an item does not run, and the one action that changes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mulligan.policies.coordination.locks import Denial, plain_pattern
from mulligan.policies.coordination.outer_waits import open_waits, wait_words
from mulligan.policies.figures.format import counted, duration
from mulligan.policies.loops.admission import Demand, most_begun
from mulligan.policies.loops.budget import BudgetState, Resource, SharedScope, breaches
from mulligan.policies.loops.healing import PERSON, next_step
from mulligan.policies.loops.loop import DONE, GAVE_UP, ItemState, LoopSnapshot
from mulligan.policies.loops.plan import (
    WORDS,
    satisfied,
    stuck_items,
    used_up,
    waiting_item,
    waiting_reason,
)
from mulligan.policies.loops.remedy import Action, LoopRemedy
from mulligan.policies.loops.spec import EVENT

#: What holds an item or a loop back; ``runs`` and ``done`` if nothing does.
Cause = Literal[
    "dependency",
    "event",
    "lock",
    "order",
    "slot",
    "budget",
    "fairness",
    "provider",
    "pause",
    "quarantine",
    "failure",
    "not_started",
    "moved",
    "planning",
    "worker",
    "repository",
    "delivery",
    "runs",
    "done",
]


@dataclass(frozen=True, kw_only=True)
class Reason:
    """A sentence, its cause for programs, and what changes it, if something does."""

    cause: Cause
    text: str
    remedy: LoopRemedy | None = None
    #: What the escalation of the item says, in a line. It may quote the item's texts.
    detail: str = ""
    #: What it waits for outside its loop, as in `ItemSpec.outer_waits`: the reason may lie there.
    wait: str = ""

    @property
    def command(self) -> str | None:
        """The command of a terminal that changes it."""
        return None if self.remedy is None else self.remedy.command


#: The pools whose workers plan loops and do their items.
PLANNERS = "control"
ITEM_WORKERS = "agent"
#: Of a job that waits, but is parked behind nothing.
_CAUSES: dict[str, Cause] = {
    "worker": "worker",
    "version": "worker",
    "delay": "provider",
    "repository": "repository",
}
_ENDING = "an attempt that was stopped has not ended yet"
_BEFORE_READY: frozenset[ItemState] = frozenset({"pending", "blocked"})
#: Of several items that one waits for, which to name: what gave up, what is blocked, the first.
_URGENCY: dict[str, int] = {"failed": 0, "quarantined": 0, "blocked": 1}


@dataclass(frozen=True, kw_only=True)
class FleetState:
    """What the fleet does: the slots of all loops, and who else waits for one."""

    slots: int
    live: int
    live_of_loop: int
    #: Whether a worker holds one of them.
    held: bool = True
    #: Items of the loop whose stopped attempt has not ended: a worker learns of it at its renewal.
    ending: Collection[str] = ()
    #: The other loops that ask for a slot.
    others: Sequence[Demand] = ()
    budget: BudgetState = field(default_factory=BudgetState)
    #: The pools of loops and their items without a worker.
    missing_pools: Collection[str] = ()
    #: Whether `mulligan up` serves this ledger; None if other supervisors run the workers.
    up: bool | None = None
    #: Items of the loop that were denied files.
    denied: Mapping[str, Denial] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class JobWaits:
    """What the job of a running item waits for; empty if it runs."""

    waiting_for: str = ""
    behind: str = ""
    #: The rest of the sentence "waits for …".
    words: str = ""
    worker: str = ""
    #: Whether it waits for a provider that a person can resume.
    closed: bool = False
    #: Why it ended, in a line.
    detail: str = ""


def why_item(
    snapshot: LoopSnapshot, item: str, fleet: FleetState, job: JobWaits, now: float
) -> Reason:
    """Say why an item does not run, or that it does.

    ``job``: of the item that this one waits for in the end, which may be itself: see `root_of`.
    """
    root = root_of(snapshot, item)
    reason = _why_root(snapshot, root, fleet, job, now)
    if root == item:
        return reason
    text = f"{item} waits: dependency {reason.text}"
    return replace(reason, cause="dependency", text=text)


def why_loop(snapshot: LoopSnapshot, fleet: FleetState, job: JobWaits, now: float) -> Reason:
    """Say why a loop does not run, or that it does. ``job``: of its `running_item`."""
    if (held := _why_held(snapshot, fleet, now)) is not None:
        return held
    if snapshot.loop.state == "completed":
        return _why_completed(snapshot)
    if snapshot.loop.state == "blocked" and (stuck := stuck_items(snapshot)):
        reason = why_item(snapshot, stuck[0], fleet, job, now)
        others = waiting_reason(snapshot)
        text = f"nothing can go on: {reason.text}" + (f"; {others}" if others else "")
        return replace(reason, text=text)
    if snapshot.loop.state == "waiting" and (item := waiting_item(snapshot)) is not None:
        return why_item(snapshot, item, fleet, job, now)
    running = fleet.live_of_loop - len(fleet.ending)
    if running and fleet.held:
        verb = "runs" if running == 1 else "run"
        return Reason(cause="runs", text=f"{counted(running, 'item')} {verb}")
    item = running_item(snapshot)
    if item is not None and (running or not snapshot.count("ready")):
        return why_item(snapshot, item, fleet, job, now)
    if snapshot.count("ready"):
        ready = [s.id for s in snapshot.specs if snapshot.record(s.id).state == "ready"]
        own = [_why_not_this(snapshot, each, fleet) for each in ready]
        if (first := own[0]) is not None and None not in own:  # it is not about slots
            return replace(first, text=f"{ready[0]} waits {first.text}")
        return _why_no_slot(snapshot, fleet, job)
    return _not_planned(fleet)


def _why_completed(snapshot: LoopSnapshot) -> Reason:
    done, problem = "every item passed or was skipped", snapshot.loop.delivery_problem
    if not problem:
        return Reason(cause="done", text=done)
    text = f"{done}, but the work is not delivered: {problem}. It is tried again every minute"
    return Reason(cause="delivery", text=text)


def running_item(snapshot: LoopSnapshot) -> str | None:
    """Return the first item with a job that has not ended."""
    return next((s.id for s in snapshot.specs if snapshot.record(s.id).state == "running"), None)


def root_of(snapshot: LoopSnapshot, item: str) -> str:
    """Return the item that this one waits for in the end; itself if it waits for no other.

    An item with a dependency that does not exist waits for itself: only it can be changed.
    """
    while snapshot.record(item).state in _BEFORE_READY:
        waits = _waits_for(snapshot, item)
        if not waits or any(snapshot.spec(each) is None for each in waits):
            break
        # What gave up first, because only a person changes it. There are no cycles.
        item = min(waits, key=lambda each: _URGENCY.get(snapshot.record(each).state, 2))
    return item


def _waits_for(snapshot: LoopSnapshot, item: str) -> list[str]:
    spec, on_blocked = snapshot.spec(item), snapshot.config.on_blocked
    dependencies = spec.own_dependencies if spec else ()
    return [each for each in dependencies if not satisfied(snapshot.record(each), on_blocked)]


def _why_root(
    snapshot: LoopSnapshot, item: str, fleet: FleetState, job: JobWaits, now: float
) -> Reason:
    """Say why an item does not run that waits for no other one."""
    record, name = snapshot.record(item), snapshot.loop.name
    words = f"{item} {WORDS[record.state]}"
    if record.state in DONE:
        return Reason(cause="done", text=f"{words} ({record.reason})" if record.reason else words)
    if record.state in GAVE_UP:
        cause: Cause = "quarantine" if record.state == "quarantined" else "failure"
        ago = f"{duration(now - record.since)} ago"
        text = f"{words} ({', '.join(filter(None, (record.reason, ago)))})"
        text += _healing_words(snapshot, item, now)
        reset = _of("reset_item", name, item)
        return Reason(cause=cause, text=text, remedy=reset, detail=job.detail)
    missing = [each for each in _waits_for(snapshot, item) if snapshot.spec(each) is None]
    if missing and record.state in _BEFORE_READY:
        text = f"{item} waits: dependency {missing[0]} does not exist"
        skip = _of("skip_item", name, item, reason=f"{missing[0]} does not exist")
        return Reason(cause="dependency", text=text, remedy=skip)
    if record.state == "running" and not job.waiting_for:
        return Reason(
            cause="runs", text=f"{item} runs" + (f" on {job.worker}" if job.worker else "")
        )
    waits = _why_held(snapshot, fleet, now)
    if waits is None and (record.state != "running" or job.behind.startswith("slot:")):
        waits = _why_not_this(snapshot, item, fleet)
    if waits is None and record.state == "running":
        waits = _why_parked(snapshot, fleet, job)
    if waits is None:
        unplanned = record.state in _BEFORE_READY
        ends = Reason(cause="slot", text=_ENDING) if item in fleet.ending else None
        waits = ends or (_not_planned(fleet) if unplanned else _why_no_slot(snapshot, fleet, job))
    colon = " " if waits.text.startswith(("for ", "because ")) else ": "
    return replace(waits, text=f"{item} waits{colon}{waits.text}")


def _why_not_this(snapshot: LoopSnapshot, item: str, fleet: FleetState) -> Reason | None:
    """Say what holds one item back outside its loop: other loops, events, files, a person."""
    spec, record, name = snapshot.spec(item), snapshot.record(item), snapshot.loop.name
    if by := snapshot.held_by(item):
        text = f"because {by} holds it"
        return Reason(cause="order", text=text, remedy=_order(name, item, "none"))
    if record.state == "pending" and spec and (waits := open_waits(snapshot, spec, record)):
        # What gave up first, because only a person changes it.
        wait = min(waits, key=lambda each: _URGENCY.get(snapshot.outer.get(each, ""), 2))
        cause: Cause = "event" if wait.startswith(EVENT) else "dependency"
        words = wait_words(wait, snapshot.outer.get(wait, ""))
        remedy = _order(name, item, "ignore_waits")
        return Reason(cause=cause, text=f"for {words}", remedy=remedy, wait=wait)
    if item in fleet.denied:
        found = fleet.denied[item]
        has = (
            f"for which {found.holder} waits longer"
            if found.reserved
            else (f"which {found.holder} changes")
        )
        text = f"for {plain_pattern(found.files)}, {has}"
        return Reason(cause="lock", text=text, remedy=_order(name, item, "ignore_locks"))
    return None


def _order(loop: str, item: str, word: str) -> LoopRemedy:
    return LoopRemedy(action="order_item", arguments={"loop": loop, "item": item, "order": word})


def _healing_words(snapshot: LoopSnapshot, item: str, now: float) -> str:
    """Say what the loop does about an item that gave up, if it does something."""
    pending = [h for h in snapshot.heals if h.item == item and h.outcome == "pending"]
    if pending:
        action = pending[-1].action
        return "" if action == "escalate" else f"; it is being healed: {action}"
    step = next_step(snapshot, item, now)
    if step is None or step.parameter == PERSON:
        return ""
    return f"; {step.action} follows in {duration(max(0.0, step.due_at - now))}"


def _why_held(snapshot: LoopSnapshot, fleet: FleetState, now: float) -> Reason | None:
    """Say what holds the whole loop back, if something does."""
    loop = snapshot.loop
    if loop.has_moved:
        return Reason(cause="moved", text=f"the loop {loop.reason}, and goes on there")
    if loop.state in ("created", "stopped"):
        text = "the loop was not started" if loop.state == "created" else "the loop was stopped"
        return Reason(cause="not_started", text=text, remedy=_of("start_loop", loop.name))
    if loop.state != "paused":
        return None
    text = f"the loop was paused {duration(now - loop.since)} ago"
    if loop.paused_by == "monitor":
        text += f" by the monitor: {loop.reason}"
    broken = breaches(loop.config.budget, snapshot.used)
    if not broken:
        if loop.paused_by == "budget":
            return _not_planned(fleet)
        return Reason(cause="pause", text=text, remedy=_of("resume_loop", loop.name))
    scope, resource = broken[0]
    over = used_up(scope, resource) + (" until 00:00 UTC" if scope == "day" else "")
    return Reason(
        cause="budget",
        text=over if loop.paused_by == "budget" else f"{text}, and {over}",
        remedy=_raise_budget(snapshot, fleet, scope, resource),
    )


def _of(action: Action, loop: str, item: str | None = None, **more: str) -> LoopRemedy:
    return LoopRemedy(
        action=action, arguments={"loop": loop, **({"item": item} if item else {}), **more}
    )


def _set(loop: str, **changes: Any) -> LoopRemedy:
    return LoopRemedy(action="configure_loop", arguments={"loop": loop, "changes": changes})


def _resume(behind: str) -> LoopRemedy:
    return LoopRemedy(action="resume_queue", arguments={"what": behind})


def _start(pool: str, fleet: FleetState) -> LoopRemedy | None:
    if fleet.up:
        return None  # it starts them again by itself; a frozen one needs a look at its log
    if fleet.up is not None:
        return LoopRemedy(action="start_all_workers")
    return LoopRemedy(action="start_worker", arguments={"pool": pool})


def _not_planned(fleet: FleetState) -> Reason:
    if PLANNERS in fleet.missing_pools:
        text = f"no worker of the pool {PLANNERS} has reported for 30 s, so that nobody plans it"
        return Reason(cause="worker", text=text, remedy=_start(PLANNERS, fleet))
    return Reason(cause="planning", text="the planner has not seen the last change yet")


def _why_parked(snapshot: LoopSnapshot, fleet: FleetState, job: JobWaits) -> Reason:
    """Say what an item waits for that has begun: its job says what it is."""
    kind, _, _ = job.behind.partition(":")
    text = f"for {job.words}"
    match kind:
        case "slot":
            return _why_no_slot(snapshot, fleet, job)
        case "budget":
            return _why_no_budget(snapshot, fleet) or Reason(cause="budget", text=text)
        case "queue" | "task_type":
            return Reason(cause="pause", text=text, remedy=_resume(job.behind))
        case "provider":
            remedy = _resume(job.behind) if job.closed else None
            return Reason(cause="provider", text=text, remedy=remedy)
        case "quota":
            return Reason(cause="budget", text=text)
        case "merge":
            return Reason(cause="slot", text=text)
    if job.waiting_for == "worker" and ITEM_WORKERS in fleet.missing_pools:
        text = f"for a worker: none of the pool {ITEM_WORKERS} has reported for 30 s"
        return Reason(cause="worker", text=text, remedy=_start(ITEM_WORKERS, fleet))
    return Reason(cause=_CAUSES.get(job.waiting_for, "runs"), text=text)


def _why_no_slot(snapshot: LoopSnapshot, fleet: FleetState, job: JobWaits) -> Reason:
    """Say why a loop with something to do gets no slot. ``job``: of an item that has begun."""
    config, name = snapshot.config, snapshot.loop.name
    if fleet.live_of_loop >= config.concurrency and fleet.ending:
        return Reason(cause="slot", text=_ENDING)
    if fleet.live_of_loop >= config.concurrency:
        return Reason(
            cause="slot",
            text=f"{fleet.live_of_loop} of {config.concurrency} items of this loop run",
            remedy=_set(name, concurrency=config.concurrency + 1),
        )
    if (budget := _why_no_budget(snapshot, fleet)) is not None:
        return budget
    begun = snapshot.count("running")
    if begun >= most_begun(config.concurrency):
        # What they wait for holds the others back, too.
        parked = not job.behind.startswith("slot:") and bool(job.waiting_for)
        inner = _why_parked(snapshot, fleet, job) if parked else Reason(cause="slot", text="")
        text = f"{begun - fleet.live_of_loop} items of this loop have begun and wait {inner.text}"
        return replace(inner, text=text.rstrip())
    if fleet.live < fleet.slots:
        return _not_planned(fleet)
    taken = f"{fleet.live} of {fleet.slots} slots of all loops are taken"
    more = max(fleet.slots, fleet.live) + 1
    more_slots = LoopRemedy(action="set_loop_slots", arguments={"slots": more})
    first = min(fleet.others, key=lambda each: each.priority, default=None)
    lowered = fleet.live > fleet.slots or fleet.slots == 0
    if first is None or first.priority > config.priority or lowered:
        return Reason(cause="slot", text=taken, remedy=more_slots)
    before = max(1, first.priority - 1)
    return Reason(
        cause="fairness",
        text=f"{taken}, and {first.loop} with priority {first.priority} goes first"
        if first.priority < config.priority
        else f"{taken}, and {first.loop} with the same priority shares them",
        remedy=_set(name, priority=before) if before < config.priority else more_slots,
    )


def _why_no_budget(snapshot: LoopSnapshot, fleet: FleetState) -> Reason | None:
    """Say which limit has too little left for another attempt, if one has."""
    budget, name = fleet.budget, snapshot.loop.name
    for (scope, resource), limit in budget.limits.items():
        alone = replace(budget, limits={(scope, resource): limit})
        if alone.room(fleet.live_of_loop):
            continue
        if resource in budget.unlimited:
            text = f"attempts that began before the {scope} budget of {resource} still run"
            return Reason(cause="budget", text=text)
        used, reserved = budget.used.get((scope, resource), 0.0), budget.reserved.get(resource, 0.0)
        if resource not in budget.caps and used < limit:
            return Reason(
                cause="budget",
                text=f"attempts have no cap of {resource}, so that they run one at a time"
                f" within the {scope} budget",
                remedy=_set_budget(name, "attempt", resource, (limit - used) / 2),
            )
        return Reason(
            cause="budget",
            text=f"the {scope} budget of {resource} has too little left: of"
            f" {_amount(limit)}, {_amount(used)} are used and {_amount(reserved)} are reserved"
            " by running attempts",
            remedy=_raise_budget(snapshot, fleet, scope, resource),
        )
    return None


def _raise_budget(
    snapshot: LoopSnapshot, fleet: FleetState, scope: SharedScope, resource: Resource
) -> LoopRemedy:
    """Make room for one more attempt, and for as much again."""
    budget, limit = fleet.budget, snapshot.config.budget.shared()[scope, resource]
    used, cap = budget.used.get((scope, resource), 0.0), budget.caps.get(resource, 0.0)
    unclaimed = max(0, fleet.live_of_loop - budget.reservations)
    needed = used + budget.reserved.get(resource, 0.0) + cap * (unclaimed + 1)
    return _set_budget(snapshot.loop.name, scope, resource, max(2 * limit, 2 * used, needed))


def _set_budget(loop: str, scope: str, resource: Resource, limit: float) -> LoopRemedy:
    return _set(loop, budget={scope: {resource: _amount(limit, resource)}})


def _amount(value: float, resource: Resource | None = None) -> str:
    """Return an amount in full, as commands accept it. Tokens are whole."""
    if resource == "tokens":
        value = max(1, int(value))
    return f"{value:.6f}".rstrip("0").rstrip(".")
