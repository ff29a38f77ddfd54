"""Attempt: claim, run, store the answer, verify, settle. Every message may come twice."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.policies.jobs.backoff import backoff
from mulligan.policies.jobs.job import Decoding, Message, Output
from mulligan.policies.repair.strategy import contract_of
from mulligan.tasks.jobs.context import AttemptContext, ProviderHold, ResolvedRunner
from mulligan.tasks.jobs.outcome import Outcome, Requeued, VerificationPending
from mulligan.tasks.jobs.settle import settle_answer, settle_error
from mulligan.tasks.jobs.verify import (
    asked_with,
    build_verifiers,
    check_all,
    no_verdict,
    slow_verifiers,
)
from mulligan.tasks.ports.errors import BadInput, RunnerError, TransportFault, VerifierError
from mulligan.tasks.ports.ledger import Claim, ClaimRefused, Entry
from mulligan.tasks.ports.runners import Request
from mulligan.tasks.ports.verifiers import Verifier

#: What a claim may last beyond the runner's own deadline.
SLACK = 60.0


def run_attempt(context: AttemptContext, entry: Entry) -> Outcome:
    """Do whatever this attempt still needs; nothing that is already stored is done again."""
    claim = context.ledger.claim(entry, worker=context.worker)
    if isinstance(claim, ClaimRefused):
        return claim
    context.step("claimed", claim.lease.entry)
    try:
        in_hand = context.runner(claim.job.runner)
        verifiers = build_verifiers(context, claim.job)
    except BadInput as error:
        refused = RunnerError(str(error), evidence={"kind": "unsafe_request"})
        return settle_error(context, claim, refused, claim.plan.decoding)
    asked = asked_with(claim, in_hand.decoding)
    if claim.output is None:
        return _run(context, claim, in_hand, verifiers, asked)
    with context.holding(claim.lease, SLACK):
        return _check(context, claim, claim.output, verifiers, asked)


def _run(
    context: AttemptContext,
    claim: Claim,
    in_hand: ResolvedRunner,
    verifiers: Sequence[Verifier],
    asked: Decoding,
) -> Outcome:
    entry, provider = claim.lease.entry, in_hand.runner.provider
    stay = context.breakers.wait(provider)
    if stay is not None:
        return _stay_away(context, claim, provider, stay)
    with context.holding(claim.lease, in_hand.timeout + SLACK):
        context.step("asking", entry)
        try:
            output = in_hand.runner.answer(request_of(claim, in_hand, prompt=claim.plan.prompt))
        except TransportFault as fault:
            context.breakers.fault(fault)
            return _again(context, claim, fault)
        except Exception as error:  # a runner's bug is a classified failure like any other
            return settle_error(context, claim, error, asked)
        context.breakers.success(provider)
        context.step("answered", entry)
        output = presentable(output, context.answer_cap)
        slow = slow_verifiers(verifiers)
        stored = context.ledger.store_output(
            claim.lease, output, verifications=slow, priority=claim.job.priority
        )
        context.step("output_stored", entry)
        if isinstance(stored, ClaimRefused):
            return stored
        if stored:
            context.publish(stored)
            return VerificationPending(entry=entry, verifications=len(stored))
        return _check(context, claim, output, verifiers, asked)


def _check(
    context: AttemptContext,
    claim: Claim,
    output: Output,
    verifiers: Sequence[Verifier],
    asked: Decoding,
) -> Outcome:
    """Verify what is not verified yet, and settle. Slow results of earlier tasks are stored."""
    try:
        results = check_all(claim, output, verifiers, claim.results)
    except VerifierError as error:
        return no_verdict(context, claim, error)
    context.step("verified", claim.lease.entry)
    return settle_answer(context, claim, output, results, asked)


def request_of(
    claim: Claim, in_hand: ResolvedRunner, *, prompt: str | None, later: int = 0
) -> Request:
    """What the runner is asked: the job's own words, or ``prompt`` in place of the last ones."""
    job, plan = claim.job, claim.plan
    messages = job.conversation
    if prompt is not None:
        messages = (*messages[:-1], Message(role="user", content=prompt))
    budget = job.budget.tokens
    left = None if budget is None else max(1, budget - claim.tokens_used)
    return Request(
        messages=messages,
        decoding=plan.decoding,
        json_schema=contract_of(job),
        attempt=plan.number + later,
        timeout=in_hand.timeout,
        token_allowance=left,
        workspace=job.workspace,
        job_id=claim.job_id,
    )


def presentable(output: Output, cap: int) -> Output:
    """An answer over the cap is cut and counts as truncated; what is not text is replaced."""
    text = output.text.encode("utf-8", "replace").decode()
    if len(text) > cap:
        return output.model_copy(update={"text": text[:cap], "finish_reason": "length"})
    return output if text == output.text else output.model_copy(update={"text": text})


def _again(context: AttemptContext, claim: Claim, fault: TransportFault) -> Outcome:
    """A transport fault re-queues the same attempt; it never enters the prompt."""
    delay = backoff(
        claim.faults + 1,
        base=context.backoff_base,
        cap=context.backoff_cap,
        randomness=context.randomness(),
        retry_after=fault.retry_after,
    )
    return _later(context, claim, delay, str(fault), "delay", "faults")


def _stay_away(context: AttemptContext, claim: Claim, provider: str, stay: ProviderHold) -> Outcome:
    open_or_paused = f"the breaker of {provider} is open"
    if stay.waiting_for == "pause":
        open_or_paused = f"{provider} is paused"
    return _later(context, claim, stay.seconds, open_or_paused, stay.waiting_for, None)


def _later(
    context: AttemptContext,
    claim: Claim,
    delay: float,
    detail: str,
    waiting_for: str,
    counter: str | None,
) -> Outcome:
    """Give the attempt back. Staying away from a provider is no fault of the attempt's."""
    answer = context.ledger.requeue(
        claim.lease, delay=delay, detail=detail, waiting_for=waiting_for, counter=counter
    )
    if isinstance(answer, ClaimRefused):
        return answer
    return Requeued(entry=claim.lease.entry, delay=delay, reason=detail)
