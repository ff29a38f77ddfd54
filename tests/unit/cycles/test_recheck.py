"""The delayed verification of a job, on fakeredis: the answer is checked or asked for again."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from support.doubles import FakeRunner
from support.jobs import passed
from support.ledger_scenario import Scenario, ScenarioMaker, attempt_context

from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.policies.cycles.delayed import SAME_FORMULATION, similarity
from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import Output, Usage
from mulligan.tasks.jobs.attempt import SLACK, run_attempt
from mulligan.tasks.jobs.outcome import Rechecked, Requeued
from mulligan.tasks.jobs.recheck import run_recheck
from mulligan.tasks.ports.errors import RunnerError, TransportFault, VerifierError
from mulligan.tasks.ports.leases import HeldLease, UnwatchedLease
from mulligan.tasks.ports.ledger import ClaimRefused, Entry, Lease, Publication

PROMPT = "Extract the person as JSON."
AFTER = 601


@pytest.fixture
def scenario(new_fake_scenario: ScenarioMaker) -> Scenario:
    return new_fake_scenario()


def repaired(scenario: Scenario, mode: str, **delayed: Any) -> Entry:
    """Return the entry of a due delayed verification, after a mandatory retry repaired the job."""
    job_id = scenario.submit(prompt=PROMPT, delayed_verification={"mode": mode, **delayed})
    context = attempt_context(scenario, FakeRunner(["no JSON", '{"name": "Ada"}']))
    for number in (1, 2):
        run_attempt(context, Entry("attempt", job_id, number))
    assert scenario.view(job_id).state == "succeeded"
    scenario.advance(AFTER)
    return Entry("cycle", job_id, 1, 1)


@pytest.mark.parametrize(("mode", "queue"), [("recheck", "verify"), ("reformulate", "attempt")])
def test_it_runs_on_the_queue_of_its_work(scenario: Scenario, mode: str, queue: str) -> None:
    """The verify pool checks answers, and the attempt pool calls models."""
    entry = repaired(scenario, mode)
    assert scenario.sweep() == [Publication(entry, queue, 5)]


def test_a_stored_answer_is_checked_without_a_model_call(scenario: Scenario) -> None:
    entry = repaired(scenario, "recheck")
    runner = FakeRunner(["never"])
    outcome = run_recheck(attempt_context(scenario, runner), entry)
    assert outcome == Rechecked(entry=entry, score=100, status="completed")
    assert runner.requests == []


class Slow:
    """A slow verifier that declares its maximum duration."""

    slow = True
    longest = 5000.0

    def verify(self, candidate: object) -> VerificationResult:
        return passed()


@pytest.mark.parametrize(("mode", "least"), [("recheck", 5000.0), ("reformulate", 5007.0)])
def test_its_deadline_covers_its_runner_and_verifiers(
    scenario: Scenario, mode: str, least: float
) -> None:
    """At the deadline the process is replaced, and its other slots lose their work."""
    entry = repaired(scenario, mode)
    held: list[float] = []

    def holding(_lease: Lease, deadline: float) -> AbstractContextManager[HeldLease]:
        held.append(deadline)
        return nullcontext(UnwatchedLease())

    context = attempt_context(scenario, verifier=lambda _: Slow(), holding=holding)
    assert isinstance(run_recheck(context, entry), Rechecked)
    assert held == [least + SLACK]


def test_a_reformulated_task_is_asked_once(scenario: Scenario) -> None:
    entry = repaired(scenario, "reformulate")
    runner = FakeRunner([Output(text='{"name": "Ada"}', usage=Usage(total_tokens=9))])
    outcome = run_recheck(attempt_context(scenario, runner), entry)
    assert outcome == Rechecked(entry=entry, score=100, status="completed")
    (request,) = runner.requests
    prompt = request.messages[-1].content
    assert PROMPT in prompt
    assert similarity(PROMPT, prompt) < SAME_FORMULATION
    assert request.attempt == 3  # a scripted runner distinguishes it from the attempts
    assert scenario.view(entry.job_id).tokens == 9
    assert scenario.cycle(entry.job_id).status is CycleStatus.COMPLETED


def test_the_producers_formulation_is_used(scenario: Scenario) -> None:
    entry = repaired(scenario, "reformulate", prompt="Who is it? Answer with an object.")
    runner = FakeRunner(["{}"])
    run_recheck(attempt_context(scenario, runner), entry)
    assert runner.requests[0].messages[-1].content == "Who is it? Answer with an object."


def test_the_score_of_the_new_answer_counts(scenario: Scenario) -> None:
    """However good the stored answer is."""
    entry = repaired(scenario, "reformulate")
    outcome = run_recheck(attempt_context(scenario, FakeRunner(["no JSON"])), entry)
    assert outcome == Rechecked(entry=entry, score=0, status="escalated")
    assert scenario.cycle(entry.job_id).reason == "delayed verification scored 0"
    assert scenario.view(entry.job_id).state == "succeeded"
    (escalation,) = scenario.ledger.escalations()
    assert (escalation.reason, escalation.cycle_id) == ("delayed_verification", entry.cycle_id)


class Failing:
    """A verifier that reaches no verdict."""

    slow = False

    def verify(self, candidate: object) -> Any:
        raise VerifierError("no disk")


def test_a_stored_answer_is_not_requested_again(scenario: Scenario) -> None:
    entry = repaired(scenario, "reformulate")
    runner = FakeRunner(["{}"])
    broken = attempt_context(scenario, runner, verifier=lambda _: Failing())
    assert isinstance(run_recheck(broken, entry), Requeued)
    scenario.advance(10)
    outcome = run_recheck(attempt_context(scenario, runner), entry)
    assert outcome == Rechecked(entry=entry, score=100, status="completed")
    assert len(runner.requests) == 1


def test_a_verifier_that_never_reaches_a_verdict_is_escalated(scenario: Scenario) -> None:
    entry = repaired(scenario, "reformulate")
    broken = attempt_context(scenario, verifier=lambda _: Failing())
    for _ in range(broken.verifier_tries - 1):
        assert isinstance(run_recheck(broken, entry), Requeued)
        scenario.advance(10)
    assert run_recheck(broken, entry) == ClaimRefused("escalated", "tool_error")
    assert scenario.cycle(entry.job_id).reason == "tool_error"


def test_a_transport_fault_delays_it(scenario: Scenario) -> None:
    entry = repaired(scenario, "reformulate")
    fault = TransportFault("busy", provider="fake", status=429, retry_after=30.0)
    runner = FakeRunner([fault, "{}"])
    context = attempt_context(scenario, runner)
    outcome = run_recheck(context, entry)
    assert isinstance(outcome, Requeued)
    assert 29 < outcome.delay <= 30  # the provider's wait
    assert run_recheck(context, entry) == ClaimRefused("provider_busy", "provider:fake")
    scenario.advance(outcome.delay + 1)
    assert scenario.swept_entries() == {str(entry)}
    assert run_recheck(context, entry) == Rechecked(entry=entry, score=100, status="completed")
    assert len(runner.requests) == 2


def test_a_delayed_verification_waits_for_its_provider_and_is_finally_escalated(
    scenario: Scenario,
) -> None:
    """Given a paused provider, then nothing is claimed to be given back, and stale is stale."""
    entry = repaired(scenario, "reformulate")
    runner = FakeRunner(["{}"])
    context = attempt_context(scenario, runner)
    scenario.ledger.pause("provider:fake")
    assert run_recheck(context, entry) == ClaimRefused("paused", "provider:fake")
    scenario.advance(scenario.settings.stale_after + 1)
    assert scenario.swept_entries() == set()
    assert scenario.cycle(entry.job_id).reason == "missing_delayed_verification"
    scenario.ledger.resume("provider:fake")
    assert scenario.swept_entries() == set()
    assert isinstance(run_recheck(context, entry), ClaimRefused)
    assert runner.requests == []


def test_the_back_off_of_a_delayed_verification_grows(scenario: Scenario) -> None:
    entry = repaired(scenario, "reformulate")
    context = attempt_context(scenario, FakeRunner([TransportFault("503", provider="fake")]))
    delays = []
    for _ in range(3):
        outcome = run_recheck(context, entry)
        assert isinstance(outcome, Requeued)
        delays.append(outcome.delay)
        scenario.advance(outcome.delay + 1)
    assert delays == [0.5, 1.0, 2.0]


def test_a_runner_error_escalates_the_cycle(scenario: Scenario) -> None:
    entry = repaired(scenario, "reformulate")
    outcome = run_recheck(
        attempt_context(scenario, FakeRunner([RunnerError("no such model")])), entry
    )
    assert outcome == Rechecked(entry=entry, score=None, status="escalated")
    assert scenario.cycle(entry.job_id).reason == "delayed verification: no such model"
    assert scenario.ledger.escalations()[0].signature == "reason:delayed_verification"


def test_a_worker_that_lost_its_lease_changes_nothing(scenario: Scenario) -> None:
    entry = repaired(scenario, "reformulate")

    class Slow(FakeRunner):
        def answer(self, request: Any) -> Output:
            scenario.expire_leases()
            return super().answer(request)

    assert run_recheck(attempt_context(scenario, Slow(["no JSON"])), entry) == ClaimRefused("lost")
    outcome = run_recheck(attempt_context(scenario, FakeRunner(["{}"])), entry)
    assert outcome == Rechecked(entry=entry, score=100, status="completed")
