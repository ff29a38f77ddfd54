"""Heal: act for items that gave up, as far as their loop allows, and record what came of it.

The planner heals a loop before it plans it, so that one writer decides both. People and
orchestrators may ask for the same actions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mulligan.policies.loops.analysis import AttemptFacts, FailureAnalysis, analyse
from mulligan.policies.loops.commands import NotPossible, reset_item, skip_item
from mulligan.policies.loops.heal_record import HealRecord
from mulligan.policies.loops.healing import (
    BROKEN_BRANCH,
    FRESH,
    ORCHESTRATOR,
    PERSON,
    TWO_PARTS,
    HealStep,
    due_steps,
    ended_heals,
    rerouted,
    untried,
)
from mulligan.policies.loops.loop import GAVE_UP, LoopChange, LoopSnapshot
from mulligan.policies.loops.plan import stuck_items
from mulligan.policies.loops.spec import HEAL_ACTIONS, HealAction
from mulligan.policies.loops.why import root_of
from mulligan.policies.repair import wording
from mulligan.tasks.loops.change import LoopConflict, change_loop
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.rollback import last_good_checkpoint, rollback_change
from mulligan.tasks.loops.split import begin_split, continue_split
from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
from mulligan.tasks.ports.ledger import AttemptView, LoopReading, LoopWrite, Requester, Written

AUTO_HEAL = Requester(by="auto_heal")


def heal_loop(context: LoopContext, reading: LoopReading) -> bool:
    """Take the next step for a loop that was read. Return whether the loop must be read again."""
    change = _next_change(context, reading.snapshot)
    if change is None:
        return False
    written = context.ledger.write_loop(LoopWrite(reading=reading, change=change, caller=AUTO_HEAL))
    if isinstance(written, Written):
        context.publish(written.publish)
    return True


def _next_change(context: LoopContext, snapshot: LoopSnapshot) -> LoopChange | None:
    now = context.ledger.now()
    if ended := ended_heals(snapshot, now):
        note = "; ".join(map(_ended_words, ended))
        return LoopChange(
            heals=ended, note=note, cancel=[each.job_id for each in ended if each.job_id]
        )
    if (going_on := _continued(context, snapshot, now)) is not None:
        return going_on
    for item, step in due_steps(snapshot, now)[:1]:
        return decide_heal(context, snapshot, item, step, by=AUTO_HEAL.by, now=now)
    return None


def _ended_words(heal: HealRecord) -> str:
    result = f" ({heal.result})" if heal.outcome != "passed" and heal.result else ""
    return f"{heal.item}: {heal.action} → {heal.outcome}{result}"


def _continued(context: LoopContext, snapshot: LoopSnapshot, now: float) -> LoopChange | None:
    """Return the next part of a healing that takes several steps."""
    for heal in snapshot.heals:
        record = snapshot.record(heal.item)
        if heal.outcome != "pending" or record.runs != heal.run or record.state not in GAVE_UP:
            continue
        if heal.action == "rollback" and not snapshot.loop.rollback:
            return reset_item(snapshot, heal.item, now=now)
        if heal.action == "split":
            change = continue_split(context, snapshot, heal, now)
            if change is not None:
                return change
    return None


# -- actions ---------------------------------------------------------------------------------------


def decide_heal(
    context: LoopContext,
    snapshot: LoopSnapshot,
    item: str,
    step: HealStep,
    *,
    by: str,
    now: float,
    reason: str = "",
) -> LoopChange:
    """Return the change that a step makes, with its record. One that is not possible is refused."""
    analysis = analyse_item(context, snapshot, item)
    heal = HealRecord(
        number=max((each.number for each in snapshot.heals), default=0) + 1,
        at=now,
        item=item,
        action=step.action,
        parameter=step.parameter,
        reason=reason or analysis.summary,
        pattern=analysis.words,
        run=snapshot.record(item).runs,
        by=by,
    )
    work = _HealWork(context=context, snapshot=snapshot, heal=heal, analysis=analysis, now=now)
    try:
        return _ACTIONS[step.action](work)
    except (NotPossible, BadInput, RepositoryUnavailable) as error:
        refused = heal.ended("refused", now=now, result=str(error))
        # What the error quotes is not for everybody who reads the log.
        return LoopChange(heals=(refused,), note=f"{item}: {step.action} is not possible")


@dataclass(frozen=True, kw_only=True)
class _HealWork:
    """One step, and what it is decided from."""

    context: LoopContext
    snapshot: LoopSnapshot
    heal: HealRecord
    analysis: FailureAnalysis
    now: float

    def recorded(self, change: LoopChange, heal: HealRecord | None = None) -> LoopChange:
        """Return a change with the record of the healing, and a line for the log."""
        kept = heal or self.heal
        what = f"{kept.item}: {kept.action}" + (f" ({kept.parameter})" if kept.parameter else "")
        return replace(change, heals=(kept,), note=f"{what}, because {kept.pattern}")


def _change_strategy(work: _HealWork) -> LoopChange:
    advice = wording.EARLIER_RUN.format(
        summary=work.analysis.summary, advice=wording.AFTER_PATTERN[work.analysis.pattern]
    )
    change = reset_item(work.snapshot, work.heal.item, now=work.now)
    return work.recorded(change, replace(work.heal, advice=advice))


def _unblock(work: _HealWork) -> LoopChange:
    return work.recorded(reset_item(work.snapshot, work.heal.item, now=work.now))


def _escalate(work: _HealWork) -> LoopChange:
    if work.heal.parameter not in (PERSON, ORCHESTRATOR):
        return _change_strategy(work)
    suggestion = suggest(work.snapshot, work.heal.item, work.now)
    advice = f"{work.analysis.text} Suggested: {suggestion}"
    return work.recorded(LoopChange(), replace(work.heal, advice=advice))


def _skip(work: _HealWork) -> LoopChange:
    reason = f"healing did not help: {work.analysis.words}"
    change = skip_item(work.snapshot, work.heal.item, reason=reason, now=work.now)
    return work.recorded(change)


def _reroute(work: _HealWork) -> LoopChange:
    """Let the items after one go on without it."""
    snapshot, item = work.snapshot, work.heal.item
    spec = snapshot.spec(item)
    specs = rerouted(snapshot.specs, item, spec.depends_on if spec else ())
    moved = [new.id for new, old in zip(specs, snapshot.specs, strict=True) if new != old]
    if not moved:
        raise NotPossible(f"nothing depends on {item}")
    heal = work.heal.ended("passed", now=work.now, result=f"{', '.join(moved)} go on without it")
    return work.recorded(LoopChange(specs=specs), heal)


def _roll_back(work: _HealWork) -> LoopChange:
    commit = work.heal.parameter or last_good_checkpoint(work.context, work.snapshot)
    change = rollback_change(
        work.context, work.snapshot, to=commit, item=None, by=work.heal.by, now=work.now
    )
    return work.recorded(change, replace(work.heal, parameter=commit))


def _split(work: _HealWork) -> LoopChange:
    heal = begin_split(work.context, work.snapshot, work.heal, work.analysis)
    return work.recorded(LoopChange(), heal)


_ACTIONS: dict[HealAction, Callable[[_HealWork], LoopChange]] = {
    "change_strategy": _change_strategy,
    "unblock": _unblock,
    "escalate": _escalate,
    "skip": _skip,
    "repair_dependency_chain": _reroute,
    "rollback": _roll_back,
    "split": _split,
}


# -- analysis --------------------------------------------------------------------------------------


def analyse_failed(context: LoopContext, snapshot: LoopSnapshot, item: str) -> FailureAnalysis:
    """Analyse the last run of an item for somebody who asks. Raises LoopConflict if it works."""
    state = snapshot.record(item).state
    if state not in GAVE_UP:
        raise LoopConflict(f"{item} is {state}: there is no failure to analyse")
    return analyse_item(context, snapshot, item)


def analyse_item(context: LoopContext, snapshot: LoopSnapshot, item: str) -> FailureAnalysis:
    """Analyse the last run of an item."""
    record = snapshot.record(item)
    job = context.ledger.job(record.job_id) if record.job_id else None
    attempts = [_facts(each) for each in job.attempts] if job is not None else []
    heals = [each for each in snapshot.heals if each.item == item]
    detail = f": {job.detail}" if job is not None and job.detail else ""
    reason = f"{record.reason}{detail}"
    return analyse(item, reason, attempts, heals, context.stuck_rules())


def _facts(attempt: AttemptView) -> AttemptFacts:
    failure = attempt.verdict.failure if attempt.verdict is not None else None
    output = attempt.output
    return AttemptFacts(
        number=attempt.plan.number,
        score=attempt.score,
        failure=failure.label if failure is not None else "",
        signature=failure.classification_signature if failure is not None else "",
        message=failure.message if failure is not None else "",
        technique=attempt.plan.technique or "",
        worker=attempt.worker or "",
        seconds=output.elapsed_seconds if output is not None else None,
        broke_off=output is not None and output.ended is not None,
    )


def suggest(snapshot: LoopSnapshot, item: str, now: float) -> str:
    """Return the command that does what is most likely to help next."""
    name = snapshot.loop.name
    for step in untried(snapshot, item, now):
        if step.action == "skip":
            break
        if step.parameter not in (PERSON, ORCHESTRATOR):
            return f"mulligan loops heal {name} {item} --action {step.action}"
    if snapshot.record(item).reason.startswith(BROKEN_BRANCH):
        return f"mulligan loops checkpoints {name}"
    return f"mulligan loops skip {name} {item}"


# -- asked for by people and orchestrators -----------------------------------------------------


def heal_item(
    context: LoopContext,
    name: str,
    item: str,
    caller: Requester,
    *,
    action: HealAction | None = None,
    parameter: str | None = None,
    to_human: bool = True,
    reason: str = "",
) -> HealRecord:
    """Heal an item by an action, or by the next one that was not tried. Raises LoopConflict.

    ``to_human``: of `escalate`; else to a stronger runner, or to the orchestrator. A person may
    repeat what was done before: things around it may have changed.
    """
    if action is not None and action not in HEAL_ACTIONS:
        raise BadInput.at("action", f"is none of {', '.join(HEAL_ACTIONS)}")
    if parameter is not None and action != "rollback":
        raise BadInput("a checkpoint belongs to the action rollback")
    made: list[HealRecord] = []

    def decide(found: LoopSnapshot, now: float) -> LoopChange:
        if found.spec(item) is None:
            raise NotPossible(f"the loop has no item {item!r}")
        if found.record(item).state not in GAVE_UP:
            raise NotPossible(f"{item} is {found.record(item).state}: there is nothing to heal")
        step = _chosen(found, item, now, action, parameter, to_human=to_human)
        change = decide_heal(context, found, item, step, by=caller.by, now=now, reason=reason)
        made[:] = change.heals
        if made and made[0].outcome == "refused":
            raise NotPossible(made[0].result)
        return change

    before = change_loop(context, name, caller, decide).snapshot
    # The same request again finds what it did.
    made = made or [each for each in before.heals if each.item == item][-1:]
    if not made:
        raise LoopConflict(f"the record of healing {item} is no longer kept")
    return made[0]


def _chosen(
    snapshot: LoopSnapshot,
    item: str,
    now: float,
    action: HealAction | None,
    parameter: str | None,
    *,
    to_human: bool,
) -> HealStep:
    """Return the step that a person asks for: of an action, the first that was not tried."""
    if action == "rollback" and parameter is not None:
        return HealStep(action=action, parameter=parameter)
    if action == "escalate" and to_human:
        return HealStep(action="escalate", parameter=PERSON)
    for step in untried(snapshot, item, now):
        # Nobody leaves work out without saying so.
        leaves_out = step.action in ("skip", "repair_dependency_chain") and action is None
        if leaves_out and step.action not in snapshot.config.heals:
            continue
        if action in (None, step.action) and not (action and step.parameter == PERSON):
            return step
    fallback = {"escalate": ORCHESTRATOR, "change_strategy": FRESH, "split": TWO_PARTS}
    chosen: HealAction = action or "escalate"
    return HealStep(action=chosen, parameter=fallback.get(chosen, "") if action else PERSON)


def unblock_test(
    context: LoopContext, name: str, item: str, caller: Requester, *, reason: str = ""
) -> HealRecord:
    """Run an item again that gave up."""
    return heal_item(context, name, item, caller, action="unblock", reason=reason)


def repair_dependency_chain(context: LoopContext, name: str, caller: Requester) -> list[HealRecord]:
    """Heal what blocks others: each item at the end of a chain that gave up, by its next step."""
    reading = context.ledger.read_loop(name)
    snapshot = reading.snapshot if reading is not None else None
    roots = {root_of(snapshot, each) for each in stuck_items(snapshot)} if snapshot else set()
    found = [each for each in sorted(roots) if snapshot and snapshot.record(each).state in GAVE_UP]
    if not found:
        raise LoopConflict("no item of the loop blocks another one")
    return [heal_item(context, name, each, caller) for each in found]


def rollback(
    context: LoopContext, name: str, item: str, caller: Requester, *, to_checkpoint: str | None
) -> HealRecord:
    """Go back to a checkpoint, by default the one before the last merge, and run an item again."""
    return heal_item(context, name, item, caller, action="rollback", parameter=to_checkpoint or "")


def escalate(
    context: LoopContext, name: str, item: str, caller: Requester, *, to_human: bool = True
) -> HealRecord:
    """Escalate an item to a person; else to a stronger runner, or to the orchestrator.

    The orchestrator is told by the webhook `loop_escalated`.
    """
    return heal_item(context, name, item, caller, action="escalate", to_human=to_human)
