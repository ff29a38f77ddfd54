"""A user's task: claimed, verified, counted and retried like every other attempt."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from mulligan.policies.failures.classify import attribute_of, message_of
from mulligan.policies.failures.failure import (
    FailureRecord,
    Finding,
    VerificationResult,
    VerificationStatus,
)
from mulligan.policies.jobs.job import Decoding, Job, Output, VerifierSpec, joined_surrogates
from mulligan.policies.repair.free_repair import RepairSyntax, extract_json
from mulligan.policies.repair.instruction import RepairInstruction
from mulligan.policies.repair.prompt import build_corrected_prompt
from mulligan.policies.repair.retry import ChangeStrategy, Escalate
from mulligan.policies.repair.score import coercions
from mulligan.policies.repair.strategy import contract_of
from mulligan.policies.repair.verdict import Verdict, judge, judge_error
from mulligan.tasks.jobs.attempt import requeue_fault, storable
from mulligan.tasks.jobs.context import AttemptContext
from mulligan.tasks.jobs.outcome import Outcome
from mulligan.tasks.jobs.settle import Settled, settle_answer, settle_error
from mulligan.tasks.jobs.verify import build_verifiers, check_all, no_verdict
from mulligan.tasks.ports.errors import BadInput, TransportFault, VerifierError
from mulligan.tasks.ports.ledger import Claim, ClaimRefused, Entry, Finish, JobView, Settlement
from mulligan.tasks.user_tasks.reported_usage import ReportedUsage

#: The id of a check that the task made itself with Scored or Repair.
BY_HAND = "own.check"
#: Characters of an exception's message that are stored.
_SHOWN = 10_000
#: The outcome of a delivery in mode ``observe``.
OBSERVED = ClaimRefused("stored", "observed")


class Repair(Exception):
    """Raised by a task whose answer is wrong, to retry it with this message.

    ``answer``: what is wrong. It is stored, and the retry's prompt shows it.
    """

    def __init__(
        self, message: str, *, score: float = 0.0, path: str | None = None, answer: Any = None
    ) -> None:
        message = joined_surrogates(str(message)[:_SHOWN])
        super().__init__(message)
        if not 0 <= score <= 100:
            raise ValueError(f"a score is between 0 and 100, not {score:g}")
        self.answer = answer
        place = None if path is None else joined_surrogates(str(path)[:_SHOWN])
        self.result = VerificationResult(
            status=VerificationStatus.FAIL,
            verifier_id=BY_HAND,
            summary=message,
            evidence={"kind": "reasoning_error"},
            errors=(Finding(message=message, path=place, code="by_hand"),),
            score=score,
        )


class TimeLimitReached(Exception):
    """A task did not finish within its time limit, which says nothing about an answer."""

    def __init__(self, seconds: float | None = None) -> None:
        limit = "its time limit" if seconds is None else f"its time limit of {seconds:g} s"
        super().__init__(f"the task did not finish within {limit}")
        self.evidence = {"kind": "tool_error", "class": "timeout"}


@dataclass(frozen=True)
class Scored:
    """Returned by a task that checked its answer itself: the output and the results."""

    output: Any
    results: Sequence[VerificationResult]

    def __post_init__(self) -> None:
        if not isinstance(self.results, list | tuple) or not all(
            isinstance(result, VerificationResult) for result in self.results
        ):
            raise TypeError("Scored(output, results): results must be a list of VerificationResult")
        try:
            _specs(self.results)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"verifier_id {first['input']!r}: {first['msg']}") from None


@dataclass(frozen=True, kw_only=True)
class PreviousAttempt:
    """The result of the previous attempt."""

    instruction: RepairInstruction
    results: tuple[VerificationResult, ...] = ()
    answer: str | None = None
    coercions: tuple[str, ...] = ()
    #: Whether to start over, without anything of the last answer.
    fresh: bool = False
    #: That of an attempt without results, which raised an exception.
    failure: FailureRecord | None = None


@dataclass(frozen=True, kw_only=True)
class TaskDelivery:
    """One delivery of a user's task."""

    entry: Entry
    #: Calls the user's function.
    call: Callable[[PreviousAttempt | None], Any]
    #: Whether to retry and escalate, or only to record the decision.
    enforce: bool = True
    #: Exceptions that are signals to Celery, not failures.
    signals: tuple[type[BaseException], ...] = ()
    #: Returns the seconds until a signal's message is redelivered; None for never.
    redelivery_delay: Callable[[BaseException], float | None] = lambda _signal: 0.0
    #: Returns the fault that an exception means; None if the task itself failed.
    transport_fault: Callable[[Exception], TransportFault | None] = lambda _error: None
    #: Returns what the task reported when it ended.
    reported: Callable[[], ReportedUsage] = ReportedUsage
    deadline: float = 3600.0


@dataclass
class DeliveryResult:
    """The outcome of a delivery, and the value for the caller.

    In mode ``observe`` the value is what the task returned; after a success, it is what was
    verified, as JSON.
    """

    outcome: Outcome
    value: Any = None
    error: Exception | None = field(default=None)


def run_user_task(context: AttemptContext, delivery: TaskDelivery) -> DeliveryResult:
    """Claim the delivery and run the task, unless its answer is already stored; then verify."""
    claim = context.ledger.claim(delivery.entry, worker=context.worker)
    if isinstance(claim, ClaimRefused):
        return DeliveryResult(claim)
    with context.holding(claim.lease, delivery.deadline) as held:
        if not held.is_sure():  # this process slept longer than its lease
            return DeliveryResult(ClaimRefused("lost"))
        if claim.output is not None:
            found = [claim.results[i] for i in sorted(claim.results)]
            return _verify(context, claim, delivery, claim.output, value_of(claim.output), found)
        started = context.clock.monotonic()
        try:
            value = delivery.call(_previous_attempt(context, claim))
        except delivery.signals as signal:
            _give_back(context, claim, delivery.redelivery_delay(signal))
            raise
        except Exception as error:
            fault = delivery.transport_fault(error) if delivery.enforce else None
            if fault is not None:
                return DeliveryResult(requeue_fault(context, claim, fault), error=error)
            return _failed(context, claim, delivery, error, context.clock.monotonic() - started)
        return _answered(context, claim, delivery, value, context.clock.monotonic() - started)


def settle_killed_task(
    context: AttemptContext, entry: Entry, *, worker: str, seconds: float
) -> Outcome:
    """Settle the attempt of a process that is killed at its hard time limit.

    If it had already stored its answer, the lease expires and another worker checks the answer.
    """
    claim = context.ledger.take_over(entry, worker=worker)
    if isinstance(claim, ClaimRefused):
        return claim
    if claim.output is not None:
        return ClaimRefused("held")
    return settle_error(context, claim, TimeLimitReached(seconds), Decoding())


def _answered(
    context: AttemptContext, claim: Claim, delivery: TaskDelivery, value: Any, elapsed: float
) -> DeliveryResult:
    """Store and check the task's return value. One that cannot be stored is a failure."""
    given = list(value.results) if isinstance(value, Scored) else []
    value = value.output if isinstance(value, Scored) else value
    try:
        output = _output(value, delivery, elapsed)
    except Exception as error:  # it is not JSON, or an object of the user that cannot be text
        return _cannot_be_stored(context, claim, delivery, value, elapsed, error)
    try:
        stored = context.ledger.store_output(claim.lease, output, given=given)
    except (TypeError, ValueError, RecursionError) as error:  # it is not UTF-8
        return _cannot_be_stored(context, claim, delivery, value, elapsed, error)
    if isinstance(stored, ClaimRefused):
        return DeliveryResult(stored if delivery.enforce else OBSERVED, value)
    return _verify(context, claim, delivery, output, value, given)


def _cannot_be_stored(
    context: AttemptContext,
    claim: Claim,
    delivery: TaskDelivery,
    value: Any,
    elapsed: float,
    error: Exception,
) -> DeliveryResult:
    ran = _failed(context, claim, delivery, error, elapsed)
    return ran if delivery.enforce else DeliveryResult(ran.outcome, value)


def _give_back(context: AttemptContext, claim: Claim, delay: float | None) -> None:
    """Requeue a task that signalled Celery, or cancel its job if no message will follow."""
    detail = "the task signalled Celery itself"
    if delay is None:
        context.ledger.cancel(claim.job_id, detail=detail, signalled=True)
    else:
        context.ledger.requeue(claim.lease, delay=delay, detail=detail)


def _output(value: Any, delivery: TaskDelivery, elapsed: float) -> Output:
    reported = delivery.reported()
    return Output(
        text=as_text(value),
        encoding="text" if isinstance(value, str) else "json",
        elapsed_seconds=elapsed,
        usage=reported.usage,
        model=reported.model,
    )


def _rejected_output(
    error: Exception, delivery: TaskDelivery, elapsed: float, *, cap: int
) -> Output | None:
    """Return the answer of an exception, or only what it cost; None if nothing is known of it."""
    answer = attribute_of(error, "answer")
    if callable(answer):
        answer = None
    if answer is None and delivery.reported() == ReportedUsage():
        return None
    try:
        output = _output("" if answer is None else answer, delivery, elapsed)
    except Exception:  # it is not JSON, or an object of the user that cannot be text
        output = _output(_as_plain_text(answer), delivery, elapsed)
    return storable(output, cap)


def _as_plain_text(answer: Any) -> str:
    try:
        return str(answer)
    except Exception:  # the failure itself would be lost
        return ""


def value_of(output: Output) -> Any:
    """Return the task's return value from its stored answer."""
    return json.loads(output.text) if output.encoding == "json" else output.text


def answer_of(output: Output, results: Sequence[VerificationResult], repair: RepairSyntax) -> Any:
    """Return the verified value of a success: JSON without the fence or prose around it."""
    passed = [result for result in results if result.status is VerificationStatus.PASS]
    if output.encoding == "json" or not coercions(passed):
        return value_of(output)
    return extract_json(output.text, truncated=False, repair=repair).text


def _verify(
    context: AttemptContext,
    claim: Claim,
    delivery: TaskDelivery,
    output: Output,
    value: Any,
    given: Sequence[VerificationResult],
) -> DeliveryResult:
    if given:
        return _settle_given_results(context, claim, delivery, output, given, None, value)
    try:
        # The job's verifiers: a deployment may have changed the task's since the job began.
        results = check_all(claim, output, build_verifiers(context, claim.job), {})
    except (VerifierError, BadInput) as error:
        if delivery.enforce:
            return DeliveryResult(no_verdict(context, claim, error), value)
        verdict = Verdict(decision=Escalate(reason="tool_error"))
        return DeliveryResult(_observed(context, claim, verdict), value)
    return _settle(context, claim, delivery, output, results, value)


def _settle_given_results(
    context: AttemptContext,
    claim: Claim,
    delivery: TaskDelivery,
    output: Output | None,
    results: Sequence[VerificationResult],
    error: Exception | None,
    value: Any = None,
) -> DeliveryResult:
    """Settle with the results that the task itself found, without its verifiers."""
    job = claim.job.model_copy(update={"verifiers": _specs(results)})
    judged = Claim(**{**vars(claim), "job": job})
    ran = _settle(context, judged, delivery, output or Output(text=""), results, value)
    ran.error = error
    return ran


def _specs(results: Sequence[VerificationResult]) -> tuple[VerifierSpec, ...]:
    return tuple(VerifierSpec(id=result.verifier_id) for result in results)


def _settle(
    context: AttemptContext,
    claim: Claim,
    delivery: TaskDelivery,
    output: Output,
    results: Sequence[VerificationResult],
    value: Any,
) -> DeliveryResult:
    if delivery.enforce:
        settled = settle_answer(context, claim, output, results, Decoding())
        success = isinstance(settled, Settled) and settled.verdict.success
        return DeliveryResult(
            settled, answer_of(output, results, context.repair) if success else value
        )
    exempt = context.is_exempt(claim.job)
    verdict = judge(claim.job, claim.plan, results, claim.memory, exempt=exempt)
    return DeliveryResult(_observed(context, claim, verdict), value)


def _failed(
    context: AttemptContext, claim: Claim, delivery: TaskDelivery, error: Exception, elapsed: float
) -> DeliveryResult:
    """Settle a task that raised. What it had answered is stored first, like any answer."""
    result = error.result if isinstance(error, Repair) else _error_result(error)
    output = _rejected_output(error, delivery, elapsed, cap=context.answer_cap)
    if output is not None:
        stored = context.ledger.store_output(claim.lease, output, given=[result])
        if isinstance(stored, ClaimRefused):
            return DeliveryResult(stored if delivery.enforce else OBSERVED, error=error)
    if isinstance(error, Repair):
        return _settle_given_results(context, claim, delivery, output, [result], error)
    if delivery.enforce:
        settled = settle_error(context, claim, error, Decoding(), output=output)
        return DeliveryResult(settled, error=error)
    rewrite = context.without_paths
    verdict = judge_error(claim.job, claim.plan, error, claim.memory, rewrite=rewrite)
    return DeliveryResult(_observed(context, claim, verdict), error=error)


def _error_result(error: Exception) -> VerificationResult:
    """Describe an exception for a worker that finds its answer stored and not settled."""
    summary = joined_surrogates(message_of(error)[:_SHOWN])
    return VerificationResult(
        status=VerificationStatus.FAIL,
        verifier_id=BY_HAND,
        summary=summary,
        errors=(Finding(message=summary),),
        score=0.0,
    )


def _observed(context: AttemptContext, claim: Claim, verdict: Verdict) -> Outcome:
    """Record the verdict and end the job, without a retry or an escalation."""
    then = Finish(state="cancelled", reason="observed")
    if verdict.success:
        then = Finish(state="succeeded")
    published = context.ledger.settle(claim.lease, Settlement(verdict=verdict, then=then))
    if not isinstance(published, ClaimRefused):
        context.publish(published)
    return OBSERVED


def _previous_attempt(context: AttemptContext, claim: Claim) -> PreviousAttempt | None:
    if claim.plan.number == 1:
        return None
    view = context.ledger.job(claim.job_id)
    return read_previous_attempt(view, claim.plan.number - 1) if view is not None else None


def read_previous_attempt(view: JobView, number: int) -> PreviousAttempt | None:
    attempt = view.attempts[number - 1]
    verdict = attempt.verdict
    if verdict is None or verdict.instruction is None:
        return None
    return PreviousAttempt(
        instruction=verdict.instruction,
        results=verdict.results,
        answer=attempt.output.text if attempt.output is not None else None,
        coercions=verdict.coercions,
        fresh=isinstance(verdict.decision, ChangeStrategy),
        failure=verdict.failure,
    )


def correct(prompt: str, job: Job, previous: PreviousAttempt | None) -> str:
    """Return the prompt: unchanged in the first attempt, corrected in a retry."""
    if previous is None:
        return prompt
    return build_corrected_prompt(
        task_text=prompt,
        contract=contract_of(job),
        last_answer=previous.answer,
        results=previous.results,
        instruction=previous.instruction,
        coercions=previous.coercions,
        fresh=previous.fresh,
        failure=previous.failure,
    )


def as_text(value: Any) -> str:
    """Return a task's return value for verifiers: text unchanged, anything else as JSON.

    pydantic converts what is not JSON: a model to its fields, a set to a list, a date to text,
    bytes to base64; any other object becomes its ``str``.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, BaseModel):
        return value.model_dump_json()
    return json.dumps(to_jsonable_python(value, bytes_mode="base64", fallback=str))
