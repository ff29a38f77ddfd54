"""The verdict on an attempt: score, classified failures, decision and instruction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mulligan.policies.failures.classify import classify_failure, is_too_long
from mulligan.policies.failures.failure import (
    FailureRecord,
    VerificationResult,
    failure_record_from_dict,
    failure_record_to_dict,
)
from mulligan.policies.failures.memory import RetryMemory
from mulligan.policies.jobs.job import AttemptPlan, Job
from mulligan.policies.repair import score as scoring
from mulligan.policies.repair.instruction import (
    RepairInstruction,
    reduce_failure_to_repair,
    repair_instruction_from_dict,
    repair_instruction_to_dict,
)
from mulligan.policies.repair.retry import (
    FREE_CONFLICTS,
    MERGE_CONFLICT,
    PASSING_SCORE,
    ChangeStrategy,
    Decision,
    Escalate,
    Retry,
    RetryPolicy,
    score_in_full,
)
from mulligan.policies.value import Json


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is known and decided about one attempt. The ledger stores it."""

    results: tuple[VerificationResult, ...] = ()
    score: float | None = None
    success: bool = False
    #: The free repairs that the verifiers made.
    coercions: tuple[str, ...] = ()
    #: The deciding failure: of the first required verifier that failed, or else of the first one.
    failure: FailureRecord | None = None
    #: The strict signatures of all failures of this attempt. Each counts once.
    signatures: tuple[str, ...] = ()
    #: What follows; None after a success.
    decision: Decision | None = None
    instruction: RepairInstruction | None = None


def judge(
    job: Job,
    plan: AttemptPlan,
    results: Sequence[VerificationResult],
    memory: RetryMemory,
    *,
    truncated: bool = False,
    exempt: bool = False,
    exhausted: str | None = None,
    start_over: bool = False,
) -> Verdict:
    """Judge an answer by the results of all its verifiers, in the job's order.

    ``start_over``: the agent that left it only repeated itself.
    """
    total = scoring.score(job.verifiers, results)
    found = Verdict(results=tuple(results), score=total, coercions=scoring.coercions(results))
    if total is None:
        return replace(found, decision=Escalate(reason="not_verified"))
    if scoring.succeeded(job.verifiers, results, total):
        return replace(found, success=True)
    failures = _classify(job, plan, results, total, truncated)
    decision = _decide(
        job,
        plan,
        failures[0],
        memory,
        score=total,
        exempt=exempt,
        exhausted=exhausted,
        start_over=start_over,
    )
    return _failed(found, failures, decision)


def judge_error(
    job: Job,
    plan: AttemptPlan,
    error: Exception | Mapping[str, Json],
    memory: RetryMemory,
    *,
    final: bool = False,
    exhausted: str | None = None,
    rewrite: Callable[[str], str] = str,
) -> Verdict:
    """Judge an attempt without an answer. After a final error the runner is not asked again.

    ``rewrite`` removes the worker's paths from the error's texts.
    """
    record = classify_failure(error, source="task", attempt=plan.number).rewritten(rewrite)
    if final:
        return Verdict(
            failure=record,
            signatures=(record.classification_signature,),
            decision=Escalate(reason=record.kind.value),
        )
    start_over = record.evidence.get("start_over") is True
    decision = _decide(job, plan, record, memory, exhausted=exhausted, start_over=start_over)
    return _failed(Verdict(), (record,), decision)


def _classify(
    job: Job,
    plan: AttemptPlan,
    results: Sequence[VerificationResult],
    total: float,
    truncated: bool,
) -> tuple[FailureRecord, ...]:
    failed = scoring.failed(results)
    in_order = sorted(failed, key=lambda i: (not job.verifiers[i].required, i))
    if not in_order:
        low = {
            "kind": "reasoning_error",
            "cause": "low_score",
            "evidence": {"score": total},
            "message": f"every check passed, but the score {score_in_full(total)} is below"
            f" {PASSING_SCORE:g}",
        }
        return (classify_failure(low, source="verify", attempt=plan.number),)
    return tuple(
        classify_failure(results[i], source="verify", attempt=plan.number, truncated=truncated)
        for i in in_order
    )


def _decide(
    job: Job,
    plan: AttemptPlan,
    failure: FailureRecord,
    memory: RetryMemory,
    *,
    score: float | None = None,
    exempt: bool = False,
    exhausted: str | None = None,
    start_over: bool = False,
) -> Decision:
    free = min(plan.conflicts + (failure.cause == MERGE_CONFLICT), FREE_CONFLICTS)
    policy = RetryPolicy.from_spec(job.policy, attempts_before_requeue=plan.since + free)
    return policy.decide(
        failure,
        memory,
        mode=plan.mode,
        score=score,
        exempt=exempt,
        exhausted=exhausted,
        start_over=start_over,
    )


def _failed(verdict: Verdict, failures: Sequence[FailureRecord], decision: Decision) -> Verdict:
    """Return the verdict with its failures, of which the first decides."""
    return replace(
        verdict,
        failure=failures[0],
        signatures=tuple(sorted({record.classification_signature for record in failures})),
        decision=decision,
        instruction=reduce_failure_to_repair(_most_helpful(failures)),
    )


def _most_helpful(failures: Sequence[FailureRecord]) -> FailureRecord:
    """Return the failure to repair. An answer that is too long anyway needs no room for more."""
    if failures[0].cause != "truncated":
        return failures[0]
    return next((record for record in failures if is_too_long(record.findings)), failures[0])


def verdict_to_dict(verdict: Verdict) -> dict[str, Any]:
    """Return the JSON form, which the ledger stores and the API returns."""
    failure, instruction = verdict.failure, verdict.instruction
    return {
        "results": [r.model_dump(mode="json", exclude_defaults=True) for r in verdict.results],
        "score": verdict.score,
        "success": verdict.success,
        "coercions": list(verdict.coercions),
        "failure": failure_record_to_dict(failure) if failure else None,
        "signatures": list(verdict.signatures),
        "decision": _decision_to_dict(verdict.decision),
        "instruction": repair_instruction_to_dict(instruction) if instruction else None,
    }


def verdict_from_dict(data: Mapping[str, Any]) -> Verdict:
    """Read a stored verdict. Ignore another version's fields; leave missing ones empty."""
    failure, instruction = data.get("failure"), data.get("instruction")
    return Verdict(
        results=tuple(
            VerificationResult.model_validate(result, extra="ignore")
            for result in data.get("results") or ()
        ),
        score=data.get("score"),
        success=bool(data.get("success")),
        coercions=tuple(data.get("coercions") or ()),
        failure=failure_record_from_dict(failure) if failure else None,
        signatures=tuple(data.get("signatures") or ()),
        decision=_decision_from_dict(data.get("decision") or {}),
        instruction=repair_instruction_from_dict(instruction) if instruction else None,
    )


def _decision_to_dict(decision: Decision | None) -> dict[str, Any]:
    match decision:
        case None:
            return {"action": "succeed"}
        case Escalate(reason=reason):
            return {"action": "escalate", "reason": reason}
        case ChangeStrategy(reason=reason, mode=mode):
            return {"action": "change_strategy", "reason": reason, "mode": mode}
        case Retry(reason=reason, mode=mode):
            return {"action": "retry", "reason": reason, "mode": mode}


def _decision_from_dict(data: Mapping[str, Any]) -> Decision | None:
    match data.get("action"):
        case "escalate":
            return Escalate(reason=data["reason"])
        case "change_strategy":
            return ChangeStrategy(reason=data["reason"], mode=data["mode"])
        case "retry":
            return Retry(reason=data["reason"], mode=data["mode"])
        case _:
            return None
