"""The worker's own soft time limit ends a task, and says nothing about the answer."""

from __future__ import annotations

from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from support.doubles import FakeRunner
from support.ledger_scenario import Scenario, ScenarioMaker, attempt_context

from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.jobs.outcome import Outcome, Requeued
from mulligan.tasks.jobs.recheck import run_recheck
from mulligan.tasks.jobs.settle import Settled
from mulligan.tasks.ports.ledger import ClaimRefused, Entry

LIMIT = SoftTimeLimitExceeded()


@pytest.fixture
def scenario(new_fake_scenario: ScenarioMaker) -> Scenario:
    return new_fake_scenario()


def attempted(scenario: Scenario, job_id: str, runner: FakeRunner, **changes: Any) -> Outcome:
    scenario.advance(2)
    entry = Entry("attempt", job_id, 1)
    return run_attempt(attempt_context(scenario, runner, **changes), entry)


def test_the_same_attempt_runs_again_and_nothing_is_blamed(scenario: Scenario) -> None:
    job_id, runner = scenario.submit(), FakeRunner([LIMIT, LIMIT, "{}"])
    for _ in range(2):
        outcome = attempted(scenario, job_id, runner)
        assert isinstance(outcome, Requeued)
        assert "--soft-time-limit" in outcome.reason
        (attempt,) = scenario.view(job_id).attempts
        assert (attempt.verdict, attempt.claims) == (None, 0)
    assert isinstance(attempted(scenario, job_id, runner), Settled)
    view = scenario.view(job_id)
    assert (view.state, len(view.attempts), view.cycles) == ("succeeded", 1, ())
    assert len({request.messages for request in runner.requests}) == 1


def test_the_third_time_is_escalated_as_a_fault_of_the_tools(scenario: Scenario) -> None:
    job_id, runner = scenario.submit(), FakeRunner([LIMIT])
    for _ in range(2):
        attempted(scenario, job_id, runner)
    assert attempted(scenario, job_id, runner) == ClaimRefused("escalated", "tool_error")
    view = scenario.view(job_id)
    assert (view.state, view.reason, len(view.attempts)) == ("escalated", "tool_error", 1)
    assert "soft time limit" in (view.detail or "")


def test_a_stored_answer_is_not_asked_for_again(scenario: Scenario) -> None:
    """The limit may be raised at any instruction, also after the answer was stored."""

    def step(name: str, _entry: Entry) -> None:
        if name == "output_stored":
            raise LIMIT

    job_id, runner = scenario.submit(), FakeRunner(["{}"])
    assert isinstance(attempted(scenario, job_id, runner, step=step), Requeued)
    assert isinstance(attempted(scenario, job_id, runner), Settled)
    assert (scenario.view(job_id).state, len(runner.requests)) == ("succeeded", 1)


def test_a_delayed_verification_is_tried_again(scenario: Scenario) -> None:
    job_id = scenario.submit(delayed_verification={"mode": "reformulate"})
    repaired = attempt_context(scenario, FakeRunner(["no JSON", "{}"]))
    for number in (1, 2):
        run_attempt(repaired, Entry("attempt", job_id, number))
    scenario.advance(601)
    entry, runner = Entry("cycle", job_id, 1, 1), FakeRunner([LIMIT, "{}"])
    assert isinstance(run_recheck(attempt_context(scenario, runner), entry), Requeued)
    assert scenario.cycle(job_id).status is CycleStatus.PENDING_DELAYED_VERIFICATION
    scenario.advance(2)
    run_recheck(attempt_context(scenario, runner), entry)
    assert scenario.cycle(job_id).status is CycleStatus.COMPLETED
