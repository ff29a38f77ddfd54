"""Recheck: the delayed verification of a cycle, on the stored answer or in other words."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.policies.cycles.delayed import reformulated
from mulligan.policies.failures.classify import message_of
from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import Output
from mulligan.policies.repair import score as scoring
from mulligan.policies.repair.retry import score_in_full
from mulligan.tasks.jobs.attempt import SLACK, request_of, requeue_fault, storable
from mulligan.tasks.jobs.context import AttemptContext
from mulligan.tasks.jobs.outcome import Outcome, Rechecked
from mulligan.tasks.jobs.verify import (
    build_verifiers,
    check_all,
    ended_by_worker,
    is_time_limit,
    no_verdict,
    setup_time,
    undone,
    verification_time,
)
from mulligan.tasks.ports.errors import (
    BadInput,
    CallCancelled,
    TransportFault,
    VerifierError,
    WorkspaceUnavailable,
)
from mulligan.tasks.ports.ledger import ClaimRefused, CycleClaim, CycleFailure, Entry, Lease
from mulligan.tasks.ports.runners import provider_for
from mulligan.tasks.ports.verifiers import Verifier


def recheck_time(verifiers: Sequence[Verifier], *, asking: float = 0.0) -> float:
    """Return the seconds that a delayed verification may take; its steps run one by one."""
    return asking + sum(map(verification_time, verifiers))


def run_recheck(context: AttemptContext, entry: Entry) -> Outcome:
    """Verify the job's answer again: 70 or more completes the cycle, less escalates it."""
    taken = context.ledger.claim_cycle(entry, worker=context.worker)
    if isinstance(taken, ClaimRefused):
        return taken
    try:
        deadline = _deadline(context, taken)
    except BadInput as error:
        return no_verdict(context, taken.claim, error)
    with context.holding(taken.lease, deadline) as held:
        if not held.is_sure():  # this process slept longer than its lease
            return ClaimRefused("lost")
        if taken.claim.job.delayed_verification.mode == "reformulate":
            return _ask_again(context, taken)
        if taken.claim.output is None:
            return end_cycle(context, taken.lease, None, CycleFailure(reason="no_answer"))
        return judge_again(context, taken, taken.claim.output)


def _deadline(context: AttemptContext, taken: CycleClaim) -> float:
    """Return how long the runner and the verifiers may take; BadInput if one is not available.

    A process is replaced at the deadline together with the work in its other slots, so only a
    process that is really stuck may reach it.
    """
    job, asking = taken.claim.job, 0.0
    if job.delayed_verification.mode == "reformulate" and taken.output is None:
        asking = context.runner(job.runner).timeout
    verifiers = build_verifiers(context, job)
    return SLACK + recheck_time(verifiers, asking=asking) + len(verifiers) * setup_time(job)


def judge_again(
    context: AttemptContext, taken: CycleClaim, output: Output, *, report: str | None = None
) -> Outcome:
    """Run the job's verifiers on an answer and end the cycle by their results."""
    claim = taken.claim
    try:
        results = check_all(claim, output, build_verifiers(context, claim.job), {})
    except (VerifierError, BadInput) as error:
        return no_verdict(context, claim, error)
    except (WorkspaceUnavailable, CallCancelled) as error:
        return undone(context, claim, error)
    return end_by_results(context, taken, results, report=report)


def end_by_results(
    context: AttemptContext,
    taken: CycleClaim,
    results: Sequence[VerificationResult],
    *,
    report: str | None = None,
) -> Outcome:
    """End the cycle by the results of the job's verifiers. ``report``: the digest of a report."""
    specs = taken.claim.job.verifiers
    total = scoring.score(specs, results)
    if scoring.succeeded(specs, results, total):
        return end_cycle(context, taken.lease, total, None, report=report)
    failure = CycleFailure(detail=f"delayed verification scored {score_in_full(total or 0.0)}")
    return end_cycle(context, taken.lease, total, failure, report=report)


def _ask_again(context: AttemptContext, taken: CycleClaim) -> Outcome:
    """Ask the reworded task, unless its answer is already stored, and judge the answer."""
    if taken.output is not None:
        return judge_again(context, taken, taken.output)
    claim = taken.claim
    try:
        runner = context.runner(claim.job.runner)
    except BadInput as error:
        return no_verdict(context, claim, error)
    provider = provider_for(runner.runner, claim.plan.decoding)
    if provider != claim.provider:
        refused = context.ledger.name_provider(taken.lease, provider)
        if refused is not None:
            return refused
    prompt, attempt = reformulated(claim.job), claim.plan.number + 1
    request = request_of(claim, runner, prompt=prompt, attempt=attempt)
    try:
        output = storable(runner.runner.answer(request), context.answer_cap)
    except TransportFault as fault:
        return requeue_fault(context, claim, fault)
    except (WorkspaceUnavailable, CallCancelled) as error:
        return undone(context, claim, error)
    except Exception as error:  # without an answer, nothing is proved
        if is_time_limit(error):
            return ended_by_worker(context, claim)
        detail = f"delayed verification: {message_of(error)}"[:200]
        return end_cycle(context, taken.lease, None, CycleFailure(detail=detail))
    stored = context.ledger.store_cycle_output(taken.lease, output)
    if isinstance(stored, ClaimRefused):
        return stored
    context.publish(stored)
    return judge_again(context, taken, output)


def end_cycle(
    context: AttemptContext,
    lease: Lease,
    total: float | None,
    failure: CycleFailure | None,
    *,
    report: str | None = None,
) -> Outcome:
    status = CycleStatus.ESCALATED if failure else CycleStatus.COMPLETED
    ended = context.ledger.settle_cycle(
        lease, status=status.value, score=total, failure=failure, report=report
    )
    if not ended:
        return ClaimRefused("lost")
    return Rechecked(entry=lease.entry, score=total, status=status.value)
