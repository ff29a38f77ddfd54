"""A user's own task on an in-memory ledger: delivered twice, killed, observed, corrected."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel
from support.ledger_stage import make_job

from mulligan.console.cli.commands.observe import observe_report
from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import Job, Output
from mulligan.tasks.jobs.context import RunnerInHand, Stay, Workbench
from mulligan.tasks.jobs.outcome import Requeued
from mulligan.tasks.jobs.settle import Settled
from mulligan.tasks.ports.ledger import Claim, Entry, JobView, Publication, Refused, Submission
from mulligan.tasks.ports.world import TransportFault, Verifier, VerifierError
from mulligan.tasks.user_tasks.user_task import (
    BY_HAND,
    OBSERVED,
    Before,
    Delivery,
    Ran,
    Repair,
    Scored,
    answer_of,
    as_text,
    correct,
    read_before,
    run_own,
    value_of,
)
from mulligan.workers.ledger.keys import own_job_id
from mulligan.workers.ledger.twin.memory_ledger import MemoryLedger
from mulligan.workers.settings.model import Settings
from mulligan.workers.user_tasks.verifier_specs import (
    CallableVerifier,
    Check,
    as_name,
    build_checks,
)
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

Task = Callable[[Before | None], Any]


class Person(BaseModel):
    name: str


class Signal(Exception):
    """Stands for Celery's Ignore, Reject and Retry."""


class NoBreakers:
    def wait(self, provider: str) -> Stay | None:
        return None

    def fault(self, fault: TransportFault) -> None: ...

    def success(self, provider: str) -> None: ...


def no_runner(_: Any) -> RunnerInHand:
    raise AssertionError("a task of the user's own has no runner")


class Bench:
    """A worker of a user's app over an in-memory ledger, whose clock a story moves."""

    def __init__(self, **fields: Any) -> None:
        self.shift = 0.0
        self.settings = Settings()
        self.ledger = MemoryLedger(self.settings, clock=lambda: time.time() + self.shift)
        self.published: list[Publication] = []
        self.calls: list[Before | None] = []
        self.registry = VerifierRegistry()
        #: Verifiers that are the task's own, by id.
        self.checks: dict[str, Verifier] = {}
        self.bench = Workbench(
            ledger=self.ledger,
            runner=no_runner,
            verifier=lambda spec: self.checks.get(spec.id) or self.registry.build(spec),
            publish=self.published.extend,
            holding=lambda _lease, _deadline: nullcontext(),
            breakers=NoBreakers(),
            worker="here",
            randomness=lambda: 0.5,
        )
        self.job: Job = make_job(runner={"kind": "celery", "task": "tasks.mine"}, **fields)
        self.job_id = own_job_id("a-message", partitions=1)
        self.ledger.accept([Submission(id=self.job_id, job=self.job)])

    def deliver(self, task: Task, *, number: int = 1, **fields: Any) -> Ran:
        def call(before: Before | None) -> Any:
            self.calls.append(before)
            return task(before)

        delivery = Delivery(
            entry=Entry("attempt", self.job_id, number), call=call, signals=(Signal,), **fields
        )
        return run_own(self.bench, delivery)

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
        self.shift += self.settings.lease + 1
        self.ledger.sweep(empty_queues=())


def answers(value: Any) -> Task:
    return lambda _before: value


def raises(error: BaseException) -> Task:
    def task(_before: Before | None) -> Any:
        raise error

    return task


def check(status: VerificationStatus, score: float) -> Sequence[VerificationResult]:
    return [VerificationResult(status=status, verifier_id="mine", summary="seen", score=score)]


def check_named(verifier_id: str) -> Sequence[VerificationResult]:
    return [VerificationResult(status=VerificationStatus.PASS, verifier_id=verifier_id)]


# -- delivered more than once ----------------------------------------------------------------------


def test_a_message_delivered_again_after_the_end_runs_nothing() -> None:
    bench = Bench()
    assert bench.deliver(answers("{}")).value == "{}"
    assert bench.deliver(answers("{}")).outcome == Refused("finished")
    assert len(bench.calls) == 1
    assert bench.view.state == "succeeded"


def test_a_message_delivered_again_while_it_runs_is_left_alone() -> None:
    bench = Bench()
    claim = bench.ledger.claim(Entry("attempt", bench.job_id, 1), worker="other")
    assert isinstance(claim, Claim)
    assert bench.deliver(answers("{}")).outcome == Refused("held")
    assert bench.calls == []


def test_a_failure_delivered_again_opens_no_second_cycle() -> None:
    bench = Bench()
    bench.deliver(answers("no JSON"))
    bench.deliver(answers("no JSON"))
    assert [a.plan.mode for a in bench.view.attempts] == ["initial", "immediate_retry"]
    assert len(bench.view.cycles) == 1
    assert [str(p.entry) for p in bench.published] == [f"a:{bench.job_id}/2"]


@pytest.mark.parametrize("value", ["{}", {"a": [1, None]}], ids=["text", "value"])
def test_a_stored_answer_is_not_asked_for_again(value: Any) -> None:
    bench = Bench()
    kind = None if isinstance(value, str) else "value"
    bench.stored_by_a_lost_worker(Output(text=as_text(value), finish_reason=kind))
    ran = bench.deliver(raises(AssertionError("asked again")))
    assert ran.value == value
    assert bench.calls == []
    assert bench.view.state == "succeeded"


def test_a_scored_answer_of_a_lost_worker_keeps_its_score() -> None:
    """What the task found is stored with its answer: neither is asked for again."""
    bench = Bench()
    found = check(VerificationStatus.FAIL, 10)
    bench.stored_by_a_lost_worker(Output(text="{}"), given=found)
    bench.deliver(raises(AssertionError("asked again")))
    assert bench.calls == []
    assert bench.view.attempts[0].verdict["score"] == 10


# -- what a task may say ---------------------------------------------------------------------------


def test_scored_is_taken_instead_of_the_verifiers() -> None:
    bench = Bench()
    ran = bench.deliver(answers(Scored("no JSON", check(VerificationStatus.PASS, 90))))
    assert ran.value == "no JSON"
    assert bench.view.state == "succeeded"
    assert bench.view.attempts[0].verdict["score"] == 90


def test_scored_below_70_is_retried() -> None:
    bench = Bench()
    ran = bench.deliver(answers(Scored({"a": 1}, check(VerificationStatus.FAIL, 60))))
    assert isinstance(ran.outcome, Settled)
    assert bench.view.attempts[1].plan.mode == "immediate_retry"


@pytest.mark.parametrize("score", [-1, 100.5, float("nan")])
def test_a_repair_has_a_score_between_0_and_100(score: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        Repair("wrong", score=score)


def test_repair_says_what_is_wrong_and_where() -> None:
    bench = Bench()
    ran = bench.deliver(raises(Repair("say please", score=40, path="$.manners")))
    assert isinstance(ran.error, Repair)
    attempt = bench.view.attempts[0]
    assert attempt.verdict["score"] == 40
    assert attempt.verdict["results"][0]["verifier_id"] == BY_HAND
    assert attempt.output is None
    before = bench_before(bench)
    assert before.results[0].errors[0].path == "$.manners"
    assert "say please" in correct("Ask.", bench.job, before)


def test_an_exception_is_classified_and_the_next_attempt_is_told() -> None:
    bench = Bench()
    bench.deliver(raises(KeyError("age")))
    assert bench.view.attempts[0].verdict["failure"]["kind"] == "missing_context"
    bench.deliver(answers("{}"), number=2)
    first, second = bench.calls
    assert first is None
    assert second is not None
    assert second.instruction.prompt_suffix
    assert bench.view.state == "succeeded"


def test_a_verifier_that_fails_itself_does_not_blame_the_answer() -> None:
    def broken(_text: str) -> bool:
        raise RuntimeError("the check's own bug")

    bench = Bench(verifiers=["own.broken"])
    bench.checks["own.broken"] = CallableVerifier(broken)
    bench.deliver(answers("{}"))
    assert (bench.view.state, bench.view.waiting_for) == ("waiting", "delay")
    assert bench.view.attempts[0].verdict == {}


def test_a_verifier_that_the_task_no_longer_has_does_not_blame_the_answer() -> None:
    """A deploy changed the task's verifiers while the job was on its way."""
    bench = Bench(verifiers=["own.removed", "json.object"])
    ran = bench.deliver(answers("{}"))
    assert isinstance(ran.outcome, Requeued)
    assert "own.removed" in ran.outcome.reason
    assert (bench.view.state, bench.view.waiting_for) == ("waiting", "delay")


CIRCULAR: list[Any] = []
CIRCULAR.append(CIRCULAR)


@pytest.mark.parametrize("value", [CIRCULAR, "half a \ud800"], ids=["no JSON", "no UTF-8"])
def test_a_value_that_cannot_be_stored_is_a_failure(value: Any) -> None:
    bench = Bench()
    ran = bench.deliver(answers(value))
    assert isinstance(ran.outcome, Settled)
    assert isinstance(ran.error, ValueError)
    assert [attempt.state for attempt in bench.view.attempts] == ["settled", "queued"]
    observing = Bench()
    seen = observing.deliver(answers(value), enforce=False)
    assert (seen.outcome, seen.error, seen.value is value) == (OBSERVED, None, True)
    assert observing.view.state == "cancelled"


@pytest.mark.parametrize(
    ("results", "told"),
    [
        ({"score": 3}, "a list of VerificationResult"),
        ([{"score": 3}], "a list of VerificationResult"),
        (check_named("<mine>"), "verifier_id '<mine>': "),
    ],
    ids=["mapping", "dicts", "name"],
)
def test_scored_says_what_it_takes(results: Any, told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(told)):
        Scored("x", results)


# -- what whoever asked is given -------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ['```json\n{"name": "Alice"}\n```', 'Here you are: {"name": "Alice"} Enjoy.'],
    ids=["fence", "prose"],
)
def test_a_free_repair_is_in_what_the_caller_gets(text: str) -> None:
    bench = Bench()
    assert bench.deliver(answers(text)).value == '{"name": "Alice"}'
    assert bench.view.state == "succeeded"
    # The ledger keeps what the model said, and a message that comes again tells the same.
    attempt = bench.view.attempts[0]
    assert attempt.output is not None
    assert attempt.output.text == text
    results = [VerificationResult.model_validate(r) for r in attempt.verdict["results"]]
    assert answer_of(attempt.output, results) == '{"name": "Alice"}'
    assert Bench().deliver(answers(text), enforce=False).value == text


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
def test_what_is_no_text_is_given_as_json_has_it(value: Any, given: Any) -> None:
    bench = Bench()
    assert bench.deliver(answers(value)).value == given
    assert bench.view.state == "succeeded"
    assert Bench().deliver(answers(value), enforce=False).value is value


# -- the queue's own signals -----------------------------------------------------------------------


@pytest.mark.parametrize("enforce", [True, False])
def test_a_signal_passes_through_and_gives_the_claim_back(enforce: bool) -> None:
    bench = Bench()
    with pytest.raises(Signal):
        bench.deliver(raises(Signal()), enforce=enforce)
    attempt = bench.view.attempts[0]
    assert (bench.view.state, attempt.state, attempt.claims) == ("queued", "queued", 0)
    assert bench.deliver(answers("{}"), enforce=enforce).value == "{}"


def test_a_signal_that_names_a_time_is_not_overtaken_by_the_sweep() -> None:
    bench = Bench()
    with pytest.raises(Signal):
        bench.deliver(raises(Signal()), again=lambda _signal: 30.0)
    assert bench.ledger.sweep(empty_queues=()) == []
    assert bench.deliver(answers("{}")).outcome == Refused("early")
    bench.shift += 31
    assert [str(p.entry) for p in bench.ledger.sweep(empty_queues=())] == [f"a:{bench.job_id}/1"]


def test_a_signal_whose_message_never_comes_again_ends_the_job() -> None:
    bench = Bench()
    with pytest.raises(Signal):
        bench.deliver(raises(Signal()), again=lambda _signal: None)
    assert bench.view.state == "cancelled"
    bench.shift += 3600
    assert bench.ledger.sweep(empty_queues=("attempt", "repair")) == []


# -- observing -------------------------------------------------------------------------------------


def test_observing_a_success() -> None:
    bench = Bench()
    ran = bench.deliver(answers("{}"), enforce=False)
    assert (ran.outcome, ran.value, ran.error) == (OBSERVED, "{}", None)
    assert bench.view.state == "succeeded"


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
def test_observing_a_failure_records_it_and_does_nothing(
    task: Task, value: Any, would: str
) -> None:
    bench = Bench()
    ran = bench.deliver(task, enforce=False)
    assert (ran.outcome, ran.value) == (OBSERVED, value)
    assert (ran.error is None) == (value is not None)
    view = bench.view
    assert (view.state, view.reason, len(view.attempts)) == ("cancelled", "observed", 1)
    assert view.cycles == ()
    assert bench.published == []
    assert bench.ledger.sweep(empty_queues=("attempt", "repair")) == []
    report = observe_report([view])
    assert (report["seen"], report[would]) == (1, 1)


def test_observing_a_verifier_that_fails_itself_runs_nothing_again() -> None:
    class Broken:
        id = "broken"
        slow = False

        def verify(self, candidate: Any) -> VerificationResult:
            raise VerifierError("away")

    bench = Bench(verifiers=["broken"])
    bench.checks["broken"] = Broken()
    ran = bench.deliver(answers("{}"), enforce=False)
    assert (ran.outcome, ran.value) == (OBSERVED, "{}")
    assert bench.view.state == "cancelled"
    assert observe_report([bench.view])["causes"].keys() == {"tool_error"}


# -- functions as verifiers -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [("<lambda>", "lambda"), ("mine.tasks.extract", "mine.tasks.extract"), ("<>", "task")],
)
def test_a_name_is_cleaned(text: str, name: str) -> None:
    assert as_name(text) == name


def test_functions_of_one_name_are_told_apart_and_keep_their_place() -> None:
    checks: list[Check] = [lambda _text: True, "json.object", lambda _: True, lambda _: True]
    built = build_checks(checks, VerifierRegistry())
    names = ["own.lambda", "json.object", "own.lambda-2", "own.lambda-3"]
    assert [spec.id for spec, _ in built] == names
    assert len({verifier for _, verifier in built}) == 4


# -- the prompt ------------------------------------------------------------------------------------


def bench_before(bench: Bench) -> Before:
    before = read_before(bench.view, 1)
    assert before is not None
    return before


def test_the_prompt_is_unchanged_at_first() -> None:
    assert correct("  Ask.\n", make_job(), None) == "  Ask.\n"


def test_the_prompt_is_corrected_later_and_bounded_whatever_the_answer() -> None:
    bench = Bench(policy={"max_attempts": 9, "same_failure_limit": 9})
    sizes = []
    for number in range(1, 7):
        bench.deliver(answers("not JSON " * 10_000), number=number)
        before = read_before(bench.view, number)
        prompt = correct("Ask.", bench.job, before)
        assert prompt.startswith("Ask.\n\n")
        sizes.append(len(prompt))
    # It replaces the feedback before it: the sixth correction is as long as the first.
    assert set(sizes) == {sizes[0]}
    assert sizes[0] < 8000


@pytest.mark.parametrize(
    ("value", "text"),
    [("plain", "plain"), ({"a": 1}, '{"a": 1}'), (Person(name="Ada"), '{"name":"Ada"}')],
)
def test_a_return_value_as_verifiers_read_it(value: Any, text: str) -> None:
    assert as_text(value) == text


def test_a_stored_text_stays_text_even_if_it_looks_like_json() -> None:
    assert value_of(Output(text="31")) == "31"
    assert value_of(Output(text="31", finish_reason="value")) == 31


def test_a_report_about_nothing() -> None:
    report = observe_report([])
    assert (report["seen"], report["causes"], report["task_types"]) == (0, {}, {})
