"""The delayed verification of a queue job, on an in-memory ledger: checked or asked once more."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from support.doubles import FakeRunner
from support.jobs import make_job, passed
from support.ledger_scenario import Scenario, ScenarioMaker, attempt_context

from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.policies.cycles.delayed import SAME_FORMULATION, similarity
from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import Output, Usage
from mulligan.tasks.jobs.attempt import SLACK, run_attempt
from mulligan.tasks.jobs.context import ProviderHold
from mulligan.tasks.jobs.outcome import Rechecked, Requeued
from mulligan.tasks.jobs.recheck import run_recheck
from mulligan.tasks.ports.errors import RunnerError, TransportFault, VerifierError
from mulligan.tasks.ports.ledger import ClaimRefused, Entry, Lease, Publication

PROMPT = "Extract the person as JSON."
AFTER = 601


@pytest.fixture
def scenario(new_fake_scenario: ScenarioMaker) -> Scenario:
    return new_fake_scenario()


def repaired(scenario: Scenario, mode: str, **delayed: Any) -> Entry:
    """A job that failed, was repaired by its mandatory retry, and is due to be verified again."""
    told = scenario.accept(make_job(prompt=PROMPT, delayed_verification={"mode": mode, **delayed}))
    context = attempt_context(scenario, FakeRunner(["no JSON", '{"name": "Ada"}']))
    for number in (1, 2):
        run_attempt(context, Entry("attempt", told.id, number))
    assert scenario.view(told.id).state == "succeeded"
    scenario.advance(AFTER)
    return Entry("cycle", told.id, 1, 1)


@pytest.mark.parametrize(("mode", "queue"), [("recheck", "verify"), ("reformulate", "attempt")])
def test_it_runs_where_its_work_belongs(scenario: Scenario, mode: str, queue: str) -> None:
    """Checking is the verify pool's; asking a model is the attempt pool's."""
    entry = repaired(scenario, mode)
    assert scenario.sweep() == [Publication(entry, queue, 5)]


def test_a_stored_answer_is_checked_and_nobody_is_asked(scenario: Scenario) -> None:
    entry = repaired(scenario, "recheck")
    runner = FakeRunner(["never"])
    told = run_recheck(attempt_context(scenario, runner), entry)
    assert told == Rechecked(entry=entry, score=100, status="completed")
    assert runner.requests == []


class Slow:
    """A slow verifier that says how long it may take."""

    slow = True
    longest = 5000.0

    def verify(self, candidate: object) -> VerificationResult:
        return passed()


@pytest.mark.parametrize(("mode", "least"), [("recheck", 5000.0), ("reformulate", 5007.0)])
def test_it_is_held_for_as_long_as_its_parts_may_take(
    scenario: Scenario, mode: str, least: float
) -> None:
    """At the deadline the process is replaced, with whatever its other slots are doing."""
    entry = repaired(scenario, mode)
    held: list[float] = []

    def holding(_lease: Lease, deadline: float) -> AbstractContextManager[None]:
        held.append(deadline)
        return nullcontext()

    context = attempt_context(scenario, verifier=lambda _: Slow(), holding=holding)
    assert isinstance(run_recheck(context, entry), Rechecked)
    assert held == [least + SLACK]


def test_in_other_words_the_runner_is_asked_once(scenario: Scenario) -> None:
    entry = repaired(scenario, "reformulate")
    runner = FakeRunner([Output(text='{"name": "Ada"}', usage=Usage(total_tokens=9))])
    told = run_recheck(attempt_context(scenario, runner), entry)
    assert told == Rechecked(entry=entry, score=100, status="completed")
    (asked,) = runner.requests
    words = asked.messages[-1].content
    assert PROMPT in words
    assert similarity(PROMPT, words) < SAME_FORMULATION
    assert asked.attempt == 3  # a scripted runner tells it from the attempts
    assert scenario.view(entry.job_id).tokens == 9
    assert scenario.cycle(entry.job_id).status is CycleStatus.COMPLETED


def test_a_producer_s_own_words_are_asked(scenario: Scenario) -> None:
    entry = repaired(scenario, "reformulate", prompt="Who is it? Answer with an object.")
    runner = FakeRunner(["{}"])
    run_recheck(attempt_context(scenario, runner), entry)
    assert runner.requests[0].messages[-1].content == "Who is it? Answer with an object."


def test_the_score_of_the_new_answer_counts(scenario: Scenario) -> None:
    """However good the stored answer is."""
    entry = repaired(scenario, "reformulate")
    told = run_recheck(attempt_context(scenario, FakeRunner(["no JSON"])), entry)
    assert told == Rechecked(entry=entry, score=0, status="escalated")
    assert scenario.cycle(entry.job_id).reason == "delayed verification scored 0"
    assert scenario.view(entry.job_id).state == "succeeded"
    (escalation,) = scenario.ledger.escalations()
    assert (escalation.reason, escalation.cycle_id) == ("delayed_verification", entry.cycle_id)


class Failing:
    """A verifier that reaches no verdict."""

    slow = False

    def verify(self, candidate: object) -> Any:
        raise VerifierError("no disk")


def test_an_answer_that_is_stored_is_not_asked_for_again(scenario: Scenario) -> None:
    entry = repaired(scenario, "reformulate")
    runner = FakeRunner(["{}"])
    broken = attempt_context(scenario, runner, verifier=lambda _: Failing())
    assert isinstance(run_recheck(broken, entry), Requeued)
    scenario.advance(10)
    told = run_recheck(attempt_context(scenario, runner), entry)
    assert told == Rechecked(entry=entry, score=100, status="completed")
    assert len(runner.requests) == 1


def test_a_verifier_that_never_reaches_a_verdict_ends_with_a_person(scenario: Scenario) -> None:
    entry = repaired(scenario, "reformulate")
    broken = attempt_context(scenario, verifier=lambda _: Failing())
    for _ in range(broken.verifier_tries - 1):
        assert isinstance(run_recheck(broken, entry), Requeued)
        scenario.advance(10)
    assert run_recheck(broken, entry) == ClaimRefused("escalated", "tool_error")
    assert scenario.cycle(entry.job_id).reason == "tool_error"


def test_a_transport_fault_puts_it_off(scenario: Scenario) -> None:
    entry = repaired(scenario, "reformulate")
    fault = TransportFault("busy", provider="fake", status=429, retry_after=30.0)
    runner = FakeRunner([fault, "{}"])
    context = attempt_context(scenario, runner)
    told = run_recheck(context, entry)
    assert isinstance(told, Requeued)
    assert told.delay >= 30
    assert run_recheck(context, entry) == ClaimRefused("early")
    scenario.advance(told.delay + 1)
    assert scenario.swept_entries() == {str(entry)}
    assert run_recheck(context, entry) == Rechecked(entry=entry, score=100, status="completed")
    assert len(runner.requests) == 2


class Away:
    """A provider that is to be left alone."""

    def wait(self, provider: str) -> ProviderHold | None:
        return ProviderHold(seconds=50.0)

    def fault(self, fault: TransportFault) -> None: ...

    def success(self, provider: str) -> None: ...


def test_a_provider_that_is_away_is_left_alone_and_at_last_told_of(scenario: Scenario) -> None:
    entry = repaired(scenario, "reformulate")
    runner = FakeRunner(["{}"])
    context = attempt_context(scenario, runner, breakers=Away())
    told: Any = None
    for _ in range(200):
        told = run_recheck(context, entry)
        if isinstance(told, ClaimRefused):
            break
        scenario.advance(51)
    assert told == ClaimRefused("escalated", "missing_delayed_verification")
    assert runner.requests == []


def test_a_runner_that_fails_proves_nothing(scenario: Scenario) -> None:
    entry = repaired(scenario, "reformulate")
    told = run_recheck(attempt_context(scenario, FakeRunner([RunnerError("no such model")])), entry)
    assert told == Rechecked(entry=entry, score=None, status="escalated")
    assert scenario.cycle(entry.job_id).reason == "delayed verification: no such model"
    assert scenario.ledger.escalations()[0].signature == "reason:delayed_verification"


def test_whoever_lost_the_lease_changes_nothing(scenario: Scenario) -> None:
    entry = repaired(scenario, "reformulate")

    class Slow(FakeRunner):
        def answer(self, request: Any) -> Output:
            scenario.expire_leases()
            return super().answer(request)

    assert run_recheck(attempt_context(scenario, Slow(["no JSON"])), entry) == ClaimRefused("lost")
    told = run_recheck(attempt_context(scenario, FakeRunner(["{}"])), entry)
    assert told == Rechecked(entry=entry, score=100, status="completed")
