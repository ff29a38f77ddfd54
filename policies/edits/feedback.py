"""Feedback to the model that wrote a plan: its failed edits, classified and worded by the same
rules as every other failure."""

from __future__ import annotations

from mulligan.policies.edits.edit import EditOutcome, EditReason
from mulligan.policies.edits.session import WITHDRAWN, EditSession
from mulligan.policies.failures.classify import classify_failure
from mulligan.policies.failures.failure import (
    FailureKind,
    FailureRecord,
    Finding,
    VerificationResult,
    VerificationStatus,
)
from mulligan.policies.jobs.job import Job, Message
from mulligan.policies.repair.instruction import reduce_failure_to_repair
from mulligan.policies.repair.prompt import build_corrected_prompt
from mulligan.policies.repair.strategy import contract_of

#: The reasons that an author can correct, with their kinds of failure. A missing measurement or a
#: change by others is not the author's fault.
KINDS: dict[EditReason, FailureKind] = {
    "validation": FailureKind.SCHEMA_INVALID,
    "apply_error": FailureKind.MISSING_CONTEXT,
    "regression": FailureKind.REASONING_ERROR,
    "no_improvement": FailureKind.REASONING_ERROR,
    "rejected": FailureKind.REASONING_ERROR,
}
VERIFIER = "edits.session"


def verification_of(session: EditSession) -> VerificationResult | None:
    """Return the failed edits of a plan as a verifier's result; None if nothing failed."""
    faults = _faults(session)
    if not faults:
        return None
    findings = tuple(
        Finding(
            message=f"{done.status} ({done.reason}): {done.error}",
            code=done.reason,
            path=f"edits[{index}] ({done.edit_id}) {session.records[index].edit.target}",
        )
        for index, done in faults
    )
    kind = KINDS[faults[0][1].reason]
    return VerificationResult(
        status=VerificationStatus.FAIL,
        verifier_id=VERIFIER,
        summary=findings[0].message,
        evidence={"kind": kind.value, "edits": len(session.records), "failed": len(faults)},
        errors=findings,
    )


def failure_of(session: EditSession) -> FailureRecord | None:
    """Return the classified failure of a plan, decided by its first failed edit."""
    result = verification_of(session)
    return None if result is None else classify_failure(result, source="verify")


def correction_of(job: Job, job_id: str, answer: str | None, session: EditSession) -> Job | None:
    """Return the job that asks the author to correct the failed edits; None if nothing failed."""
    result, failure = verification_of(session), failure_of(session)
    if result is None or failure is None:
        return None
    prompt = build_corrected_prompt(
        task_text=job.task_text,
        contract=contract_of(job),
        last_answer=answer,
        results=[result],
        instruction=reduce_failure_to_repair(failure),
    )
    asked = (*job.messages[:-1], Message(role="user", content=prompt)) if job.messages else ()
    return job.model_copy(
        update={
            "prompt": None if asked else prompt,
            "messages": asked,
            "labels": {**job.labels, "corrects": job_id, "edit_session": session.id},
            "idempotency_key": f"edits:{session.id}:{job_id}",
        }
    )


def _faults(session: EditSession) -> list[tuple[int, EditOutcome]]:
    """Return the outcomes that an author can correct, with the indexes of their edits."""
    ended = [(i, record.outcome) for i, record in enumerate(session.records)]
    return [
        (index, done)
        for index, done in ended
        if done is not None
        and done.status in ("rejected_by_gate", "rejected_by_user")
        and done.reason in KINDS
        and done.error != WITHDRAWN
    ]
