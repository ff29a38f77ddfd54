"""Recheck: a cycle's delayed verification, on the stored answer or in other words."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.policies.cycles.delayed import reformulated
from mulligan.policies.failures.classify import said_by
from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.backoff import backoff
from mulligan.policies.jobs.job import Output
from mulligan.policies.repair import score as scoring
from mulligan.tasks.jobs.attempt import SLACK, presentable, request_of
from mulligan.tasks.jobs.context import AttemptContext, ResolvedRunner
from mulligan.tasks.jobs.outcome import Outcome, Rechecked, Requeued
from mulligan.tasks.jobs.verify import build_verifiers, check_all, no_verdict, verification_time
from mulligan.tasks.ports.errors import BadInput, TransportFault, VerifierError
from mulligan.tasks.ports.ledger import Claim, ClaimRefused, CycleClaim, CycleFailure, Entry, Lease
from mulligan.tasks.ports.verifiers import Verifier


def recheck_time(verifiers: Sequence[Verifier], *, asking: float = 0.0) -> float:
    """The seconds that a delayed verification may take: its claim holds all of it, in turn."""
    return asking + sum(map(verification_time, verifiers))


def run_recheck(context: AttemptContext, entry: Entry) -> Outcome:
    """Verify the job's answer once more: 70 or more completes the cycle, less escalates it."""
    taken = context.ledger.claim_cycle(entry, worker=context.worker)
    if isinstance(taken, ClaimRefused):
        return taken
    try:
        deadline = _deadline(context, taken)
    except BadInput as error:
        return no_verdict(context, taken.claim, error)
    with context.holding(taken.lease, deadline):
        if taken.claim.job.delayed_verification.mode == "reformulate":
            return _ask_again(context, taken)
        if taken.claim.output is None:
            return end_cycle(context, taken.lease, None, CycleFailure(reason="no_answer"))
        return judge_again(context, taken, taken.claim.output)


def _deadline(context: AttemptContext, taken: CycleClaim) -> float:
    """As long as the runner and the verifiers may take; BadInput if one of them is not to be had.

    A process is replaced at the deadline, with whatever its other slots are doing: only one that
    is really stuck may get there.
    """
    job, asking = taken.claim.job, 0.0
    if job.delayed_verification.mode == "reformulate" and taken.output is None:
        asking = context.runner(job.runner).timeout
    return SLACK + recheck_time(build_verifiers(context, job), asking=asking)


def judge_again(context: AttemptContext, taken: CycleClaim, output: Output) -> Outcome:
    """Run the job's verifiers over an answer, and end the cycle by what they say."""
    claim = taken.claim
    try:
        results = check_all(claim, output, build_verifiers(context, claim.job), {})
    except (VerifierError, BadInput) as error:
        return no_verdict(context, claim, error)
    return end_by_results(context, taken, results)


def end_by_results(
    context: AttemptContext, taken: CycleClaim, results: Sequence[VerificationResult]
) -> Outcome:
    """End the cycle by what the job's verifiers found."""
    specs = taken.claim.job.verifiers
    total = scoring.score(specs, results)
    if scoring.succeeded(specs, results, total):
        return end_cycle(context, taken.lease, total, None)
    failure = CycleFailure(detail=f"delayed verification scored {total or 0:g}")
    return end_cycle(context, taken.lease, total, failure)


def _ask_again(context: AttemptContext, taken: CycleClaim) -> Outcome:
    """The task in other words; an answer that is stored already is not asked for again."""
    if taken.output is not None:
        return judge_again(context, taken, taken.output)
    try:
        in_hand = context.runner(taken.claim.job.runner)
    except BadInput as error:
        return no_verdict(context, taken.claim, error)
    provider = in_hand.runner.provider
    stay = context.breakers.wait(provider)
    if stay is not None:
        return _later(context, taken.claim, stay.seconds, f"{provider} is to be left alone")
    try:
        output = _answer(context, taken, in_hand)
    except TransportFault as fault:
        context.breakers.fault(fault)
        delay = backoff(
            taken.claim.faults + 1,
            base=context.backoff_base,
            cap=context.backoff_cap,
            randomness=context.randomness(),
            retry_after=fault.retry_after,
        )
        return _later(context, taken.claim, delay, str(fault))
    except Exception as error:  # no answer is no proof: the cycle says so
        detail = f"delayed verification: {said_by(error)}"[:200]
        return end_cycle(context, taken.lease, None, CycleFailure(detail=detail))
    context.breakers.success(provider)
    if not context.ledger.store_cycle_output(taken.lease, output):
        return ClaimRefused("lost")
    return judge_again(context, taken, output)


def _answer(context: AttemptContext, taken: CycleClaim, in_hand: ResolvedRunner) -> Output:
    prompt = reformulated(taken.claim.job)
    asked = request_of(taken.claim, in_hand, prompt=prompt, later=1)
    return presentable(in_hand.runner.answer(asked), context.answer_cap)


def _later(context: AttemptContext, claim: Claim, delay: float, detail: str) -> Outcome:
    answer = context.ledger.requeue(claim.lease, delay=delay, detail=detail)
    if isinstance(answer, ClaimRefused):
        return answer
    return Requeued(entry=claim.lease.entry, delay=delay, reason=detail)


def end_cycle(
    context: AttemptContext, lease: Lease, total: float | None, failure: CycleFailure | None
) -> Outcome:
    status = CycleStatus.ESCALATED if failure else CycleStatus.COMPLETED
    ended = context.ledger.settle_cycle(lease, status=status.value, score=total, failure=failure)
    return (
        Rechecked(entry=lease.entry, score=total, status=status.value)
        if ended
        else ClaimRefused("lost")
    )
