"""A user's task on fakeredis: delivered twice, killed, observed, corrected."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import date
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from support.doubles import MovableClock, fake_ledger
from support.jobs import failure_of, make_job, verdict_of

from mulligan.console.reports.observe_report import observe_report
from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import Job, Output
from mulligan.policies.repair.free_repair import quick_repair
from mulligan.tasks.jobs.context import AttemptContext, ResolvedRunner
from mulligan.tasks.jobs.outcome import Requeued
from mulligan.tasks.jobs.settle import Settled
from mulligan.tasks.ports.errors import VerifierError
from mulligan.tasks.ports.leases import UnwatchedLease
from mulligan.tasks.ports.ledger import Claim, ClaimRefused, Entry, JobView, Publication, Submission
from mulligan.tasks.ports.verifiers import Verifier
from mulligan.tasks.user_tasks.user_task import (
    BY_HAND,
    OBSERVED,
    DeliveryResult,
    PreviousAttempt,
    Repair,
    Scored,
    TaskDelivery,
    answer_of,
    as_text,
    correct,
    read_previous_attempt,
    run_user_task,
    value_of,
)
from mulligan.workers.ledger.stored.job_ids import user_task_job_id
from mulligan.workers.settings.model import Settings
from mulligan.workers.user_tasks.verifier_specs import (
    CallableVerifier,
    Check,
    as_name,
    build_checks,
)
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

Task = Callable[[PreviousAttempt | None], Any]


class Person(BaseModel):
    name: str


class Signal(Exception):
    """Stands for Celery's Ignore, Reject and Retry."""


def no_runner(_: Any) -> ResolvedRunner:
    raise AssertionError("a task of the user's own has no runner")


class UserWorker:
    """A worker of a user's app with a ledger on fakeredis, whose clock a test moves."""

    def __init__(self, **fields: Any) -> None:
        self.clock = MovableClock()
        self.settings = Settings()
        self.ledger = fake_ledger(self.settings, clock=self.clock)
        self.published: list[Publication] = []
        self.calls: list[PreviousAttempt | None] = []
        self.registry = VerifierRegistry()
        #: The verifiers of the task, by id.
        self.checks: dict[str, Verifier] = {}
        self.context = AttemptContext(
            ledger=self.ledger,
            runner=no_runner,
            verifier=lambda spec: self.checks.get(spec.id) or self.registry.build(spec),
            publish=self.published.extend,
            holding=lambda _lease, _deadline: nullcontext(UnwatchedLease()),
            worker="here",
            randomness=lambda: 0.5,
        )
        self.job: Job = make_job(runner={"kind": "celery", "task": "tasks.mine"}, **fields)
        self.job_id = user_task_job_id("a-message", partitions=1)
        self.ledger.accept([Submission(id=self.job_id, job=self.job)])

    def deliver(self, task: Task, *, number: int = 1, **fields: Any) -> DeliveryResult:
        def call(before: PreviousAttempt | None) -> Any:
            self.calls.append(before)
            return task(before)

        delivery = TaskDelivery(
            entry=Entry("attempt", self.job_id, number), call=call, signals=(Signal,), **fields
        )
        return run_user_task(self.context, delivery)

    @property
    def view(self) -> JobView:
        view = self.ledger.job(self.job_id)
        assert view is not None
        return view

    def stored_by_a_lost_worker(
        self, output: Output, *, given: Sequence[VerificationResult] = ()
    ) -> None:
        """A worker stores an answer and is lost before it can settle it."""
        claim = self.ledger.claim(Entry("attempt", self.job_id, 1), worker="lost")
        assert isinstance(claim, Claim)
        self.ledger.store_output(claim.lease, output, given=given)
        for _ in range(4):  # three late sweeps in a row give everyone one more lease
            self.clock.shift += self.settings.lease + 1
            self.ledger.sweep(empty_queues=())


def answers(value: Any) -> Task:
    return lambda _before: value


def raises(error: BaseException) -> Task:
    def task(_before: PreviousAttempt | None) -> Any:
        raise error

    return task


def check(status: VerificationStatus, score: float) -> Sequence[VerificationResult]:
    return [VerificationResult(status=status, verifier_id="mine", summary="seen", score=score)]


def check_named(verifier_id: str) -> Sequence[VerificationResult]:
    return [VerificationResult(status=VerificationStatus.PASS, verifier_id=verifier_id)]


# -- delivered more than once ----------------------------------------------------------------------


def test_a_message_delivered_again_after_the_end_runs_nothing() -> None:
    context = UserWorker()
    assert context.deliver(answers("{}")).value == "{}"
    assert context.deliver(answers("{}")).outcome == ClaimRefused("finished")
    assert len(context.calls) == 1
    assert context.view.state == "succeeded"


def test_a_message_delivered_again_while_it_runs_is_refused() -> None:
    context = UserWorker()
    claim = context.ledger.claim(Entry("attempt", context.job_id, 1), worker="other")
    assert isinstance(claim, Claim)
    assert context.deliver(answers("{}")).outcome == ClaimRefused("held")
    assert context.calls == []


def test_a_failure_delivered_again_opens_no_second_cycle() -> None:
    context = UserWorker()
    context.deliver(answers("no JSON"))
    context.deliver(answers("no JSON"))
    assert [a.plan.mode for a in context.view.attempts] == ["initial", "immediate_retry"]
    assert len(context.view.cycles) == 1
    assert [str(p.entry) for p in context.published] == [f"a:{context.job_id}/2"]


@pytest.mark.parametrize("value", ["{}", {"a": [1, None]}], ids=["text", "value"])
def test_a_stored_answer_is_not_asked_for_again(value: Any) -> None:
    context = UserWorker()
    encoding: Literal["text", "json"] = "text" if isinstance(value, str) else "json"
    context.stored_by_a_lost_worker(Output(text=as_text(value), encoding=encoding))
    ran = context.deliver(raises(AssertionError("asked again")))
    assert ran.value == value
    assert context.calls == []
    assert context.view.state == "succeeded"


def test_a_scored_answer_of_a_lost_worker_keeps_its_score() -> None:
    """The results are stored with the answer, so the task does not run again."""
    context = UserWorker()
    found = check(VerificationStatus.FAIL, 10)
    context.stored_by_a_lost_worker(Output(text="{}"), given=found)
    context.deliver(raises(AssertionError("asked again")))
    assert context.calls == []
    assert context.view.attempts[0].score == 10


# -- results of a task -----------------------------------------------------------------------------


def test_scored_replaces_the_verifiers() -> None:
    context = UserWorker()
    ran = context.deliver(answers(Scored("no JSON", check(VerificationStatus.PASS, 90))))
    assert ran.value == "no JSON"
    assert context.view.state == "succeeded"
    assert context.view.attempts[0].score == 90


def test_scored_below_70_is_retried() -> None:
    context = UserWorker()
    ran = context.deliver(answers(Scored({"a": 1}, check(VerificationStatus.FAIL, 60))))
    assert isinstance(ran.outcome, Settled)
    assert context.view.attempts[1].plan.mode == "immediate_retry"


@pytest.mark.parametrize("score", [-1, 100.5, float("nan")])
def test_a_repair_has_a_score_between_0_and_100(score: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        Repair("wrong", score=score)


def test_repair_has_a_message_and_a_place() -> None:
    context = UserWorker()
    ran = context.deliver(raises(Repair("say please", score=40, path="$.manners")))
    assert isinstance(ran.error, Repair)
    attempt = context.view.attempts[0]
    assert attempt.score == 40
    assert verdict_of(attempt).results[0].verifier_id == BY_HAND
    assert attempt.output is None
    before = previous_attempt(context)
    assert before.results[0].errors[0].path == "$.manners"
    assert "say please" in correct("Ask.", context.job, before)


@pytest.mark.parametrize(
    "errors",
    [
        [Repair("the greeting is missing"), Repair("too formal"), Repair("the date is wrong")],
        [Repair("some rows are bad", score=score) for score in (10, 30, 50)],
        [Repair(f"{n} rows are wrong") for n in (12, 7, 2)],
    ],
    ids=["other complaints", "a rising score", "fewer errors"],
)
def test_other_complaints_and_progress_are_not_a_repeated_failure(errors: list[Repair]) -> None:
    context = UserWorker(policy={"max_attempts": 4})
    for number, error in enumerate(errors, 1):
        context.deliver(raises(error), number=number)
    assert context.view.state == "queued"
    signatures = {failure_of(a).classification_signature for a in context.view.attempts[:3]}
    assert len(signatures) == 3
    for number in (4, 5):
        context.deliver(raises(errors[-1]), number=number)
    assert (context.view.state, context.view.reason) == ("escalated", "max_attempts")


def test_a_phrase_in_an_exception_does_not_end_the_job() -> None:
    context = UserWorker()
    context.deliver(raises(ValueError("unsafe character in filename")))
    assert (context.view.state, context.view.reason) == ("queued", None)
    assert "unsafe character" in correct("Name it.", context.job, previous_attempt(context))


def test_the_same_repair_again_is_a_repeated_failure() -> None:
    context = UserWorker(policy={"max_attempts": 9})
    for number in (1, 2, 3):
        context.deliver(raises(Repair("say please")), number=number)
    assert (context.view.state, context.view.reason) == ("escalated", "repeated_failure")


def test_an_exception_is_classified_and_passed_to_the_next_attempt() -> None:
    context = UserWorker()
    context.deliver(raises(KeyError("age")))
    assert failure_of(context.view.attempts[0]).label == "schema_invalid.missing_key"
    context.deliver(answers("{}"), number=2)
    first, second = context.calls
    assert first is None
    assert second is not None
    assert second.instruction.prompt_suffix
    assert context.view.state == "succeeded"


def test_an_error_of_a_verifier_is_not_a_failure_of_the_answer() -> None:
    def broken(_text: str) -> bool:
        raise RuntimeError("the check's own bug")

    context = UserWorker(verifiers=["own.broken"])
    context.checks["own.broken"] = CallableVerifier(broken)
    context.deliver(answers("{}"))
    assert (context.view.state, context.view.waiting_for) == ("waiting", "delay")
    assert context.view.attempts[0].verdict is None


def test_a_removed_verifier_is_not_a_failure_of_the_answer() -> None:
    """Given a deploy that changed the task's verifiers while the job was queued."""
    context = UserWorker(verifiers=["own.removed", "json.object"])
    ran = context.deliver(answers("{}"))
    assert isinstance(ran.outcome, Requeued)
    assert "own.removed" in ran.outcome.reason
    assert (context.view.state, context.view.waiting_for) == ("waiting", "delay")


CIRCULAR: list[Any] = []
CIRCULAR.append(CIRCULAR)


@pytest.mark.parametrize("value", [CIRCULAR, "half a \ud800"], ids=["no JSON", "no UTF-8"])
def test_a_value_that_cannot_be_stored_is_a_failure(value: Any) -> None:
    context = UserWorker()
    ran = context.deliver(answers(value))
    assert isinstance(ran.outcome, Settled)
    assert isinstance(ran.error, ValueError)
    assert [attempt.state for attempt in context.view.attempts] == ["settled", "queued"]
    observing = UserWorker()
    seen = observing.deliver(answers(value), enforce=False)
    assert (seen.outcome, seen.error, seen.value is value) == (OBSERVED, None, True)
    assert observing.view.state == "cancelled"


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({"score": 3}, "a list of VerificationResult"),
        ([{"score": 3}], "a list of VerificationResult"),
        (check_named("<mine>"), "verifier_id '<mine>': "),
    ],
    ids=["mapping", "dicts", "name"],
)
def test_scored_refuses_invalid_results(results: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        Scored("x", results)


# -- the value for the caller ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ['```json\n{"name": "Alice"}\n```', 'Here you are: {"name": "Alice"} Enjoy.'],
    ids=["fence", "prose"],
)
def test_the_caller_gets_the_repaired_text(text: str) -> None:
    context = UserWorker()
    assert context.deliver(answers(text)).value == '{"name": "Alice"}'
    assert context.view.state == "succeeded"
    # The ledger keeps the model's text, and a message that comes again gets the same value.
    attempt = context.view.attempts[0]
    assert attempt.output is not None
    assert attempt.output.text == text
    results = verdict_of(attempt).results
    assert answer_of(attempt.output, results, quick_repair) == '{"name": "Alice"}'
    assert UserWorker().deliver(answers(text), enforce=False).value == text


@pytest.mark.parametrize(
    ("value", "given"),
    [
        (Person(name="Ada"), {"name": "Ada"}),
        ({"p": Person(name="Ada")}, {"p": {"name": "Ada"}}),
        ({"ids": {7}}, {"ids": [7]}),
        ({"at": date(2026, 1, 2), "raw": b"\xff"}, {"at": "2026-01-02", "raw": "_w=="}),
        ({(1, 2): 3}, {"1,2": 3}),
    ],
    ids=["model", "nested", "set", "date and bytes", "keys"],
)
def test_other_values_are_returned_as_json(value: Any, given: Any) -> None:
    context = UserWorker()
    assert context.deliver(answers(value)).value == given
    assert context.view.state == "succeeded"
    assert UserWorker().deliver(answers(value), enforce=False).value is value


# -- Celery's signals ------------------------------------------------------------------------------


@pytest.mark.parametrize("enforce", [True, False])
def test_a_signal_passes_through_and_releases_the_claim(enforce: bool) -> None:
    context = UserWorker()
    with pytest.raises(Signal):
        context.deliver(raises(Signal()), enforce=enforce)
    attempt = context.view.attempts[0]
    assert (context.view.state, attempt.state, attempt.claims) == ("queued", "queued", 0)
    assert context.deliver(answers("{}"), enforce=enforce).value == "{}"


def test_a_signal_with_a_delay_is_not_overtaken_by_the_sweep() -> None:
    context = UserWorker()
    with pytest.raises(Signal):
        context.deliver(raises(Signal()), redelivery_delay=lambda _signal: 30.0)
    assert context.ledger.sweep(empty_queues=()) == []
    assert context.deliver(answers("{}")).outcome == ClaimRefused("early")
    context.clock.shift += 31
    assert [str(p.entry) for p in context.ledger.sweep(empty_queues=())] == [
        f"a:{context.job_id}/1"
    ]


def test_a_signal_whose_message_never_comes_again_ends_the_job() -> None:
    context = UserWorker()
    with pytest.raises(Signal):
        context.deliver(raises(Signal()), redelivery_delay=lambda _signal: None)
    assert context.view.state == "cancelled"
    context.clock.shift += 3600
    assert context.ledger.sweep(empty_queues=("attempt", "repair")) == []


# -- observing -------------------------------------------------------------------------------------


def test_an_observed_success_is_recorded() -> None:
    context = UserWorker()
    ran = context.deliver(answers("{}"), enforce=False)
    assert (ran.outcome, ran.value, ran.error) == (OBSERVED, "{}", None)
    assert context.view.state == "succeeded"


@pytest.mark.parametrize(
    ("task", "value", "would"),
    [
        # 0 of 100: below 70, so the mandatory retry.
        (answers("no JSON"), "no JSON", "mandatory_retry"),
        # An exception has no score: the policy decides.
        (raises(KeyError("age")), None, "policy_retry"),
        (raises(Repair("wrong", score=40)), None, "mandatory_retry"),
    ],
    ids=["failure", "exception", "by-hand"],
)
def test_an_observed_failure_is_only_recorded(task: Task, value: Any, would: str) -> None:
    context = UserWorker()
    ran = context.deliver(task, enforce=False)
    assert (ran.outcome, ran.value) == (OBSERVED, value)
    assert (ran.error is None) == (value is not None)
    view = context.view
    assert (view.state, view.reason, len(view.attempts)) == ("cancelled", "observed", 1)
    assert view.cycles == ()
    assert context.published == []
    assert context.ledger.sweep(empty_queues=("attempt", "repair")) == []
    report = observe_report([view])
    assert (report["seen"], report[would]) == (1, 1)


def test_an_observed_error_of_a_verifier_is_only_recorded() -> None:
    class Broken:
        id = "broken"
        slow = False

        def verify(self, candidate: Any) -> VerificationResult:
            raise VerifierError("away")

    context = UserWorker(verifiers=["broken"])
    context.checks["broken"] = Broken()
    ran = context.deliver(answers("{}"), enforce=False)
    assert (ran.outcome, ran.value) == (OBSERVED, "{}")
    assert context.view.state == "cancelled"
    assert observe_report([context.view])["causes"].keys() == {"tool_error"}


# -- functions as verifiers -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [("<lambda>", "lambda"), ("mine.tasks.extract", "mine.tasks.extract"), ("<>", "task")],
)
def test_a_name_is_cleaned(text: str, name: str) -> None:
    assert as_name(text) == name


def test_functions_of_one_name_get_distinct_ids_in_order() -> None:
    checks: list[Check] = [lambda _text: True, "json.object", lambda _: True, lambda _: True]
    built = build_checks(checks, VerifierRegistry())
    names = ["own.lambda", "json.object", "own.lambda-2", "own.lambda-3"]
    assert [spec.id for spec, _ in built] == names
    assert len({verifier for _, verifier in built}) == 4


# -- the prompt ------------------------------------------------------------------------------------


def previous_attempt(context: UserWorker) -> PreviousAttempt:
    before = read_previous_attempt(context.view, 1)
    assert before is not None
    return before


def test_the_prompt_is_unchanged_at_first() -> None:
    assert correct("  Ask.\n", make_job(), None) == "  Ask.\n"


def test_a_changed_strategy_starts_over_from_the_task() -> None:
    """The same failure again: nothing of the failed answer is in the next prompt."""
    context = UserWorker(verifiers=[{"id": "text.match", "contains": ["please"]}])
    for number in (1, 2):
        context.deliver(answers("GIVE IT TO ME"), number=number)
    before = read_previous_attempt(context.view, 2)
    assert before is not None
    assert before.fresh
    prompt = correct("Ask for the salt.", context.job, before)
    assert prompt.startswith("Ask for the salt.")
    assert "please" in prompt
    assert "GIVE IT" not in prompt
    assert "GIVE IT" in correct("Ask for the salt.", context.job, previous_attempt(context))


def test_the_prompt_is_corrected_later_and_bounded_whatever_the_answer() -> None:
    context = UserWorker(policy={"max_attempts": 9, "same_failure_limit": 9})
    sizes = []
    for number in range(1, 7):
        context.deliver(answers("not JSON " * 10_000), number=number)
        before = read_previous_attempt(context.view, number)
        prompt = correct("Ask.", context.job, before)
        assert prompt.startswith("Ask.\n\n")
        sizes.append(len(prompt))
    # Feedback replaces earlier feedback: each correction is as long as the first one of its kind.
    # Every second one starts over.
    assert set(sizes) == {sizes[0], sizes[1]}
    assert sizes[1] < sizes[0]
    assert sizes[0] < 8000


@pytest.mark.parametrize(
    ("value", "text"),
    [("plain", "plain"), ({"a": 1}, '{"a": 1}'), (Person(name="Ada"), '{"name":"Ada"}')],
)
def test_verifiers_read_a_return_value_as_text(value: Any, text: str) -> None:
    assert as_text(value) == text


def test_a_stored_text_stays_text_even_if_it_looks_like_json() -> None:
    assert value_of(Output(text="31")) == "31"
    assert value_of(Output(text="31", encoding="json")) == 31


def test_an_answer_stored_without_an_encoding_is_read() -> None:
    output = Output.model_validate_json('{"text": "31", "finish_reason": "value"}')
    assert (value_of(output), output.finish_reason) == (31, None)


def test_a_report_without_jobs_is_empty() -> None:
    report = observe_report([])
    assert (report["seen"], report["causes"], report["task_types"]) == (0, {}, {})
