"""External work: a person or another system makes the attempt, and often scores it too.

The ledger still decides on retries: a subject gets its mandatory retry first, with a token. The
attempt that it reports with the token is settled like any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from secrets import token_hex
from typing import Any

from mulligan.policies.cycles.delayed import invalid_reason
from mulligan.policies.failures.failure import (
    GIVEN_SCORE,
    Finding,
    VerificationResult,
    VerificationStatus,
)
from mulligan.policies.jobs.job import EXTERNAL, Decoding, Job, Output, Usage
from mulligan.policies.repair.retry import PASSING_SCORE, passes, score_in_full
from mulligan.tasks.jobs.attempt import storable
from mulligan.tasks.jobs.context import AttemptContext
from mulligan.tasks.jobs.outcome import Outcome, VerificationPending
from mulligan.tasks.jobs.read_job import read_jobs
from mulligan.tasks.jobs.recheck import end_by_results, judge_again
from mulligan.tasks.jobs.settle import settle_answer
from mulligan.tasks.jobs.submit import Intake, submit_jobs
from mulligan.tasks.jobs.verify import build_verifiers, check_all, no_verdict, slow_verifiers
from mulligan.tasks.ports.errors import BadInput, VerifierError
from mulligan.tasks.ports.ledger import (
    BroughtAttempt,
    Claim,
    ClaimRefused,
    CycleClaim,
    Entry,
    Lease,
)

_NUMBER = "[1-9][0-9]{0,8}"
_TOKEN = re.compile(rf"(a:[\w-]+/{_NUMBER}|c:[\w-]+:{_NUMBER}:{_NUMBER})\.([0-9a-f]+)", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class ExternalTask:
    """The task that a subject holds: an attempt, or a delayed verification."""

    lease: Lease
    claim: Claim
    #: The cycle that this task belongs to or verifies.
    cycle_id: str | None
    mode: str
    expires_at: float | None

    @property
    def token(self) -> str:
        """The text that the subject must send with its attempt."""
        return f"{self.lease.entry}.{self.lease.token}"


@dataclass(frozen=True, kw_only=True)
class ReportedAttempt:
    """One attempt as a subject reports it."""

    score: float | None = None
    answer: str = ""
    findings: Sequence[Finding] = ()
    feedback: str = ""
    #: For a delayed verification: the prompt, and the family of the task.
    prompt: str | None = None
    task_family: str | None = None
    seconds: float = 0.0
    tokens: Usage = field(default_factory=Usage)
    model: str | None = None

    @property
    def output(self) -> Output:
        return Output(
            text=self.answer, usage=self.tokens, model=self.model, elapsed_seconds=self.seconds
        )

    @property
    def digest(self) -> str:
        """Identifies the content: a repeated report has the same one."""
        content = {**vars(self), "findings": [vars(each) for each in self.findings]}
        content["tokens"] = self.tokens.model_dump(mode="json")
        return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def result(self) -> VerificationResult:
        """Return the reported score as a verifier's result."""
        if self.score is None:
            raise BadInput.at("score", "is required, because nothing else verifies this attempt")
        passed = passes(self.score)
        return VerificationResult(
            status=VerificationStatus.PASS if passed else VerificationStatus.FAIL,
            verifier_id=GIVEN_SCORE,
            summary=self.feedback or f"reported score {score_in_full(self.score)}",
            score=self.score,
            evidence={} if passed else {"kind": "reasoning_error"},
            errors=() if passed else (*self.findings, *self._feedback()),
        )

    def _feedback(self) -> Iterator[Finding]:
        """Yield what was wrong in words; without any, that the score is too low."""
        if self.feedback and self.feedback not in [each.message for each in self.findings]:
            yield Finding(message=self.feedback, code="feedback")
        elif not self.findings:
            low = f"the score {score_in_full(self.score)} is below {PASSING_SCORE:g}"
            yield Finding(message=low, code="feedback")


class NotCounted(BadInput):
    """A delayed verification that does not count; ``reason`` says why. It may be repeated."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"this delayed verification does not count: {reason}")
        self.reason = reason


def parse_token(text: str) -> Lease:
    """Return the lease of a task's token. Raise BadInput if it is not a token."""
    found = _TOKEN.fullmatch(text)
    if found is None:
        raise BadInput.at("token", "is not the token of a task")
    return Lease(Entry.parse(found[1]), found[2])


def next_task(
    context: AttemptContext, subject: str, *, tenant: str | None = None, owner: str | None = None
) -> ExternalTask | None:
    """Claim a subject's next task: its mandatory retry, then what it holds, then the rest.

    ``owner``: the producer that asks. It does not get what other producers submitted.
    """
    for _ in range(10):  # another request may win, or a job may have ended
        waiting = context.ledger.next_of(subject, tenant=tenant, owner=owner)
        if waiting is None:
            return None
        if waiting.token is None:
            _claim(context, waiting.entry, holder=owner)
            continue  # it is now held, by this request or a faster one; or the next one is due
        held = context.ledger.hold(Lease(waiting.entry, waiting.token))
        if not isinstance(held, ClaimRefused):
            return _task(held, waiting.expires_at)
    return None


def _claim(
    context: AttemptContext, entry: Entry, *, holder: str | None
) -> Claim | CycleClaim | ClaimRefused:
    ledger, lease = context.ledger, context.external_lease
    if entry.kind == "cycle":
        return ledger.claim_cycle(entry, worker=EXTERNAL, lease=lease, holder=holder)
    return ledger.claim(entry, worker=EXTERNAL, lease=lease, holder=holder)


def _task(taken: Claim | CycleClaim, expires_at: float | None) -> ExternalTask:
    if isinstance(taken, CycleClaim):
        return ExternalTask(
            lease=taken.lease,
            claim=taken.claim,
            cycle_id=taken.cycle_id,
            mode="delayed_verification",
            expires_at=expires_at,
        )
    return ExternalTask(
        lease=taken.lease,
        claim=taken,
        cycle_id=taken.plan.cycle_id,
        mode=taken.plan.mode,
        expires_at=expires_at,
    )


def record_attempt(
    context: AttemptContext,
    intake: Intake,
    raw: dict[str, Any],
    report: ReportedAttempt,
    *,
    owner: str | None = None,
) -> tuple[str, Outcome]:
    """Record a first attempt that a subject made. Return the job's id and what follows.

    The job and its answer are stored in one step. A repetition with the same key and content
    changes nothing and returns the same job; it is refused if its content differs.
    """
    (job,) = read_jobs([_job_of(raw)], intake.problems, single=True)
    brought = BroughtAttempt(
        token=_token_of(job),
        output=storable(report.output, context.answer_cap),
        given=[report.result()],
        report=report.digest,
    )
    (accepted,) = submit_jobs(intake, [job], brought=brought, owner=owner)
    lease = Lease(Entry("attempt", accepted.id, 1), brought.token)
    return accepted.id, report_attempt(context, lease, report)


def _token_of(job: Job) -> str:
    """Return the token of a recorded attempt: a repetition with the same key has the same one."""
    if job.idempotency_key is None:
        return token_hex(16)
    return sha256(f"report {job.idempotency_key}".encode()).hexdigest()[:32]


def _job_of(raw: dict[str, Any]) -> dict[str, Any]:
    delayed = raw.pop("delayed_verification", None) or {"mode": "reformulate"}
    return {
        **raw,
        "runner": {"kind": EXTERNAL},
        "verifiers": [GIVEN_SCORE],
        "delayed_verification": delayed,
    }


def report_attempt(context: AttemptContext, lease: Lease, report: ReportedAttempt) -> Outcome:
    """Record the attempt or the delayed verification that belongs to a token."""
    held = context.ledger.hold(lease, report=report.digest)
    if isinstance(held, ClaimRefused):
        return held
    if isinstance(held, CycleClaim):
        return _settle_verification(context, held, report)
    outcome = _settle(context, held, report)
    if isinstance(outcome, ClaimRefused) and outcome.reason == "lost":
        # If the answer was stored first, a worker has taken over.
        again = context.ledger.hold(lease, report=report.digest)
        return again if isinstance(again, ClaimRefused) else outcome
    return outcome


def _settle(context: AttemptContext, claim: Claim, report: ReportedAttempt) -> Outcome:
    verifiers = build_verifiers(context, claim.job)
    given = [report.result()] if _has_reported_score(claim.job) else None
    output = storable(report.output, context.answer_cap)
    slow = [] if given else slow_verifiers(claim.job, verifiers)
    if claim.output is None:
        stored = context.ledger.store_output(
            claim.lease,
            output,
            verifications=slow,
            given=given or (),
            priority=claim.job.priority,
            report=report.digest,
        )
        if isinstance(stored, ClaimRefused):
            return stored
        context.publish(stored)
    if slow:
        return VerificationPending(entry=claim.lease.entry, verifications=len(slow))
    try:
        results = given or check_all(claim, output, verifiers, claim.results)
    except VerifierError as error:
        return no_verdict(context, claim, error)
    return settle_answer(context, claim, output, results, Decoding())


def _settle_verification(
    context: AttemptContext, taken: CycleClaim, report: ReportedAttempt
) -> Outcome:
    """End a cycle by its delayed verification, which counts only if it was reworded."""
    job = taken.claim.job
    reason = invalid_reason(
        source_family=job.task_type,
        source_prompt=job.task_text,
        family=report.task_family or job.task_type,
        prompt=report.prompt,
        other_family=job.delayed_verification.other_family,
    )
    if job.delayed_verification.other_family and not report.task_family:
        reason = "missing_task_family_context"
    if reason is not None:
        context.ledger.refuse_verification(taken.lease, reason=reason)
        raise NotCounted(reason)
    if not _has_reported_score(job):
        output = storable(report.output, context.answer_cap)
        return judge_again(context, taken, output, report=report.digest)
    return end_by_results(context, taken, [report.result()], report=report.digest)


def _has_reported_score(job: Job) -> bool:
    return job.verifiers[0].id == GIVEN_SCORE
