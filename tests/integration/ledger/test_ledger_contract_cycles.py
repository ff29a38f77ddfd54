"""The ledger's contract, in memory and on Redis: the delayed verification of a cycle."""

from __future__ import annotations

import pytest
from support.jobs import answer
from support.ledger_scenario import Scenario, ScenarioMaker
from support.settlements import escalates, retries_by_policy, retries_immediately, succeeds

from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.tasks.ports.ledger import ClaimRefused, CycleFailure, Entry, Publication

#: Seconds from the mandatory retry to its delayed verification.
AFTER = 600


@pytest.fixture
def scenario(new_scenario: ScenarioMaker) -> Scenario:
    return new_scenario()


def due(scenario: Scenario) -> tuple[str, Entry]:
    """A repaired job whose delayed verification is due and was published."""
    job_id, entry = scenario.repaired_job()
    scenario.advance(AFTER + 1)
    assert scenario.swept_entries() == {str(entry)}
    return job_id, entry


def test_the_mandatory_retry_s_verdict_starts_the_delay(scenario: Scenario) -> None:
    job_id, entry = scenario.repaired_job()
    cycle = scenario.cycle(job_id)
    assert cycle.status is CycleStatus.PENDING_DELAYED_VERIFICATION
    assert cycle.immediate_attempt_id == f"{job_id}-2"
    assert cycle.immediate_at is not None
    assert cycle.ended_at is None
    scenario.advance(AFTER - 10)
    assert scenario.swept_entries("verify") == set()
    assert scenario.recheck_refusal(entry) == ClaimRefused("early")
    scenario.advance(11)
    assert scenario.sweep() == [Publication(entry, "verify", 5)]


def test_a_retry_that_fails_awaits_its_verification_just_the_same(scenario: Scenario) -> None:
    job_id = scenario.submit()
    first = scenario.claim(job_id)
    scenario.settle(first, retries_immediately(first))
    second = scenario.claim(job_id, 2)
    scenario.settle(second, retries_by_policy(second))
    assert scenario.cycle(job_id).status is CycleStatus.PENDING_DELAYED_VERIFICATION


def test_a_delayed_verification_brings_the_best_answer(scenario: Scenario) -> None:
    _, entry = due(scenario)
    taken = scenario.claim_recheck(entry)
    assert taken.cycle_id == entry.cycle_id
    assert (taken.claim.plan.number, taken.claim.output) == (2, answer("repaired"))
    assert scenario.recheck_refusal(entry) == ClaimRefused("held")


@pytest.mark.parametrize(
    ("status", "score", "failure"),
    [("completed", 100.0, None), ("escalated", 40.0, CycleFailure(detail="it scored 40"))],
)
def test_its_score_ends_the_cycle_and_never_changes_the_job(
    scenario: Scenario, status: str, score: float, failure: CycleFailure | None
) -> None:
    job_id, entry = due(scenario)
    lease = scenario.claim_recheck(entry).lease
    assert scenario.ledger.settle_cycle(lease, status=status, score=score, failure=failure)
    cycle = scenario.cycle(job_id)
    assert (cycle.status.value, cycle.reason) == (status, failure.detail if failure else "")
    assert cycle.ended_at is not None
    assert scenario.view(job_id).state == "succeeded"
    assert scenario.recheck_refusal(entry) == ClaimRefused("finished")
    assert cycle.score == score
    # A repeat changes nothing.
    assert scenario.ledger.settle_cycle(lease, status=status, score=1)
    assert scenario.cycle(job_id) == cycle
    assert not scenario.ledger.settle_cycle(lease, status="cancelled", score=None)
    assert scenario.cycle(job_id).status.value == status


def test_a_verification_that_comes_while_the_job_is_still_repaired_is_postponed(
    scenario: Scenario,
) -> None:
    """Given a job that goes on after its mandatory retry, then its cycle waits for the end."""
    job_id = scenario.submit()
    first = scenario.claim(job_id)
    scenario.settle(first, retries_immediately(first))
    second = scenario.claim(job_id, 2)
    scenario.settle(second, retries_by_policy(second))
    entry = Entry("cycle", job_id, 1, 1)
    scenario.advance(AFTER + 1)
    assert str(entry) in scenario.swept_entries()
    assert scenario.recheck_refusal(entry) == ClaimRefused("early")
    assert str(entry) not in scenario.swept_entries()
    third = scenario.claim(job_id, 3)
    scenario.settle(third, succeeds(third))
    assert scenario.recheck_refusal(entry) == ClaimRefused("early")
    scenario.advance(scenario.settings.lease + 1)
    assert scenario.swept_entries() == {str(entry)}
    assert scenario.claim_recheck(entry).claim.plan.number == 3


def test_one_that_never_happened_is_escalated_as_stale(scenario: Scenario) -> None:
    job_id, entry = scenario.repaired_job()
    scenario.advance(AFTER + scenario.settings.stale_after + 1)
    assert scenario.recheck_refusal(entry) == ClaimRefused(
        "escalated", "missing_delayed_verification"
    )
    cycle = scenario.cycle(job_id)
    assert cycle.status is CycleStatus.ESCALATED
    assert cycle.reason == "missing_delayed_verification"
    assert scenario.view(job_id).state == "succeeded"


def test_one_that_loses_every_worker_is_escalated_as_worker_lost(scenario: Scenario) -> None:
    job_id, entry = due(scenario)
    for _ in range(scenario.settings.max_claims):
        zombie = scenario.claim_recheck(entry)
        assert scenario.expire_leases() == {str(entry)}
    assert scenario.recheck_refusal(entry) == ClaimRefused("escalated", "worker_lost")
    assert scenario.cycle(job_id).reason == "worker_lost"
    assert not scenario.ledger.settle_cycle(zombie.lease, status="completed", score=100)
    assert scenario.cycle(job_id).status is CycleStatus.ESCALATED


def test_a_zombie_cannot_end_a_cycle_that_another_worker_has_in_hand(scenario: Scenario) -> None:
    _, entry = due(scenario)
    zombie = scenario.claim_recheck(entry)
    scenario.advance(scenario.settings.lease + 1)
    heir = scenario.claim_recheck(entry)
    assert scenario.ledger.renew([zombie.lease, heir.lease]) == {entry}
    assert not scenario.ledger.settle_cycle(
        zombie.lease, status="escalated", score=0, failure=CycleFailure()
    )
    assert scenario.ledger.settle_cycle(heir.lease, status="completed", score=100)


def test_one_repeated_with_its_own_token_is_claimed_once(
    new_scenario: ScenarioMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a single allowed claim whose answer was lost, then repeating it loses no worker."""
    scenario = new_scenario(max_claims=1)
    _, entry = due(scenario)
    monkeypatch.setattr("secrets.token_hex", lambda _bytes: "f00d")
    assert scenario.claim_recheck(entry) == scenario.claim_recheck(entry)


def test_one_without_a_verdict_is_run_again_and_then_escalated(scenario: Scenario) -> None:
    job_id, entry = due(scenario)
    for last in (False, False, True):
        told = scenario.ledger.requeue(
            scenario.claim_recheck(entry).lease,
            delay=5,
            detail="no pytest",
            counter="verifier_errors",
            limit=3,
            reason="tool_error",
        )
        if not last:
            assert told is None
            assert scenario.recheck_refusal(entry) == ClaimRefused("early")
            scenario.advance(6)
            assert scenario.sweep() == [Publication(entry, "verify", 5)]
    assert told == ClaimRefused("escalated", "tool_error")
    assert scenario.cycle(job_id).reason == "tool_error"
    assert scenario.view(job_id).state == "succeeded"


def test_delayed_verifications_wait_behind_a_paused_queue(scenario: Scenario) -> None:
    _, entry = due(scenario)
    scenario.ledger.pause("queue:verify")
    assert scenario.recheck_refusal(entry) == ClaimRefused("paused")
    scenario.advance(scenario.settings.republish_after * 2)
    assert scenario.swept_entries("verify") == set()
    scenario.ledger.resume("queue:verify")
    assert scenario.swept_entries() == {str(entry)}
    scenario.claim_recheck(entry)


def test_a_cycle_that_does_not_exist_is_gone(scenario: Scenario) -> None:
    assert scenario.recheck_refusal(Entry("cycle", "p00-unknown", 1, 1)) == ClaimRefused("gone")


@pytest.mark.parametrize("end", ["escalated", "cancelled"])
def test_open_cycles_end_with_a_job_that_did_not_succeed(scenario: Scenario, end: str) -> None:
    job_id = scenario.submit()
    first = scenario.claim(job_id)
    scenario.settle(first, retries_immediately(first))
    second = scenario.claim(job_id, 2)
    scenario.settle(second, retries_by_policy(second))
    if end == "cancelled":
        scenario.ledger.cancel(job_id)
    else:
        third = scenario.claim(job_id, 3)
        scenario.settle(third, escalates(third))
    assert scenario.cycle(job_id).status.value == end
    scenario.advance(AFTER + 1)
    assert scenario.swept_entries("verify") == set()
    assert scenario.recheck_refusal(Entry("cycle", job_id, 1, 1)) == ClaimRefused("finished")


def test_cycles_are_listed_newest_first_within_a_window(scenario: Scenario) -> None:
    older, _ = scenario.repaired_job()
    scenario.advance(1000)
    newer, _ = scenario.repaired_job()
    listed = scenario.ledger.cycles(since=0, limit=10)
    assert [cycle.job_id for cycle in listed] == [newer, older]
    window = listed[0].created_at - 500
    assert [cycle.job_id for cycle in scenario.ledger.cycles(since=window, limit=10)] == [newer]
    assert [cycle.job_id for cycle in scenario.ledger.cycles(since=0, limit=1)] == [newer]


def test_no_more_cycles_are_kept_than_the_cap(new_scenario: ScenarioMaker) -> None:
    """Given a cap of two, when three cycles have ended, then the oldest record is deleted."""
    scenario = new_scenario(cycles_cap=2)
    jobs = []
    for _ in range(3):
        job_id, entry = scenario.repaired_job()
        scenario.advance(AFTER + 1)
        lease = scenario.claim_recheck(entry).lease
        scenario.ledger.settle_cycle(lease, status="completed", score=100)
        jobs.append(job_id)
    scenario.sweep()
    assert [cycle.job_id for cycle in scenario.ledger.cycles(since=0, limit=10)] == jobs[:0:-1]
    assert scenario.view(jobs[0]).cycles == ()
    assert len(scenario.view(jobs[1]).cycles) == 1
