"""Decide how a loop heals itself: the next step for an item that gave up, and what came of earlier.

A step is an action and a parameter. None is done twice to an item, so that every ladder ends, with
a person.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mulligan.policies.coordination.order import DEADLOCK_RULE
from mulligan.policies.jobs.backoff import doubled
from mulligan.policies.jobs.job import RunnerSpec
from mulligan.policies.loops.analysis import WORKER_LOST
from mulligan.policies.loops.heal_record import MOST_BY_ITSELF, MOST_HEALS, HealOutcome, HealRecord
from mulligan.policies.loops.loop import DONE, GAVE_UP, PLANNED, ItemRecord, LoopSnapshot
from mulligan.policies.loops.spec import HealAction, ItemSpec, LoopConfig

#: Seconds before an item whose workers or tools failed is restarted: first, and at most.
RESTART_AFTER = 30.0
RESTART_CAP = 600.0
#: So many restarts of a loop's items in so many seconds are a crash loop.
CRASH_RESTARTS = 5
CRASH_WINDOW = 900.0
_MOST_RESTARTS = 6
_MOST_ROLLBACKS = 1
#: Seconds between two looks at the draft of a split.
DRAFT_LOOK = 5.0
#: Why an item ended that another try may do without a change: something around it failed.
_AROUND = (WORKER_LOST, "deadline", "tool_error", "setup_failed", "no_base", "its job is gone")
#: Only a person decides about these.
_FOR_PEOPLE = ("unsafe_request", "budget_", "already_done")
#: Somebody ended it, and knows.
_BY_PEOPLE = "cancelled"
#: The branch was broken before the item began.
BROKEN_BRANCH = "guard_fails_before"

FRESH = "fresh context"
TWO_PARTS = "two parts"
PERSON = "a person"
ORCHESTRATOR = "the orchestrator"


@dataclass(frozen=True, kw_only=True)
class HealStep:
    """What to do about an item that gave up."""

    action: HealAction
    parameter: str = ""
    #: When.
    due_at: float = 0.0


def stronger_runners(config: LoopConfig) -> dict[str, RunnerSpec]:
    """Return the runners that items are escalated to, by their names in records."""
    return {
        each.profile or f"{each.kind} {number}": each
        for number, each in enumerate(config.escalate_to, 1)
    }


def steps(snapshot: LoopSnapshot, item: str, now: float) -> Iterator[HealStep]:
    """Yield everything that may heal an item, in this order, also what was done already."""
    record, config = snapshot.record(item), snapshot.config
    if record.reason.startswith(_BY_PEOPLE):
        return
    if record.reason.startswith(_FOR_PEOPLE) and not _ended_stronger(snapshot, item):
        pass
    elif record.reason.startswith(BROKEN_BRANCH):
        if config.repo is not None and len(_done(snapshot, item, "rollback")) < _MOST_ROLLBACKS:
            yield HealStep(action="rollback")
    elif record.reason.startswith(_AROUND):
        yield from _restarts(snapshot, record, now)
    else:
        yield from _other_ways(snapshot, item)
    if config.on_blocked == "reroute" and any(item in each.depends_on for each in snapshot.specs):
        yield HealStep(action="repair_dependency_chain", parameter="reroute")
    yield HealStep(action="skip", parameter="left out")
    yield HealStep(action="escalate", parameter=PERSON)


def _ended_stronger(snapshot: LoopSnapshot, item: str) -> bool:
    """Whether a stronger runner had the last run: then its failure is not about the item."""
    heals = [
        each
        for each in snapshot.heals
        if each.item == item and each.outcome != "refused" and each.by != DEADLOCK_RULE
    ]
    return bool(heals) and heals[-1].parameter in stronger_runners(snapshot.config)


def _restarts(snapshot: LoopSnapshot, record: ItemRecord, now: float) -> Iterator[HealStep]:
    """Yield restarts, each later than the one before, unless the loop is in a crash loop."""
    if is_crash_loop(snapshot.heals, now):
        return
    for number in range(1, _MOST_RESTARTS + 1):
        delay = restart_delay(number)
        yield HealStep(
            action="unblock", parameter=f"after {delay:.0f} s", due_at=record.since + delay
        )


def restart_delay(number: int) -> float:
    """Return the seconds before a restart; ``number`` is 1 for the first one."""
    return doubled(number, base=RESTART_AFTER, cap=RESTART_CAP)


def is_crash_loop(heals: Sequence[HealRecord], now: float) -> bool:
    """Whether too many restarts happened in a short time."""
    recent = [each for each in heals if each.action == "unblock" and now - each.at <= CRASH_WINDOW]
    return len(recent) >= CRASH_RESTARTS


def _other_ways(snapshot: LoopSnapshot, item: str) -> Iterator[HealStep]:
    yield HealStep(action="change_strategy", parameter=FRESH)
    for name in stronger_runners(snapshot.config):
        yield HealStep(action="escalate", parameter=name)
    if not any(item in parts_of(each) for each in snapshot.heals):  # a part is small enough
        yield HealStep(action="split", parameter=TWO_PARTS)


def next_step(snapshot: LoopSnapshot, item: str, now: float) -> HealStep | None:
    """Return the next step that the loop may take by itself; None if there is nothing to do.

    It may be due only later. While an earlier one is under way, there is none.
    """
    record = snapshot.record(item)
    if record.state not in GAVE_UP or snapshot.loop.state not in PLANNED:
        return None
    if any(each.item == item and each.outcome == "pending" for each in snapshot.heals):
        return None
    if len(snapshot.heals) >= MOST_HEALS:
        return None
    allowed = snapshot.config.heals if len(snapshot.heals) < MOST_BY_ITSELF else frozenset()
    found = untried(snapshot, item, now)
    # A person is told in any case, with an analysis.
    return next((s for s in found if s.action in allowed or s.parameter == PERSON), None)


def untried(snapshot: LoopSnapshot, item: str, now: float) -> Iterator[HealStep]:
    """Yield the steps that were not done to an item."""
    run = snapshot.record(item).runs
    # A person who had it run again is told of that run, too.
    done = {
        (each.action, each.parameter)
        for each in snapshot.heals
        if each.item == item and (each.parameter != PERSON or each.run == run)
    }
    for step in steps(snapshot, item, now):
        if (step.action, step.parameter) not in done:
            yield step


def due_steps(snapshot: LoopSnapshot, now: float) -> list[tuple[str, HealStep]]:
    """Return the items that can be healed now, with the step of each."""
    found = [(spec.id, next_step(snapshot, spec.id, now)) for spec in _gave_up(snapshot)]
    return [(item, step) for item, step in found if step is not None and step.due_at <= now]


def next_due(snapshot: LoopSnapshot, now: float) -> float | None:
    """Return when the next step is due that is not due yet."""
    found = [next_step(snapshot, spec.id, now) for spec in _gave_up(snapshot)]
    times = [step.due_at for step in found if step is not None and step.due_at > now]
    drafted = any(h.action == "split" and h.outcome == "pending" for h in snapshot.heals)
    return min([*times, *([now + DRAFT_LOOK] if drafted else [])], default=None)


def _gave_up(snapshot: LoopSnapshot) -> list[ItemSpec]:
    return [each for each in snapshot.specs if snapshot.record(each.id).state in GAVE_UP]


def _done(snapshot: LoopSnapshot, item: str, action: HealAction) -> list[HealRecord]:
    return [each for each in snapshot.heals if each.item == item and each.action == action]


# -- what came of it -------------------------------------------------------------------------------


def ended_heals(snapshot: LoopSnapshot, now: float) -> list[HealRecord]:
    """Return the healings whose outcome is known now and was not before."""
    pending = [each for each in snapshot.heals if each.outcome == "pending" and each.item]
    return [ended for each in pending if (ended := _ended(snapshot, each, now)) is not None]


def _ended(snapshot: LoopSnapshot, heal: HealRecord, now: float) -> HealRecord | None:
    names = parts_of(heal) or (heal.item,)
    if heal.action == "split" and not parts_of(heal):
        return _ended_draft(snapshot.record(heal.item), heal, now)
    records = [snapshot.record(each) for each in names if snapshot.spec(each) is not None]
    gave_up = [r for r in records if r.state in GAVE_UP and (len(names) > 1 or r.runs > heal.run)]
    if gave_up:
        # Of a split, the result names the parts, which are not split again.
        return heal.ended("failed", now=now, result=heal.result or gave_up[0].reason)
    if not all(each.state in DONE for each in records):
        return None
    passed = any(each.state == "passed" for each in records)
    return heal.ended("passed" if passed else "skipped", now=now, result=heal.result)


def _ended_draft(record: ItemRecord, heal: HealRecord, now: float) -> HealRecord | None:
    """Return a split whose item went on without it, while it was drafted."""
    if record.state in DONE:
        outcome: HealOutcome = "passed" if record.state == "passed" else "skipped"
        return heal.ended(outcome, now=now)
    if record.runs != heal.run or record.state not in GAVE_UP:
        return heal.ended("refused", now=now, result="the item was run again meanwhile")
    return None


def parts_of(heal: HealRecord) -> tuple[str, ...]:
    """Return the items that an item was split into."""
    if heal.action != "split" or not heal.result:
        return ()
    return tuple(heal.result.split(", "))


def healed_run(snapshot: LoopSnapshot, item: str) -> HealRecord | None:
    """Return the healing that the next run of an item belongs to, if it changes that run."""
    pending = [
        each
        for each in snapshot.heals
        if each.item == item
        and each.outcome == "pending"
        and each.run == snapshot.record(item).runs
        and each.by != DEADLOCK_RULE  # it tells people, and heals nothing
    ]
    return pending[-1] if pending else None


def runner_of(config: LoopConfig, heal: HealRecord | None) -> RunnerSpec | None:
    """Return the stronger runner that a healing names; None: the item's own."""
    if heal is None or heal.action != "escalate":
        return None
    return stronger_runners(config).get(heal.parameter)


def advice_of(config: LoopConfig, heal: HealRecord | None) -> str:
    """Return what the next run of an item is told about the earlier ones."""
    if heal is None:
        return ""
    tells = heal.action == "change_strategy" or runner_of(config, heal) is not None
    return heal.advice if tells else ""


def rerouted(specs: Sequence[ItemSpec], item: str, instead: Sequence[str]) -> tuple[ItemSpec, ...]:
    """Return the items, with those that depend on one depending on others instead."""

    def changed(spec: ItemSpec) -> ItemSpec:
        if item not in spec.depends_on:
            return spec
        others = [each for each in spec.depends_on if each != item]
        new = [each for each in instead if each not in others]
        return spec.model_copy(update={"depends_on": (*others, *new)})

    return tuple(changed(spec) for spec in specs)
