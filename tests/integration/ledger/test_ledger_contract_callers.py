"""The ledger's contract: the caller of a user's task hears of an end outside a delivery."""

from __future__ import annotations

import pytest
from support.jobs import answer
from support.ledger_scenario import Scenario
from support.settlements import retries_immediately, succeeds

from mulligan.policies.jobs.job import RunnerSpec
from mulligan.tasks.ports.ledger import ClaimRefused, Entry
from mulligan.tasks.user_tasks.task_route import TaskMode, TaskRoute


def runner(mode: TaskMode = "enforce") -> RunnerSpec:
    return TaskRoute(task="t", queue="q", root="r", args=[], kwargs={}, mode=mode).runner


def waiting_job(scenario: Scenario, **fields: object) -> tuple[str, str]:
    """Return a user's task whose message was sent, and its entry."""
    job_id = scenario.submit(**{"runner": runner(), **fields})
    entry = Entry("attempt", job_id, 1)
    scenario.ledger.stamp([entry])
    return job_id, str(entry)


def test_a_cancelled_job_is_reported_by_its_message(scenario: Scenario) -> None:
    job_id, entry = waiting_job(scenario)
    scenario.ledger.cancel(job_id)
    assert scenario.swept_entries() == {entry}
    assert scenario.refusal(job_id) == ClaimRefused("finished")
    # The worker that was refused reports it, and no other one is needed.
    scenario.advance(3600)
    assert scenario.swept_entries() == set()


def test_a_job_that_was_cancelled_while_it_ran_is_reported_once(scenario: Scenario) -> None:
    """Given a delivery that still runs, then its own result has no effect."""
    job_id, entry = waiting_job(scenario)
    claim = scenario.claim(job_id)
    scenario.ledger.cancel(job_id)
    assert scenario.swept_entries() == {entry}
    assert not isinstance(scenario.ledger.store_output(claim.lease, answer()), ClaimRefused)
    for _ in range(2):
        settled = scenario.ledger.settle(claim.lease, succeeds(claim))
        assert settled == ClaimRefused("lost")
    assert scenario.view(job_id).state == "cancelled"


@pytest.mark.parametrize("mode", ["observe", "enforce"])
def test_what_ended_by_itself_is_not_reported(scenario: Scenario, mode: TaskMode) -> None:
    """Given a task that raised Ignore, or that is only observed, then Celery has reported it."""
    job_id, _ = waiting_job(scenario, runner=runner(mode))
    scenario.ledger.cancel(job_id, signalled=mode == "enforce")
    assert scenario.swept_entries() == set()
    assert scenario.view(job_id).reason == ("signalled" if mode == "enforce" else "cancelled")


def test_a_deadline_that_passes_while_the_task_is_paused_is_reported(scenario: Scenario) -> None:
    scenario.ledger.pause("task_type:extract")
    job_id = scenario.submit(runner=runner(), task_type="extract", deadline=60)
    scenario.advance(61)
    # The pause does not hold the report back.
    assert scenario.swept_entries() == {str(Entry("attempt", job_id, 1))}
    assert scenario.view(job_id).reason == "deadline"


def test_a_message_that_cannot_be_sent_is_reported_if_the_broker_takes_it_later(
    scenario: Scenario,
) -> None:
    job_id, _ = waiting_job(scenario)
    claim = scenario.claim(job_id)
    scenario.settle(claim, retries_immediately(claim))
    retry = Entry("attempt", job_id, 2)
    for _ in range(5):
        scenario.ledger.fail({retry: "refused"})
    assert scenario.view(job_id).reason == "unsendable"
    assert scenario.swept_entries() == {str(retry)}
    for _ in range(5):
        scenario.ledger.fail({retry: "refused"})
    # It is tried for a while, and is no second escalation.
    assert len(scenario.ledger.escalations()) == 1
    scenario.advance(3600)
    assert scenario.swept_entries() == set()
