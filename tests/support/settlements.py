"""Settlements that an attempt may end in."""

from __future__ import annotations

from typing import Any, Literal

from mulligan.policies.cycles.cycle import cycle_id
from mulligan.policies.jobs.job import AttemptPlan, Mode
from mulligan.policies.repair.verdict import Verdict
from mulligan.tasks.ports.ledger import Claim, CyclePlan, Finish, NextAttempt, Settlement
from support.jobs import make_verdict


def succeeds(claim: Claim, *, score: float = 100.0, **more: Any) -> Settlement:
    return _settlement(claim, Finish(state="succeeded"), score=score, success=True, **more)


def escalates(claim: Claim, reason: str = "max_attempts", **more: Any) -> Settlement:
    then = Finish(state="escalated", reason=reason, detail="it went wrong")
    return _settlement(claim, then, **more)


def retries_immediately(claim: Claim, **more: Any) -> Settlement:
    """Settle a low score: the mandatory retry and its cycle."""
    cycle = _cycle(claim, "pending_immediate_retry")
    then = _next(claim, "immediate_retry", cycle=cycle.id)
    return _settlement(claim, then, cycle=cycle, **more)


def escalates_with_cycle(
    claim: Claim, reason: str = "per_skill_loop_cap", **more: Any
) -> Settlement:
    """Settle a low score whose mandatory retry a guardrail or a budget forbids."""
    return escalates(claim, reason, cycle=_cycle(claim, "escalated"), **more)


def retries_by_policy(claim: Claim, *, delay: float = 0.0, **more: Any) -> Settlement:
    return _settlement(claim, _next(claim, "policy_retry", delay=delay), **more)


def _cycle(claim: Claim, status: Literal["pending_immediate_retry", "escalated"]) -> CyclePlan:
    loop = claim.loops + 1
    return CyclePlan(
        id=cycle_id(claim.job_id, claim.plan.number, loop),
        loop_index=loop,
        status=status,
        metadata={
            "taskType": claim.job.task_type,
            "prompt": claim.job.task_text,
            "targetNodes": [],
            "causeLabel": "json_invalid",
        },
    )


def _next(claim: Claim, mode: Mode, *, cycle: str | None = None, delay: float = 0.0) -> NextAttempt:
    plan = AttemptPlan(
        number=claim.plan.number + 1, mode=mode, prompt="Do it right.", cycle_id=cycle
    )
    return NextAttempt(plan=plan, delay=delay)


def _settlement(
    claim: Claim,
    then: NextAttempt | Finish,
    *,
    score: float = 40.0,
    success: bool = False,
    verdict: Verdict | None = None,
    **more: Any,
) -> Settlement:
    mandatory = claim.plan.mode == "immediate_retry"
    verdict = verdict or make_verdict(score=score, success=success)
    fields: dict[str, Any] = {
        "signatures": verdict.signatures,
        "cycle_done": claim.plan.cycle_id if mandatory else None,
    }
    return Settlement(then=then, verdict=verdict, **{**fields, **more})
