"""Settle: record a verdict and everything that follows from it in one atomic step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mulligan.policies.cycles.cycle import cycle_id
from mulligan.policies.cycles.guardrail import LoadStep, RepairLoad, repair_load
from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import USER_TASK, Decoding, Job, Output, Usage
from mulligan.policies.jobs.routing import verification_place
from mulligan.policies.repair import score as scoring
from mulligan.policies.repair.retry import Escalate, Retry, opens_cycle, owes_immediate_retry
from mulligan.policies.repair.strategy import best_techniques, plan_next, preferred
from mulligan.policies.repair.verdict import Verdict, judge, judge_error
from mulligan.policies.value import Json
from mulligan.tasks.jobs.context import AttemptContext
from mulligan.tasks.ports.errors import BadInput, RunnerError
from mulligan.tasks.ports.ledger import (
    Claim,
    ClaimRefused,
    CyclePlan,
    Finish,
    NextAttempt,
    Remedy,
    SessionNote,
    Settlement,
)
from mulligan.tasks.ports.runners import constrains

#: Characters of the prompt in the long-lived record of a cycle.
_CYCLE_PROMPT = 500


@dataclass(frozen=True, kw_only=True)
class Settled:
    """A settled attempt: its recorded verdict and what follows."""

    job_id: str
    attempt: int
    task_type: str
    verdict: Verdict
    then: NextAttempt | Finish
    #: How often the deciding failure happened in its memory's scope, this time included.
    seen: int = 0


def settle_answer(
    context: AttemptContext,
    claim: Claim,
    output: Output,
    results: Sequence[VerificationResult],
    asked_with: Decoding,
) -> Settled | ClaimRefused:
    """Settle an attempt whose verifiers have all reported, in the job's order."""
    verdict = judge(
        claim.job,
        claim.plan,
        results,
        claim.memory,
        truncated=output.truncated,
        exempt=context.is_exempt(claim.job),
        exhausted=_exhausted(context, claim, output) or _guarded(context, claim, output, results),
        start_over=output.start_over,
    )
    return _record(context, claim, verdict, output, asked_with)


def settle_error(
    context: AttemptContext,
    claim: Claim,
    error: Exception,
    asked_with: Decoding,
    *,
    output: Output | None = None,
) -> Settled | ClaimRefused:
    """Settle an attempt that ended with an error. ``output``: what it had answered, if stored."""
    final = isinstance(error, RunnerError) and error.final
    verdict = judge_error(
        claim.job,
        claim.plan,
        error,
        claim.memory,
        final=final,
        exhausted=_exhausted(context, claim, output),
        rewrite=context.without_paths,
    )
    return _record(context, claim, verdict, output, asked_with)


def settle_unasked(
    context: AttemptContext,
    claim: Claim,
    finish: Finish,
    results: Sequence[VerificationResult],
) -> Settled | ClaimRefused:
    """Settle an attempt that ends before its runner is asked."""
    verdict = Verdict(results=tuple(results), success=finish.state == "succeeded")
    settlement = Settlement(
        verdict=verdict,
        then=finish,
        unasked=True,
        facts=_facts(context, claim, verdict, None),
    )
    return _write(context, claim, settlement)


def _exhausted(context: AttemptContext, claim: Claim, output: Output | None) -> str | None:
    """Return the budget that is used up, counting the new answer of this claim.

    Of an item's answer, unknown usage counts as what was reserved for it.
    """
    tokens, seconds, money = claim.tokens_used, claim.seconds_used, claim.money_used
    if output is not None and claim.output is None:
        used, cost = output.usage.total_tokens, context.cost(claim.job, output)
        tokens += int(claim.allowance.get("tokens", 0)) if used is None else used
        money += claim.allowance.get("money", 0.0) if cost is None else cost
        seconds += output.elapsed_seconds
    return claim.job.budget.exhausted(tokens=tokens, seconds=seconds, money=money)


def _guarded(
    context: AttemptContext, claim: Claim, output: Output, results: Sequence[VerificationResult]
) -> str | None:
    """Return the guardrail that forbids another repair loop. A running loop may finish."""
    job = claim.job
    guarded = context.guard_jobs if job.subject is None else context.guard_subjects
    total = scoring.score(job.verifiers, results) if guarded else None
    if not owes_immediate_retry(claim.plan.mode, total, exempt=context.is_exempt(job)):
        return None
    if job.subject is not None:
        notes = context.ledger.session(job.subject, tenant=context.tenant(job))
        steps = [
            LoadStep(
                skill=note.task_type,
                seconds=note.seconds,
                repair=note.mode == "immediate_retry",
                loop=note.loop,
            )
            for note in notes
        ]
        this_attempt = LoadStep(
            skill=job.task_type, seconds=output.elapsed_seconds, repair=False, loop=False
        )
        steps.append(this_attempt)
        return context.guardrail.exhausted(repair_load(steps, skill=job.task_type))
    seconds = claim.seconds_used + (output.elapsed_seconds if claim.output is None else 0.0)
    session = RepairLoad(
        loops_of_skill=claim.loops,
        loops=claim.loops,
        repair_seconds=claim.repair_seconds,
        seconds=seconds,
    )
    return context.guardrail.exhausted(session)


def _record(
    context: AttemptContext,
    claim: Claim,
    verdict: Verdict,
    output: Output | None,
    asked_with: Decoding,
) -> Settled | ClaimRefused:
    remedies: Mapping[str, tuple[int, int]] = {}
    if isinstance(verdict.decision, Retry) and verdict.failure is not None:
        remedies = context.ledger.remedies(claim.job_id, verdict.failure.coarse_signature)
        if "loop" in claim.job.labels:
            decision = preferred(claim.job, verdict, verdict.decision, asked_with, remedies)
            verdict = replace(verdict, decision=decision)
    settlement = _settlement(context, claim, verdict, output, asked_with, remedies)
    return _write(context, claim, settlement)


def _write(context: AttemptContext, claim: Claim, settlement: Settlement) -> Settled | ClaimRefused:
    verdict = settlement.verdict
    context.step("settle", claim.lease.entry)
    published = context.ledger.settle(claim.lease, settlement)
    context.step("settled", claim.lease.entry)
    if isinstance(published, ClaimRefused):
        return published
    context.publish(published)
    return Settled(
        job_id=claim.job_id,
        attempt=claim.plan.number,
        task_type=claim.job.task_type,
        verdict=verdict,
        then=settlement.then,
        seen=_seen(claim, verdict),
    )


def _seen(claim: Claim, verdict: Verdict) -> int:
    if verdict.failure is None:
        return 0
    return claim.memory.count(verdict.failure.classification_signature) + 1


def _settlement(
    context: AttemptContext,
    claim: Claim,
    verdict: Verdict,
    output: Output | None,
    asked_with: Decoding,
    remedies: Mapping[str, tuple[int, int]],
) -> Settlement:
    """Return what to write. ``remedies``: what the fleet tried against this failure."""
    plan = claim.plan
    cycle = _cycle(context, claim, verdict)
    remedy = None
    if plan.cures and plan.technique:
        remedy = Remedy(coarse=plan.cures, technique=plan.technique, worked=verdict.success)
    return Settlement(
        verdict=verdict,
        signatures=verdict.signatures,
        then=_then(context, claim, verdict, output, asked_with, cycle, remedies),
        cycle_done=plan.cycle_id if plan.mode == "immediate_retry" else None,
        verify_after=claim.job.delayed_verification.after,
        verify_on=verification_place(claim.job),
        cycle=cycle,
        remedy=remedy,
        facts=_facts(context, claim, verdict, output),
        group_signature=verdict.failure.coarse_signature if verdict.failure else None,
        session=_session_note(context, claim, output, cycle),
    )


def _facts(
    context: AttemptContext, claim: Claim, verdict: Verdict, output: Output | None
) -> dict[str, Any]:
    """Return the facts that figures are counted from: names and numbers only."""
    job, plan, failure = claim.job, claim.plan, verdict.failure
    usage = output.usage if output is not None else Usage()
    labels = {
        name: job.labels[name] for name in sorted(context.report_labels() & job.labels.keys())
    }
    return {
        "task_type": job.task_type,
        "mode": plan.mode,
        "labels": labels,
        "runner": job.runner.profile or job.runner.kind,
        "model": output.model if output is not None else None,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "seconds": round(output.elapsed_seconds, 3) if output is not None else 0,
        "signature": failure.coarse_signature if failure else None,
        "cause": failure.cause if failure else None,
        "technique": plan.technique,
        "cures": plan.cures,
    }


def _session_note(
    context: AttemptContext, claim: Claim, output: Output | None, cycle: CyclePlan | None
) -> SessionNote | None:
    if claim.job.subject is None or not context.guard_subjects:
        return None
    return SessionNote(
        entry=str(claim.lease.entry),
        task_type=claim.job.task_type,
        mode=claim.plan.mode,
        seconds=output.elapsed_seconds if output is not None else 0.0,
        loop=cycle is not None and cycle.status == "pending_immediate_retry",
        window=context.guardrail.window,
    )


def _then(
    context: AttemptContext,
    claim: Claim,
    verdict: Verdict,
    output: Output | None,
    asked_with: Decoding,
    cycle: CyclePlan | None,
    remedies: Mapping[str, tuple[int, int]],
) -> NextAttempt | Finish:
    match verdict.decision:
        case None:
            return Finish(state="succeeded")
        case Escalate(reason=reason):
            detail = verdict.failure.message if verdict.failure else "no verifier reached a verdict"
            return Finish(state="escalated", reason=reason, detail=detail)
        case Retry() as decision:
            plan = plan_next(
                claim.job,
                claim.plan,
                verdict,
                decision,
                output=output,
                asked_with=asked_with,
                worked_before=best_techniques(remedies),
                cycle_id=cycle.id if cycle else None,
                constrains=partial(_constrains, context, claim.job),
            )
            return NextAttempt(plan=plan)


def _constrains(
    context: AttemptContext, job: Job, decoding: Decoding, schema: Mapping[str, Json]
) -> bool:
    """Whether the job's runner constrains such an attempt. A user's own task is no runner."""
    if job.runner.kind == USER_TASK:
        return False
    try:
        return constrains(context.runner(job.runner).runner, decoding, schema)
    except BadInput:  # the next attempt will say so
        return False


def _cycle(context: AttemptContext, claim: Claim, verdict: Verdict) -> CyclePlan | None:
    failure = verdict.failure
    exempt = context.is_exempt(claim.job)
    status = opens_cycle(verdict.decision, claim.plan.mode, verdict.score, exempt=exempt)
    if status is None or failure is None:
        return None
    loop = claim.loops + 1
    return CyclePlan(
        id=cycle_id(claim.job_id, claim.plan.number, loop),
        loop_index=loop,
        status=status,
        metadata={
            "taskType": claim.job.task_type,
            "prompt": claim.job.task_text[:_CYCLE_PROMPT],
            "targetNodes": sorted({f.path for f in failure.findings if f.path})[:20],
            "causeLabel": failure.label,
        },
    )
