"""Attempts on fakeredis: odd answers, faults, errors, budgets and invalid jobs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from support.doubles import FakeRunner, fake_ledger
from support.jobs import failure_of, make_job, read_job

from mulligan.policies.failures.failure import FailureKind, VerificationResult
from mulligan.policies.jobs.job import Decoding, Job, Output, Usage
from mulligan.policies.repair.wording import WORKED_BEFORE
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.jobs.context import AttemptContext, ResolvedRunner
from mulligan.tasks.jobs.outcome import Outcome, Requeued
from mulligan.tasks.jobs.settle import Settled
from mulligan.tasks.jobs.submit import Intake
from mulligan.tasks.ports.errors import (
    BadInput,
    BlobsUnavailable,
    CallCancelled,
    OutOfCredits,
    RunnerError,
    TransportFault,
    VerifierError,
)
from mulligan.tasks.ports.leases import UnwatchedLease
from mulligan.tasks.ports.ledger import ClaimRefused, Entry, JobView, Publication, Submission
from mulligan.tasks.ports.runners import provider_for
from mulligan.workers.ledger.stored.job_ids import job_id as new_id
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

Answer = str | Output | Exception


class Worker:
    """One worker with a ledger on fakeredis."""

    def __init__(self, *answers: Answer, **changes: Any) -> None:
        self.ledger = fake_ledger()
        self.runner = FakeRunner(answers)
        self.published: list[Publication] = []
        verifiers = VerifierRegistry()
        context = AttemptContext(
            ledger=self.ledger,
            runner=lambda _: ResolvedRunner(
                runner=self.runner, timeout=7.0, decoding=Decoding(temperature=1.0, max_tokens=100)
            ),
            verifier=verifiers.build,
            publish=self.published.extend,
            holding=lambda _lease, _deadline: nullcontext(UnwatchedLease()),
            worker="here",
            randomness=lambda: 0.5,
        )
        self.context = replace(context, **changes)

    def submit(self, job: Job) -> str:
        submission = Submission(id=new_id(partitions=1), job=job)
        self.ledger.accept([submission])
        return submission.id

    def run(self, job: Job, *, attempts: int = 1) -> tuple[Outcome, JobView]:
        job_id = self.submit(job)
        outcome: Outcome = ClaimRefused("gone")
        for number in range(1, attempts + 1):
            outcome = run_attempt(self.context, Entry("attempt", job_id, number))
        view = self.ledger.job(job_id)
        assert view is not None
        return outcome, view


def test_an_answer_over_the_cap_is_cut_and_counts_as_truncated() -> None:
    worker = Worker('{"a": "' + "x" * 100 + '"}', answer_cap=20)
    _, view = worker.run(make_job())
    output = view.attempts[0].output
    assert output is not None
    assert len(output.text) == 20
    assert failure_of(view.attempts[0]).cause == "truncated"


def test_a_lone_surrogate_is_replaced() -> None:
    _, view = Worker('{"a": "\ud800", "b": "\ud83d\ude00"}').run(make_job())
    assert view.state == "succeeded"
    assert view.attempts[0].output is not None
    assert view.attempts[0].output.text == '{"a": "\ufffd", "b": "😀"}'


def test_an_attempt_does_not_run_while_its_provider_is_paused() -> None:
    worker = Worker("{}")
    worker.ledger.pause("provider:fake")
    outcome, view = worker.run(make_job())
    assert outcome == ClaimRefused("paused", "provider:fake")
    assert (view.state, view.waiting_for) == ("waiting", "pause")
    assert (worker.runner.requests, view.attempts[0].claims) == ([], 0)


class LostLease:
    """A lease that expired while the process slept."""

    def is_sure(self) -> bool:
        return False


def test_a_process_that_slept_past_its_lease_asks_no_model() -> None:
    worker = Worker("{}", holding=lambda _lease, _deadline: nullcontext(LostLease()))
    outcome, view = worker.run(make_job())
    assert outcome == ClaimRefused("lost")
    assert worker.runner.requests == []
    assert view.attempts[0].output is None


def test_a_cancelled_call_records_nothing() -> None:
    outcome, view = Worker(CallCancelled("the lease is lost")).run(make_job())
    assert outcome == ClaimRefused("lost")
    assert view.attempts[0].verdict is None


def test_a_blob_store_that_is_away_is_not_a_failed_attempt() -> None:
    """Given a runner that cannot read its workspace, then the attempt is given back uncounted."""
    outcome, view = Worker(BlobsUnavailable("the blob store is away")).run(make_job())
    assert outcome == Requeued(
        entry=Entry("attempt", view.id, 1), delay=10.0, reason="the blob store is away"
    )
    assert (view.state, view.waiting_for) == ("waiting", "delay")
    attempt = view.attempts[0]
    assert (attempt.verdict, attempt.claims, attempt.faults) == (None, 0, 0)


def test_a_verifier_without_its_blob_store_gives_no_verdict_and_does_not_count() -> None:
    class Away:
        slow = False

        def verify(self, _candidate: object) -> VerificationResult:
            raise BlobsUnavailable("the blob store is away")

    outcome, view = Worker("{}", verifier=lambda _spec: Away()).run(make_job())
    assert isinstance(outcome, Requeued)
    assert view.state == "waiting"
    assert view.attempts[0].output is not None
    assert (view.attempts[0].verdict, view.attempts[0].claims) == (None, 0)


def test_a_transport_fault_is_not_a_failure_of_the_answer() -> None:
    fault = TransportFault("busy", provider="fake", status=429, retry_after=3.0)
    outcome, view = Worker(fault).run(make_job())
    assert isinstance(outcome, Requeued)
    assert 2.9 < outcome.delay <= 3.0  # the provider's wait
    assert (view.state, view.waiting_for) == ("waiting", "provider")
    assert view.attempts[0].verdict is None
    assert view.attempts[0].faults == 1


def test_being_out_of_credits_is_not_a_failure_of_the_answer() -> None:
    fault = OutOfCredits("402", provider="fake", status=402)
    outcome, view = Worker(fault).run(make_job())
    assert isinstance(outcome, Requeued)
    assert 59 < outcome.delay <= 60
    assert (view.state, view.waiting_for) == ("waiting", "credits")
    assert view.attempts[0].verdict is None
    assert (view.attempts[0].claims, view.tokens) == (0, None)


@pytest.mark.parametrize(
    "answer",
    [
        "You exceeded your 5-hour limit",
        "Error 402: insufficient_quota, your credit balance is too low",
        RunnerError("You exceeded your 5-hour limit", {"kind": "command_failed"}, final=False),
    ],
)
def test_no_text_stops_a_provider(answer: Answer) -> None:
    """Given an answer or an error that reads like a limit, then it is judged as any other."""
    worker = Worker(answer)
    outcome, view = worker.run(make_job())
    assert isinstance(outcome, Settled)
    assert view.attempts[0].verdict is not None
    provider = worker.ledger.breakers.all()["fake"]
    assert (provider.state, provider.until) == ("closed", 0.0)


def test_an_absurd_retry_after_does_not_hold_a_job_until_its_deadline() -> None:
    fault = TransportFault("down", provider="fake", status=503, retry_after=1e300)
    outcome, view = Worker(fault).run(make_job())
    assert isinstance(outcome, Requeued)
    assert outcome.delay <= 3601
    assert (view.state, view.waiting_for) == ("waiting", "delay")


def test_an_attempt_with_a_fallback_asks_the_fallback_s_provider() -> None:
    class WithFallback(FakeRunner):
        def provider_for(self, decoding: Decoding) -> str:
            return "second" if decoding.fallback else "fake"

    runner = WithFallback(["{}"])
    assert provider_for(runner, Decoding()) == "fake"
    assert provider_for(runner, Decoding(fallback=1)) == "second"
    assert provider_for(FakeRunner(["{}"]), Decoding(fallback=1)) == "fake"


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        # Asking again is pointless.
        (RunnerError("no such model"), "escalated", "tool_error"),
        # A program that failed may do better with a corrected prompt.
        (RunnerError("exit 1", evidence={"exit_code": 1}, final=False), "queued", None),
        # A bug of a runner is classified like any other error.
        (ZeroDivisionError("oops"), "queued", None),
    ],
)
def test_an_error_of_a_runner_is_settled(error: Exception, state: str, reason: str | None) -> None:
    outcome, view = Worker(error).run(make_job())
    assert isinstance(outcome, Settled)
    assert (view.state, view.reason) == (state, reason)
    assert view.attempts[0].score is None
    assert view.cycles == ()


def test_the_next_call_may_use_the_rest_of_the_budget() -> None:
    costly = Output(text="nonsense", usage=Usage(total_tokens=600))
    worker = Worker(costly, "{}")
    worker.run(make_job(budget={"tokens": 1000}), attempts=2)
    assert [request.token_allowance for request in worker.runner.requests] == [1000, 400]


def test_the_budget_of_seconds_limits_the_running_time() -> None:
    slow = Output(text="nonsense", elapsed_seconds=5.0)
    _, view = Worker(slow).run(make_job(budget={"seconds": 4}))
    assert (view.state, view.reason) == ("escalated", "budget_seconds")


def test_a_retry_uses_a_corrected_prompt_and_constrained_decoding() -> None:
    schema = {"type": "object", "required": ["a"]}
    worker = Worker("{}", '{"a": 1}')
    _, view = worker.run(
        make_job(system="You are terse.", verifiers=[{"id": "contract.schema", "schema": schema}]),
        attempts=2,
    )
    first, second = worker.runner.requests
    assert view.state == "succeeded"
    assert [message.role for message in second.messages] == ["system", "user"]
    assert "$.a" in second.messages[-1].content
    assert second.messages[-1].content.startswith(first.messages[-1].content)
    assert (first.decoding.constrained, second.decoding.constrained) == (False, True)
    assert second.json_schema == schema
    assert second.timeout == 7.0


def test_a_technique_that_worked_is_passed_on_to_other_jobs() -> None:
    """The fleet's memory passes on a technique, never a text."""
    schema = {"type": "object", "required": ["secret"]}
    job = make_job(prompt="Job one's own words", verifiers=[{"id": "contract.schema",
                                                             "schema": schema}])  # fmt: skip
    worker = Worker("{}", '{"secret": 1}', "{}", '{"secret": 2}')
    worker.run(job, attempts=2)
    other = job.model_copy(update={"prompt": "Another job"})
    worker.run(other, attempts=2)
    first, second = worker.runner.requests[1], worker.runner.requests[3]
    assert WORKED_BEFORE not in first.messages[-1].content
    assert WORKED_BEFORE in second.messages[-1].content
    assert "Job one's own words" not in second.messages[-1].content


def test_a_verifier_without_a_verdict_is_run_again_on_the_same_answer() -> None:
    class Broken:
        slow = False

        def verify(self, candidate: Any) -> Any:
            raise VerifierError("no program")

    worker = Worker("{}")
    worker.context = replace(worker.context, verifier=lambda _: Broken())
    outcome, view = worker.run(make_job())
    assert isinstance(outcome, Requeued)
    assert view.attempts[0].output is not None
    assert view.attempts[0].verdict is None


def intake(**changes: Any) -> Intake:
    ledger = fake_ledger()
    fields: dict[str, Any] = {
        "ledger": ledger,
        "publish": lambda _: None,
        "check": lambda _: [],
        "snapshot": lambda workspace: workspace,
        "new_id": lambda _: new_id(partitions=1),
        "prompt_cap": 100,
        "exempt_task_types": frozenset({"read_aloud"}),
        **changes,
    }
    return Intake(**fields)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"prompt": "é" * 51}, "prompt: 102 bytes are over the cap of 100"),
        ({"policy": {"max_attempts": 1}}, "policy.max_attempts: must be 2 or more"),
    ],
)
def test_a_well_formed_job_may_exceed_a_limit(fields: dict[str, Any], line: str) -> None:
    found = list(map(str, intake().problems(make_job(**fields))))
    assert len(found) == 1
    assert found[0].startswith(line)


SPELLINGS = ["read_aloud", "read-aloud", "readAloud", "ReadAloud", "READ_ALOUD"]


@pytest.mark.parametrize("listed", SPELLINGS)
@pytest.mark.parametrize("named", SPELLINGS)
def test_an_exempt_type_may_have_one_attempt(listed: str, named: str) -> None:
    """However the job and the settings write its name."""
    job = make_job(task_type=named, policy={"max_attempts": 1})
    exempting = intake(exempt_task_types=frozenset({"benchmark", listed}))
    assert exempting.problems(job) == []


@pytest.mark.parametrize("named", ["readaloud", "read_aloud_2", "aloud", "reads_aloud"])
def test_another_name_is_not_exempt(named: str) -> None:
    job = make_job(task_type=named, policy={"max_attempts": 1})
    assert len(intake().problems(job)) == 1


Change = Callable[[dict[str, Any]], Any]
RAW: dict[str, Any] = {
    "task_type": "t",
    "prompt": "p",
    "runner": "r",
    "verifiers": ["json.object"],
}


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"promt": "x"}, ["promt: there is no such field; did you mean 'prompt'?"]),
        ({"task_type": None}, ["task_type: must be a string"]),
        ({"verifiers": []}, ["verifiers: must have 1 or more items"]),
        ({"runner": {"temperature": 1}}, ["runner: give either a profile"]),
        ({"policy": {"max_attempts": 0}}, ["policy.max_attempts: must be at least"]),
        ({"budget": {"seconds": "soon"}}, ["budget.seconds: 'soon' is not a duration"]),
        ({"prompt": None}, ["prompt: give either a prompt or messages"]),
        ({"verifiers": "json.object"}, ["verifiers: must be a list, such as [json.object]"]),
        ({"verifiers": [3]}, ["verifiers[0]: must be a mapping, such as {id: json.object}"]),
        ({"runner": None}, ["runner: must be a mapping, such as {kind: openai, model: name}, or"]),
        (
            {"policy": {"escalate_on": ["odd"]}},
            [f"policy.escalate_on[0]: must be one of {', '.join(FailureKind)}"],
        ),
        (
            {"workspace": {"path": "w", "output_file": "../x"}},
            ["workspace.output_file: '../x' is not inside the workspace"],
        ),
        (
            {"priority": 10, "labels": 3},
            ["labels: must be a mapping", "priority: must be at"],
        ),
    ],
)
def test_every_invalid_field_of_a_job_is_reported(
    changes: dict[str, Any], lines: list[str]
) -> None:
    with pytest.raises(BadInput) as caught:
        read_job({**RAW, **changes})
    assert len(caught.value.problems) == len(lines)
    for problem, line in zip(caught.value.problems, lines, strict=True):
        assert str(problem).startswith(line)


@pytest.mark.parametrize("raw", [[], "job", None, 3])
def test_a_job_must_be_a_mapping(raw: Any) -> None:
    with pytest.raises(BadInput, match="a job is a mapping"):
        read_job(raw)
