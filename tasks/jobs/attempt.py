"""Attempt: claim, run, store the answer, verify, settle. Every message may come twice."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.policies.jobs.backoff import backoff
from mulligan.policies.jobs.job import Decoding, Message, Output
from mulligan.policies.repair.strategy import contract_of
from mulligan.tasks.jobs.context import RunnerInHand, Stay, Workbench
from mulligan.tasks.jobs.outcome import Handed, Outcome, Requeued
from mulligan.tasks.jobs.settle import settle_answer, settle_error
from mulligan.tasks.jobs.verify import (
    asked_with,
    build_verifiers,
    check_all,
    no_verdict,
    slow_verifiers,
)
from mulligan.tasks.ports.ledger import Claim, Entry, Refused
from mulligan.tasks.ports.world import (
    BadInput,
    Request,
    RunnerError,
    TransportFault,
    Verifier,
    VerifierError,
)

#: What a claim may last beyond the runner's own deadline.
SLACK = 60.0


def run_attempt(bench: Workbench, entry: Entry) -> Outcome:
    """Do whatever this attempt still needs; nothing that is already stored is done again."""
    claim = bench.ledger.claim(entry, worker=bench.worker)
    if isinstance(claim, Refused):
        return claim
    bench.step("claimed", claim.lease.entry)
    try:
        in_hand = bench.runner(claim.job.runner)
        verifiers = build_verifiers(bench, claim.job)
    except BadInput as error:
        refused = RunnerError(str(error), evidence={"kind": "unsafe_request"})
        return settle_error(bench, claim, refused, claim.plan.decoding)
    asked = asked_with(claim, in_hand.decoding)
    if claim.output is None:
        return _run(bench, claim, in_hand, verifiers, asked)
    with bench.holding(claim.lease, SLACK):
        return _check(bench, claim, claim.output, verifiers, asked)


def _run(
    bench: Workbench,
    claim: Claim,
    in_hand: RunnerInHand,
    verifiers: Sequence[Verifier],
    asked: Decoding,
) -> Outcome:
    entry, provider = claim.lease.entry, in_hand.runner.provider
    stay = bench.breakers.wait(provider)
    if stay is not None:
        return _stay_away(bench, claim, provider, stay)
    with bench.holding(claim.lease, in_hand.timeout + SLACK):
        bench.step("asking", entry)
        try:
            output = in_hand.runner.answer(request_of(claim, in_hand, prompt=claim.plan.prompt))
        except TransportFault as fault:
            bench.breakers.fault(fault)
            return _again(bench, claim, fault)
        except Exception as error:  # a runner's bug is a classified failure like any other
            return settle_error(bench, claim, error, asked)
        bench.breakers.success(provider)
        bench.step("answered", entry)
        output = presentable(output, bench.answer_cap)
        slow = slow_verifiers(verifiers)
        stored = bench.ledger.store_output(
            claim.lease, output, verifications=slow, priority=claim.job.priority
        )
        bench.step("output_stored", entry)
        if isinstance(stored, Refused):
            return stored
        if stored:
            bench.publish(stored)
            return Handed(entry=entry, verifications=len(stored))
        return _check(bench, claim, output, verifiers, asked)


def _check(
    bench: Workbench,
    claim: Claim,
    output: Output,
    verifiers: Sequence[Verifier],
    asked: Decoding,
) -> Outcome:
    """Verify what is not verified yet, and settle. Slow results of earlier tasks are stored."""
    try:
        results = check_all(claim, output, verifiers, claim.results)
    except VerifierError as error:
        return no_verdict(bench, claim, error)
    bench.step("verified", claim.lease.entry)
    return settle_answer(bench, claim, output, results, asked)


def request_of(
    claim: Claim, in_hand: RunnerInHand, *, prompt: str | None, later: int = 0
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


def _again(bench: Workbench, claim: Claim, fault: TransportFault) -> Outcome:
    """A transport fault re-queues the same attempt; it never enters the prompt."""
    delay = backoff(
        claim.faults + 1,
        base=bench.backoff_base,
        cap=bench.backoff_cap,
        randomness=bench.randomness(),
        retry_after=fault.retry_after,
    )
    return _later(bench, claim, delay, str(fault), "delay", "faults")


def _stay_away(bench: Workbench, claim: Claim, provider: str, stay: Stay) -> Outcome:
    open_or_paused = f"the breaker of {provider} is open"
    if stay.waiting_for == "pause":
        open_or_paused = f"{provider} is paused"
    return _later(bench, claim, stay.seconds, open_or_paused, stay.waiting_for, None)


def _later(
    bench: Workbench,
    claim: Claim,
    delay: float,
    detail: str,
    waiting_for: str,
    counter: str | None,
) -> Outcome:
    """Give the attempt back. Staying away from a provider is no fault of the attempt's."""
    answer = bench.ledger.requeue(
        claim.lease, delay=delay, detail=detail, waiting_for=waiting_for, counter=counter
    )
    if isinstance(answer, Refused):
        return answer
    return Requeued(entry=claim.lease.entry, delay=delay, reason=detail)
