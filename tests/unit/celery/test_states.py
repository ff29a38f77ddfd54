"""Every status of a cycle and everything a job can wait for, reached by running jobs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.doubles import FakeRunner
from support.jobs import read_job
from support.ledger_scenario import Scenario, ScenarioMaker, attempt_context, intake_of
from support.provider_calls import open_breaker

from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.jobs.recheck import run_recheck
from mulligan.tasks.jobs.settle import Settled
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.tasks.ports.errors import TransportFault
from mulligan.tasks.ports.ledger import Entry, Finish
from mulligan.workers.celery.state_task import Escalated, StateTask

AFTER = 601
#: A wrong answer, then a right one.
REPAIRS = ["no JSON", "{}"]


def submit(scenario: Scenario) -> str:
    job = read_job(
        {
            "task_type": "extract",
            "prompt": "Extract the person.",
            "runner": "model",
            "verifiers": ["json.object"],
            "labels": {"tenant": "acme"},
        }
    )
    (accepted,) = submit_jobs(intake_of(scenario), [job])
    return accepted.id


def run(scenario: Scenario, job_id: str, answers: list[str], *, attempts: int) -> None:
    context = attempt_context(scenario, FakeRunner(answers))
    for number in range(1, attempts + 1):
        run_attempt(context, Entry("attempt", job_id, number))


def _low_score(scenario: Scenario) -> str:
    job_id = submit(scenario)
    run(scenario, job_id, REPAIRS, attempts=1)
    return job_id


def _repaired(scenario: Scenario) -> str:
    job_id = submit(scenario)
    run(scenario, job_id, REPAIRS, attempts=2)
    return job_id


def _verified_later(scenario: Scenario) -> str:
    job_id = _repaired(scenario)
    scenario.advance(AFTER)
    run_recheck(attempt_context(scenario), Entry("cycle", job_id, 1, 1))
    return job_id


def _never_repaired(scenario: Scenario) -> str:
    job_id = submit(scenario)
    run(scenario, job_id, ["no JSON"], attempts=4)
    return job_id


def _cancelled(scenario: Scenario) -> str:
    job_id = _low_score(scenario)
    scenario.ledger.cancel(job_id)
    return job_id


STATUSES: dict[CycleStatus, Callable[[Scenario], str]] = {
    CycleStatus.PENDING_IMMEDIATE_RETRY: _low_score,
    CycleStatus.PENDING_DELAYED_VERIFICATION: _repaired,
    CycleStatus.COMPLETED: _verified_later,
    CycleStatus.ESCALATED: _never_repaired,
    CycleStatus.CANCELLED: _cancelled,
}


@pytest.mark.parametrize("status", CycleStatus)
def test_every_status_of_a_cycle_is_reached(
    new_fake_scenario: ScenarioMaker, status: CycleStatus
) -> None:
    scenario = new_fake_scenario()
    job_id = STATUSES[status](scenario)
    cycle = scenario.cycle(job_id)
    assert cycle.status is status
    assert cycle.open is (cycle.ended_at is None)
    events = [event.data for event in scenario.ledger.events() if event.type == "cycle"]
    assert events[-1]["status"] == status.value


# -- escalations in Flower ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "reason", "count"),
    [
        (["no JSON"], "repeated_failure: json_invalid (prose) $", "seen 3 times"),
        # another failure each time, until no attempt is left
        (["no JSON", "", "[]", '{"a": }'], "max_attempts: json_invalid (syntax) $", "seen once"),
    ],
)
def test_an_escalation_is_reported_with_kind_place_and_count(
    new_fake_scenario: ScenarioMaker, answers: list[str], reason: str, count: str
) -> None:
    scenario = new_fake_scenario()
    job_id = submit(scenario)
    context = attempt_context(scenario, FakeRunner(answers))
    entries = [Entry("attempt", job_id, number) for number in (1, 2, 3, 4)]
    outcomes = [(entry, run_attempt(context, entry)) for entry in entries]
    entry, last = next(
        (entry, outcome)
        for entry, outcome in outcomes
        if isinstance(outcome, Settled) and isinstance(outcome.then, Finish)
    )
    with pytest.raises(Escalated) as caught:
        StateTask().report(entry, last)
    assert str(caught.value) == f"extract attempt {entry.attempt}: {reason}, {count}"


# -- what a job can wait for -----------------------------------------------------------------------


def _transport_fault(scenario: Scenario) -> str:
    job_id = submit(scenario)
    runner = FakeRunner([TransportFault("503", provider="fake")])
    run_attempt(attempt_context(scenario, runner), Entry("attempt", job_id, 1))
    return job_id


def _quota(scenario: Scenario) -> str:
    scenario.claim(submit(scenario))
    job_id = submit(scenario)
    run(scenario, job_id, REPAIRS, attempts=1)
    return job_id


def _paused(scenario: Scenario) -> str:
    scenario.ledger.pause("task_type:extract")
    job_id = submit(scenario)
    run(scenario, job_id, REPAIRS, attempts=1)
    return job_id


def _breaker(scenario: Scenario) -> str:
    open_breaker(scenario.ledger, "fake")
    job_id = submit(scenario)
    run_attempt(attempt_context(scenario), Entry("attempt", job_id, 1))
    return job_id


def _provider(scenario: Scenario) -> str:
    job_id = submit(scenario)
    runner = FakeRunner([TransportFault("429", provider="fake", status=429)])
    run_attempt(attempt_context(scenario, runner), Entry("attempt", job_id, 1))
    return job_id


@pytest.mark.parametrize(
    ("waiting_for", "run_job"),
    [
        ("delay", _transport_fault),
        ("budget", _quota),
        ("pause", _paused),
        ("breaker", _breaker),
        ("provider", _provider),
    ],
)
def test_every_reason_to_wait_is_reached(
    new_fake_scenario: ScenarioMaker, waiting_for: str, run_job: Callable[[Scenario], str]
) -> None:
    scenario = new_fake_scenario(quotas={"acme": {"concurrency": 1}})
    view = scenario.view(run_job(scenario))
    assert (view.state, view.waiting_for) == ("waiting", waiting_for)
