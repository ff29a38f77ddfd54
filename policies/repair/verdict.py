"""From results to a verdict: score, classified failures, decision and instruction in one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mulligan.policies.failures.classify import classify_failure
from mulligan.policies.failures.failure import (
    FailureRecord,
    VerificationResult,
    failure_record_to_dict,
)
from mulligan.policies.failures.memory import RetryMemory
from mulligan.policies.jobs.job import AttemptPlan, Job
from mulligan.policies.repair import score as scoring
from mulligan.policies.repair.instruction import (
    RepairInstruction,
    reduce_failure_to_repair,
    repair_instruction_to_dict,
)
from mulligan.policies.repair.retry import (
    PASSING_SCORE,
    ChangeStrategy,
    Decision,
    Escalate,
    Retry,
    RetryPolicy,
)
from mulligan.policies.value import Json


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is known and decided about one attempt."""

    results: tuple[VerificationResult, ...] = ()
    score: float | None = None
    success: bool = False
    #: The failure that decides comes first; each distinct signature is counted once.
    failures: tuple[FailureRecord, ...] = ()
    decision: Decision | None = None
    instruction: RepairInstruction | None = None

    @property
    def failure(self) -> FailureRecord | None:
        return self.failures[0] if self.failures else None

    @property
    def signatures(self) -> tuple[str, ...]:
        return tuple(sorted({record.classification_signature for record in self.failures}))

    @property
    def coercions(self) -> tuple[str, ...]:
        return scoring.coercions(self.results)


def judge(
    job: Job,
    plan: AttemptPlan,
    results: Sequence[VerificationResult],
    memory: RetryMemory,
    *,
    truncated: bool = False,
    exempt: bool = False,
    exhausted: str | None = None,
) -> Verdict:
    """The verdict on an answer whose verifiers have all reported, in the job's order."""
    total = scoring.score(job.verifiers, results)
    if total is None:
        return Verdict(results=tuple(results), decision=Escalate(reason="not_verified"))
    if scoring.succeeded(job.verifiers, results, total):
        return Verdict(results=tuple(results), score=total, success=True)
    failures = _classify(job, plan, results, total, truncated)
    return _decided(
        job,
        plan,
        failures,
        memory,
        results=tuple(results),
        score=total,
        exempt=exempt,
        exhausted=exhausted,
    )


def judge_error(
    job: Job,
    plan: AttemptPlan,
    error: Exception | Mapping[str, Json],
    memory: RetryMemory,
    *,
    final: bool = False,
    exhausted: str | None = None,
) -> Verdict:
    """The verdict on an attempt that has no answer. A final error is not asked again."""
    record = classify_failure(error, source="task", attempt=plan.number)
    if final:
        decision = Escalate(reason=record.kind.value)
        return Verdict(failures=(record,), decision=decision)
    return _decided(job, plan, (record,), memory, exhausted=exhausted)


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
            "message": f"every check passed, but the score {total:g} is below {PASSING_SCORE:g}",
        }
        return (classify_failure(low, source="verify", attempt=plan.number),)
    return tuple(
        classify_failure(results[i], source="verify", attempt=plan.number, truncated=truncated)
        for i in in_order
    )


def _decided(
    job: Job,
    plan: AttemptPlan,
    failures: tuple[FailureRecord, ...],
    memory: RetryMemory,
    *,
    results: tuple[VerificationResult, ...] = (),
    score: float | None = None,
    exempt: bool = False,
    exhausted: str | None = None,
) -> Verdict:
    decision = RetryPolicy.from_spec(job.policy, since=plan.since).decide(
        failures[0], memory, mode=plan.mode, score=score, exempt=exempt, exhausted=exhausted
    )
    return Verdict(
        results=results,
        score=score,
        failures=failures,
        decision=decision,
        instruction=reduce_failure_to_repair(failures[0]),
    )


def verdict_to_dict(verdict: Verdict) -> dict[str, Any]:
    """JSON-friendly form: what the ledger keeps and people read."""
    return {
        "results": [r.model_dump(mode="json", exclude_defaults=True) for r in verdict.results],
        "score": verdict.score,
        "success": verdict.success,
        "coercions": list(verdict.coercions),
        "failure": failure_record_to_dict(verdict.failure) if verdict.failure else None,
        "signatures": list(verdict.signatures),
        "decision": _decision_to_dict(verdict.decision),
        "instruction": (
            repair_instruction_to_dict(verdict.instruction) if verdict.instruction else None
        ),
    }


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
