"""Verify a commit of a loop's branch: a job for which nobody is asked and nothing is merged.

What its verifiers find is its result, so it succeeds in any case: a check is no failed work.
"""

from __future__ import annotations

from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import GIT_MERGE, Job, Output
from mulligan.policies.regressions.due import FLAKE
from mulligan.tasks.jobs.context import AttemptContext
from mulligan.tasks.jobs.merge import NOT_MERGED
from mulligan.tasks.jobs.outcome import Outcome
from mulligan.tasks.jobs.settle import settle_unasked
from mulligan.tasks.jobs.verify import check_one, setup_time, undone, verification_time
from mulligan.tasks.ports.errors import (
    BadInput,
    CallCancelled,
    VerifierError,
    WorkspaceUnavailable,
)
from mulligan.tasks.ports.ledger import Claim, Finish

#: Why a check has ended.
CHECKED = "checked"
_SLACK = 60.0


def commit_to_check(job: Job) -> str:
    """Return the commit that a job only verifies; empty for other jobs."""
    last = job.verifiers[-1] if job.merges else None
    return str(last.options.get("check") or "") if last and last.id == GIT_MERGE else ""


def check_commit(context: AttemptContext, claim: Claim) -> Outcome:
    """Run the verifiers on the commit, each failure once more, and end the job with the results.

    A verifier that reaches no verdict is skipped.
    """
    commit = commit_to_check(claim.job)
    answer = Output(text="", commit=commit, base=commit)
    places = range(len(claim.job.verifiers) - 1)
    with context.holding(claim.lease, _longest(context, claim.job)):
        try:
            results = [_verify(context, claim, answer, place) for place in places]
        except (WorkspaceUnavailable, CallCancelled) as error:
            return undone(context, claim, error, unasked=True)
        context.step("commit_checked", claim.lease.entry)
        finish = Finish(state="succeeded", reason=CHECKED)
        return settle_unasked(context, claim, finish, [*results, NOT_MERGED])


def _longest(context: AttemptContext, job: Job) -> float:
    seconds = 0.0
    for spec in job.verifiers[:-1]:
        try:
            seconds += verification_time(context.verifier(spec))
        except BadInput:
            continue
    return 2 * (seconds + len(job.verifiers) * setup_time(job)) + _SLACK


def _verify(
    context: AttemptContext, claim: Claim, answer: Output, place: int
) -> VerificationResult:
    try:
        verifier = context.verifier(claim.job.verifiers[place])
        first = check_one(claim, answer, place, verifier)
        if first.status is not VerificationStatus.FAIL:
            return first
        second = check_one(claim, answer, place, verifier)
    except (VerifierError, BadInput) as error:
        return VerificationResult(
            status=VerificationStatus.SKIPPED,
            verifier_id=claim.job.verifiers[place].id,
            summary=f"no verdict: {error}",
        )
    if second.status is VerificationStatus.FAIL:
        return second
    summary = f"{FLAKE}: {first.summary}"
    return second.model_copy(update={"summary": summary})
