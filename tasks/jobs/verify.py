"""Verify: run the checks of an answer. Each slow one is a separate task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from mulligan.policies.failures.classify import message_of
from mulligan.policies.failures.failure import (
    FailureKind,
    Finding,
    VerificationResult,
    VerificationStatus,
)
from mulligan.policies.jobs.job import Decoding, Job, Output
from mulligan.tasks.jobs.context import AttemptContext
from mulligan.tasks.jobs.merge import NOT_MERGED, merge_index
from mulligan.tasks.jobs.merge_batch import merge_attempt, merge_time
from mulligan.tasks.jobs.outcome import Outcome, Requeued, VerificationPending, VerificationStored
from mulligan.tasks.jobs.settle import settle_answer
from mulligan.tasks.jobs.verify_merge import MergeVerification, is_good
from mulligan.tasks.ports.errors import (
    BadInput,
    CallCancelled,
    SetupBroken,
    SetupFailed,
    VerifierError,
    WorkspaceUnavailable,
)
from mulligan.tasks.ports.ledger import Claim, ClaimRefused, Entry, EntryRequeued
from mulligan.tasks.ports.verifiers import Candidate, Verifier

#: Seconds before a verifier that reached no verdict is run again.
_RETRY_DELAY = 1.0
#: Seconds before an attempt that needs a blob store which is away is run again.
_BLOBS_DELAY = 10.0
#: Seconds that a slow verifier without a ``longest`` may take.
_LONGEST = 900.0


def build_verifiers(context: AttemptContext, job: Job) -> list[Verifier]:
    """Build the job's verifiers in its order, or raise BadInput."""
    return [context.verifier(spec) for spec in job.verifiers]


def slow_verifiers(job: Job, verifiers: Sequence[Verifier]) -> list[int]:
    """Return the indices of the verifiers that run on the verify queue, without the merge."""
    merge = merge_index(job)
    return [i for i, verifier in enumerate(verifiers) if verifier.slow and i != merge]


def verification_time(verifier: Verifier) -> float:
    """Return the seconds after which a verification counts as stuck; 0 for fast ones."""
    if not verifier.slow:
        return 0.0
    return float(getattr(verifier, "longest", _LONGEST))


def setup_time(job: Job) -> float:
    """Return the seconds that preparing a checkout may take; if that fails, also the base's."""
    setup = job.workspace.setup if job.workspace is not None else None
    return 0.0 if setup is None else 2 * setup.timeout * len(setup.run)


def candidate(claim: Claim, output: Output) -> Candidate:
    return Candidate(
        output=output,
        text=output.text,
        workspace=claim.job.workspace,
        job_id=claim.job_id,
        attempt=claim.plan.number,
    )


def check_one(claim: Claim, output: Output, index: int, verifier: Verifier) -> VerificationResult:
    """Run one verifier. Raise VerifierError if it reaches no verdict."""
    label = claim.job.verifiers[index].label
    try:
        return verifier.verify(candidate(claim, output))
    except (WorkspaceUnavailable, CallCancelled):
        raise  # this is neither the answer's failure nor the verifier's
    except SetupBroken as error:
        return _broken_setup(claim.job.verifiers[index].id, error)
    except SetupFailed:
        raise  # whatever the verifier is
    except VerifierError as error:
        raise VerifierError(f"{label}: {error}") from error
    except Exception as error:  # a plug-in's bug is not the answer's failure
        raise VerifierError(f"{label}: {type(error).__name__}: {message_of(error)}") from error


def _broken_setup(verifier_id: str, error: SetupBroken) -> VerificationResult:
    said = str(error).partition("\n")[0]
    return VerificationResult(
        status=VerificationStatus.FAIL,
        verifier_id=verifier_id,
        summary=said,
        evidence={"kind": FailureKind.COMMAND_FAILED.value, **error.evidence},
        errors=(Finding(message=said, code="setup_failed"),),
    )


def check_all(
    claim: Claim,
    output: Output,
    verifiers: Sequence[Verifier],
    known: Mapping[int, VerificationResult],
) -> Sequence[VerificationResult]:
    """Return all results in the job's order. Run the verifiers that are not in ``known``.

    A merge that was not made yet is skipped.
    """
    merge = merge_index(claim.job)
    known = known if merge is None else {merge: NOT_MERGED, **known}
    return [
        known[i] if i in known else check_one(claim, output, i, verifier)
        for i, verifier in enumerate(verifiers)
    ]


def run_verification(context: AttemptContext, entry: Entry) -> Outcome:
    """Run one slow verification. The task that stores the last result settles the attempt."""
    claim = context.ledger.claim_verification(entry, worker=context.worker)
    if isinstance(claim, ClaimRefused):
        return claim
    context.step("verification_claimed", entry)
    if claim.output is None or entry.index is None:
        raise ValueError(f"{entry} has no stored answer to verify")
    started = context.clock.monotonic()
    merge = _merge_verification(context) if entry.index == merge_index(claim.job) else None
    try:
        verifier = context.verifier(claim.job.verifiers[entry.index])
        longest = (
            verification_time(verifier) + setup_time(claim.job)
            if merge is None
            else merge_time(merge, claim, hard_limit=context.hard_limit)
        )
    except BadInput as error:
        return no_verdict(context, claim, error)
    with context.holding(claim.lease, longest) as held:
        try:
            if merge is not None:
                result = merge_attempt(context, claim, held, merge, until=started + longest)
            else:
                result = check_one(claim, claim.output, entry.index, verifier)
        except VerifierError as error:
            return no_verdict(context, claim, error)
        except (WorkspaceUnavailable, CallCancelled) as error:
            return undone(context, claim, error)
        context.step("verified", entry)
        elapsed = context.clock.monotonic() - started
        last = context.ledger.store_result(claim.lease, result, elapsed=elapsed)
    context.step("result_stored", entry)
    if isinstance(last, ClaimRefused):
        return last if last.reason == "lost" else VerificationStored(entry=entry, result=result)
    return conclude(context, last)


def _merge_verification(context: AttemptContext) -> MergeVerification:
    return MergeVerification(
        build=partial(build_verifiers, context),
        check=_check_answer,
        seconds=lambda job, verifier: verification_time(verifier) + setup_time(job),
    )


def _check_answer(claim: Claim, index: int, verifier: Verifier) -> VerificationResult:
    if claim.output is None:
        raise ValueError(f"{claim.lease.entry} has no answer to verify")
    return check_one(claim, claim.output, index, verifier)


def conclude(context: AttemptContext, claim: Claim) -> Outcome:
    """Settle an attempt whose slow verifications are all stored."""
    output = claim.output
    if output is None:
        raise ValueError(f"{claim.lease.entry} has no stored answer to settle")
    with context.holding(claim.lease, 60.0):
        try:
            verifiers = build_verifiers(context, claim.job)
            results = check_all(claim, output, verifiers, claim.results)
            defaults = context.runner(claim.job.runner).decoding
        except (VerifierError, BadInput) as error:
            return no_verdict(context, claim, error)
        except (WorkspaceUnavailable, CallCancelled) as error:
            return undone(context, claim, error)
        asked = asked_with(claim, defaults)
        return settle_or_merge(context, claim, output, results, asked)


def settle_or_merge(
    context: AttemptContext,
    claim: Claim,
    output: Output,
    results: Sequence[VerificationResult],
    asked: Decoding,
) -> Outcome:
    """Settle an attempt whose results are complete. One that satisfies them is merged first.

    So an item has passed exactly if its work is merged.
    """
    merge, specs = merge_index(claim.job), claim.job.verifiers
    others = {i: result for i, result in enumerate(results) if i != merge}
    good = is_good(specs, others)
    if merge is None and good:
        try:
            context.on_passed(claim, output)
        except WorkspaceUnavailable as error:
            return undone(context, claim, error)
    if merge is None or merge in claim.results or not good:
        return settle_answer(context, claim, output, results, asked)
    handed = context.ledger.begin_merge(
        claim.lease, others, index=merge, priority=claim.job.priority
    )
    if isinstance(handed, ClaimRefused):
        if handed.reason == "finished":  # the job has ended meanwhile
            return settle_answer(context, claim, output, results, asked)
        return handed
    context.step("merge_begun", claim.lease.entry)
    context.publish(handed)
    return VerificationPending(entry=claim.lease.entry, verifications=1)


def asked_with(claim: Claim, defaults: Decoding) -> Decoding:
    """Return the decoding of this attempt: its plan's, or else the runner's default."""
    asked = claim.plan.decoding
    return asked.model_copy(
        update={
            "temperature": defaults.temperature if asked.temperature is None else asked.temperature,
            "max_tokens": defaults.max_tokens if asked.max_tokens is None else asked.max_tokens,
        }
    )


def undone(
    context: AttemptContext,
    claim: Claim,
    error: WorkspaceUnavailable | CallCancelled,
    *,
    unasked: bool = False,
) -> Outcome:
    """Leave an entry undone, without counting it: a store is away, or the lease is lost.

    ``unasked``: its runner was not asked, so it costs nothing.
    """
    if isinstance(error, CallCancelled):
        return ClaimRefused("lost")
    requeued = context.ledger.requeue(
        claim.lease, delay=_BLOBS_DELAY, detail=str(error), unasked=unasked
    )
    return after_requeue(context, claim, requeued, str(error))


def is_time_limit(error: BaseException) -> bool:
    """Whether the worker's own soft time limit ended the task. Celery's class is known by name."""
    return any(base.__name__ == "SoftTimeLimitExceeded" for base in type(error).__mro__)


def ended_by_worker(context: AttemptContext, claim: Claim) -> Outcome:
    """Run an entry again that the worker's soft time limit ended, or escalate.

    The limit says nothing about the answer. A stored answer is not asked for again.
    """
    detail = (
        "the worker's soft time limit ended it: raise --soft-time-limit above the timeout of the"
        " runner, or lower that timeout"
    )
    requeued = context.ledger.requeue(
        claim.lease,
        delay=_RETRY_DELAY,
        detail=detail,
        counter="time_limits",
        limit=context.verifier_tries,
        reason="tool_error",
    )
    return after_requeue(context, claim, requeued, detail)


def no_verdict(
    context: AttemptContext,
    claim: Claim,
    error: VerifierError | BadInput,
    *,
    unasked: bool = False,
) -> Outcome:
    """Run a broken verifier again, or escalate: its error is not a failure of the answer."""
    requeued = context.ledger.requeue(
        claim.lease,
        delay=_RETRY_DELAY,
        detail=str(error),
        counter="verifier_errors",
        limit=context.verifier_tries,
        reason="setup_failed" if isinstance(error, SetupFailed) else "tool_error",
        unasked=unasked,
    )
    return after_requeue(context, claim, requeued, str(error))


def after_requeue(
    context: AttemptContext, claim: Claim, requeued: EntryRequeued | ClaimRefused, reason: str
) -> Outcome:
    """Publish what the requeued entry has freed."""
    if isinstance(requeued, ClaimRefused):
        return requeued
    context.publish(requeued.released)
    return Requeued(entry=claim.lease.entry, delay=requeued.delay, reason=reason)
