"""Attempt: claim, run, store the answer, verify, settle. A message may be delivered twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mulligan.policies.jobs.backoff import backoff
from mulligan.policies.jobs.breaker import ProviderPolicy
from mulligan.policies.jobs.job import Decoding, Message, Output, joined_surrogates
from mulligan.policies.loops.budget import Resource
from mulligan.policies.repair.strategy import contract_of
from mulligan.tasks.coordination.held_files import declare_changes
from mulligan.tasks.jobs.base_check import check_base
from mulligan.tasks.jobs.commit_check import check_commit, commit_to_check
from mulligan.tasks.jobs.context import AttemptContext, ResolvedRunner
from mulligan.tasks.jobs.outcome import Outcome, VerificationPending
from mulligan.tasks.jobs.settle import settle_error
from mulligan.tasks.jobs.verify import (
    after_requeue,
    asked_with,
    build_verifiers,
    check_all,
    ended_by_worker,
    is_time_limit,
    no_verdict,
    settle_or_merge,
    setup_time,
    slow_verifiers,
    undone,
)
from mulligan.tasks.ports.errors import (
    BadInput,
    CallCancelled,
    RunnerError,
    SetupFailed,
    TransportFault,
    VerifierError,
    WorkspaceUnavailable,
)
from mulligan.tasks.ports.ledger import Claim, ClaimRefused, Entry, EntryRequeued
from mulligan.tasks.ports.runners import Request, provider_for
from mulligan.tasks.ports.verifiers import Verifier

#: Seconds that a claim may last beyond the runner's deadline.
SLACK = 60.0
#: For an estimate of a prompt's tokens.
BYTES_PER_TOKEN = 4


def run_attempt(context: AttemptContext, entry: Entry) -> Outcome:
    """Do what this attempt still needs; what is already stored is not done again."""
    claim = context.ledger.claim(entry, worker=context.worker)
    if isinstance(claim, ClaimRefused):
        return claim
    context.step("claimed", claim.lease.entry)
    try:
        return _attempt(context, claim)
    except Exception as error:
        if not is_time_limit(error):
            raise
        return ended_by_worker(context, claim)


def _attempt(context: AttemptContext, claim: Claim) -> Outcome:
    if commit_to_check(claim.job):
        return check_commit(context, claim)
    try:
        runner = context.runner(claim.job.runner)
        verifiers = build_verifiers(context, claim.job)
    except BadInput as error:
        refused = RunnerError(str(error), evidence={"kind": "unsafe_request"})
        return settle_error(context, claim, refused, claim.plan.decoding)
    asked = asked_with(claim, runner.decoding)
    if claim.job.merges and claim.output is None:
        found = check_base(context, claim, verifiers)
        context.step("base_checked", claim.lease.entry)
        if isinstance(found, Output):
            with context.holding(claim.lease, SLACK):
                return _store(context, claim, found, verifiers, asked)
        if found is not None:
            return found
    if claim.output is None and claim.budget_used_up:
        # By calls that never answered: one that did has settled its attempt.
        name = claim.job.name or "the job"
        used_up = RunnerError(f"the budget of {name} is used up", final=False)
        return settle_error(context, claim, used_up, asked)
    if claim.output is None:
        return _run(context, claim, runner, verifiers, asked)
    with context.holding(claim.lease, SLACK):
        return _check(context, claim, claim.output, verifiers, asked)


def _run(
    context: AttemptContext,
    claim: Claim,
    runner: ResolvedRunner,
    verifiers: Sequence[Verifier],
    asked: Decoding,
) -> Outcome:
    entry = claim.lease.entry
    provider = provider_for(runner.runner, claim.plan.decoding)
    if provider != claim.provider:
        refused = context.ledger.name_provider(claim.lease, provider)
        if refused is not None:
            return refused
    seconds = setup_time(claim.job) + runner.timeout + SLACK
    with context.holding(claim.lease, seconds) as held:
        if not held.is_sure():  # this process slept longer than its lease
            return ClaimRefused("lost")
        context.step("asking", entry)
        asked_runner = not claim.job.merges
        price = context.price(claim.job.runner) if "money" in claim.allowance else None

        def may_ask() -> bool:
            nonlocal asked_runner
            asked_runner = True
            return held.is_sure()

        def meter(used: Mapping[Resource, float]) -> None:
            """Note what was used, also for an end without an answer. A price gives the money."""
            nonlocal claim
            if price is not None and "tokens" in used:
                used = {"money": used["tokens"] * price, **used}
            held.meter(used)
            metered = {**claim.lease.metered, **used}
            claim = replace(claim, lease=replace(claim.lease, metered=metered))

        try:
            request = request_of(claim, runner, prompt=claim.plan.prompt, price=price)
            request = replace(request, meter=meter, progress=held.progress, may_ask=may_ask)
            output = context.answer(runner.runner, request)
        except TransportFault as fault:
            return requeue_fault(context, claim, fault)
        except (WorkspaceUnavailable, CallCancelled) as error:
            return undone(context, claim, error, unasked=not asked_runner)
        except SetupFailed as error:
            return no_verdict(context, claim, error, unasked=True)
        except Exception as error:  # a bug in a runner is a classified failure, too
            if is_time_limit(error):
                raise
            return settle_error(context, claim, error, asked)
        context.step("answered", entry)
        output = storable(output, context.answer_cap)
        return _store(context, claim, output, verifiers, asked, provider=provider)


def _store(
    context: AttemptContext,
    claim: Claim,
    output: Output,
    verifiers: Sequence[Verifier],
    asked: Decoding,
    *,
    provider: str = "",
) -> Outcome:
    """Store an answer before anything else happens, and verify it."""
    slow = slow_verifiers(claim.job, verifiers)
    stored = context.ledger.store_output(
        claim.lease,
        output,
        verifications=slow,
        priority=claim.job.priority,
        money=context.cost(claim.job, output),
    )
    if isinstance(stored, ClaimRefused):
        return stored
    context.step("output_stored", claim.lease.entry)
    context.publish(stored)
    declare_changes(context, claim, output)
    if output.provider_wait:
        context.release_later(claim.job_id, provider, output.provider_wait)
    if slow:
        return VerificationPending(entry=claim.lease.entry, verifications=len(slow))
    return _check(context, claim, output, verifiers, asked)


def _check(
    context: AttemptContext,
    claim: Claim,
    output: Output,
    verifiers: Sequence[Verifier],
    asked: Decoding,
) -> Outcome:
    """Run the verifiers without a stored result, and settle or begin the merge."""
    try:
        results = check_all(claim, output, verifiers, claim.results)
    except VerifierError as error:
        return no_verdict(context, claim, error)
    except (WorkspaceUnavailable, CallCancelled) as error:
        return undone(context, claim, error)
    context.step("verified", claim.lease.entry)
    return settle_or_merge(context, claim, output, results, asked)


def request_of(
    claim: Claim,
    runner: ResolvedRunner,
    *,
    prompt: str | None,
    attempt: int | None = None,
    price: float | None = None,
) -> Request:
    """Build the runner's request from the job. ``prompt`` replaces its last message.

    ``price``: the highest price of one token of the runner, if the loop limits money.
    """
    job, plan = claim.job, claim.plan
    messages = job.conversation
    if prompt is not None:
        messages = (*messages[:-1], Message(role="user", content=prompt))
    limits = [job.budget.tokens - claim.tokens_used] if job.budget.tokens is not None else []
    allowed = [claim.allowance["tokens"]] if "tokens" in claim.allowance else []
    if price and "money" in claim.allowance:
        left = claim.allowance["money"]
        if job.budget.money is not None:
            left = min(left, job.budget.money - claim.money_used)
        allowed.append(left / price)
    if allowed:
        # What the prompt takes is known only afterwards.
        prompt_tokens = sum(len(each.content.encode()) for each in messages) // BYTES_PER_TOKEN
        limits.append(int(min(allowed)) - prompt_tokens)
    return Request(
        messages=messages,
        decoding=plan.decoding,
        json_schema=contract_of(job),
        attempt=attempt or plan.number,
        timeout=_timeout(claim, runner),
        token_allowance=max(1, min(limits)) if limits else None,
        workspace=job.workspace,
        job_id=claim.job_id,
        loop=job.labels.get("loop", "") if job.merges else "",
        item=job.labels.get("item", "") if job.merges else "",
        token=claim.lease.token,
        kept=plan.kept,
    )


def _timeout(claim: Claim, runner: ResolvedRunner) -> float:
    """Return the seconds of a call; for an item, no more than its budgets allow."""
    if "seconds" not in claim.allowance:
        return runner.timeout
    limit = claim.job.budget.seconds
    left = runner.timeout if limit is None else limit - claim.seconds_used
    return max(0.1, min(runner.timeout, claim.allowance["seconds"], left))


def storable(output: Output, cap: int) -> Output:
    """Cut an answer above the cap, which then counts as truncated; replace what is not UTF-8."""
    text = joined_surrogates(output.text)
    if len(text) > cap:
        return output.model_copy(update={"text": text[:cap], "finish_reason": "length"})
    return output if text == output.text else output.model_copy(update={"text": text})


def requeue_fault(context: AttemptContext, claim: Claim, fault: TransportFault) -> Outcome:
    """Requeue an entry after a transport fault, which never enters the prompt.

    The ledger decides whether it waits for its provider or for the back-off of its own faults.
    """
    asked = fault.retry_after
    delay = backoff(
        claim.faults + 1,
        base=context.backoff_base,
        cap=context.backoff_cap,
        randomness=context.randomness(),
        # The provider's own pause has the same cap, so the job does not wait for longer.
        retry_after=None if asked is None else min(asked, ProviderPolicy().retry_after_cap),
    )
    requeued = context.ledger.requeue(
        claim.lease, delay=delay, detail=str(fault), counter="faults", fault=fault
    )
    if isinstance(requeued, EntryRequeued) and requeued.provider_opens_in is not None:
        context.release_later(claim.job_id, fault.provider, requeued.provider_opens_in)
    return after_requeue(context, claim, requeued, str(fault))
