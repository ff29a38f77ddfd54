"""The ledger's contract: the delayed verification of a cycle."""

from __future__ import annotations

import pytest
from support.jobs import answer
from support.ledger_scenario import Scenario, ScenarioMaker
from support.settlements import escalates, retries_by_policy, retries_immediately, succeeds

from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.tasks.ports.ledger import (
    ClaimRefused,
    CycleFailure,
    Entry,
    EntryRequeued,
    Publication,
)

#: Seconds from the mandatory retry to its delayed verification.
AFTER = 600


def due(scenario: Scenario) -> tuple[str, Entry]:
    """Return a repaired job and its delayed verification, which is due and published."""
    job_id, entry = scenario.repaired_job()
    scenario.advance(AFTER + 1)
    assert scenario.swept_entries() == {str(entry)}
    return job_id, entry


def test_the_verdict_of_the_mandatory_retry_starts_the_delay(scenario: Scenario) -> None:
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


def test_a_failed_retry_awaits_its_delayed_verification_too(scenario: Scenario) -> None:
    job_id = scenario.submit()
    first = scenario.claim(job_id)
    scenario.settle(first, retries_immediately(first))
    second = scenario.claim(job_id, 2)
    scenario.settle(second, retries_by_policy(second))
    assert scenario.cycle(job_id).status is CycleStatus.PENDING_DELAYED_VERIFICATION


def test_a_delayed_verification_is_claimed_with_the_best_answer(scenario: Scenario) -> None:
    _, entry = due(scenario)
    taken = scenario.claim_recheck(entry)
    assert taken.cycle_id == entry.cycle_id
    assert (taken.claim.plan.number, taken.claim.output) == (2, answer("repaired"))
    assert scenario.recheck_refusal(entry) == ClaimRefused("held")


@pytest.mark.parametrize(
    ("status", "score", "failure"),
    [("completed", 100.0, None), ("escalated", 40.0, CycleFailure(detail="it scored 40"))],
)
def test_the_score_of_a_delayed_verification_ends_the_cycle_and_not_the_job(
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


def test_a_delayed_verification_of_an_unfinished_job_is_postponed(
    scenario: Scenario,
) -> None:
    """Given a job that continues after its mandatory retry, then its cycle waits for its end."""
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


def test_a_delayed_verification_that_never_happened_is_escalated_as_stale(
    scenario: Scenario,
) -> None:
    job_id, entry = scenario.repaired_job()
    scenario.advance(AFTER + scenario.settings.stale_after + 1)
    assert scenario.recheck_refusal(entry) == ClaimRefused(
        "escalated", "missing_delayed_verification"
    )
    cycle = scenario.cycle(job_id)
    assert cycle.status is CycleStatus.ESCALATED
    assert cycle.reason == "missing_delayed_verification"
    assert scenario.view(job_id).state == "succeeded"


def test_a_delayed_verification_that_loses_every_worker_is_escalated(scenario: Scenario) -> None:
    job_id, entry = due(scenario)
    for _ in range(scenario.settings.max_claims):
        zombie = scenario.claim_recheck(entry)
        assert scenario.expire_leases() == {str(entry)}
    assert scenario.recheck_refusal(entry) == ClaimRefused("escalated", "worker_lost")
    assert scenario.cycle(job_id).reason == "worker_lost"
    assert not scenario.ledger.settle_cycle(zombie.lease, status="completed", score=100)
    assert scenario.cycle(job_id).status is CycleStatus.ESCALATED


def test_a_worker_without_its_lease_cannot_end_a_cycle(scenario: Scenario) -> None:
    _, entry = due(scenario)
    zombie = scenario.claim_recheck(entry)
    scenario.advance(scenario.settings.lease + 1)
    successor = scenario.claim_recheck(entry)
    assert scenario.ledger.renew([zombie.lease, successor.lease]) == {entry}
    assert not scenario.ledger.settle_cycle(
        zombie.lease, status="escalated", score=0, failure=CycleFailure()
    )
    assert scenario.ledger.settle_cycle(successor.lease, status="completed", score=100)


def test_a_delayed_verification_claim_repeated_with_its_token_is_the_same(
    new_scenario: ScenarioMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given one allowed claim and a lost reply, then repeating the claim counts no lost worker."""
    scenario = new_scenario(max_claims=1)
    _, entry = due(scenario)
    monkeypatch.setattr("secrets.token_hex", lambda _bytes: "f00d")
    assert scenario.claim_recheck(entry) == scenario.claim_recheck(entry)


def test_a_delayed_verification_without_a_verdict_is_retried_and_then_escalated(
    scenario: Scenario,
) -> None:
    job_id, entry = due(scenario)
    for last in (False, False, True):
        result = scenario.ledger.requeue(
            scenario.claim_recheck(entry).lease,
            delay=5,
            detail="no pytest",
            counter="verifier_errors",
            limit=3,
            reason="tool_error",
        )
        if not last:
            assert result == EntryRequeued(delay=5)
            assert scenario.recheck_refusal(entry) == ClaimRefused("early")
            scenario.advance(6)
            assert scenario.sweep() == [Publication(entry, "verify", 5)]
    assert result == ClaimRefused("escalated", "tool_error")
    assert scenario.cycle(job_id).reason == "tool_error"
    assert scenario.view(job_id).state == "succeeded"


def test_delayed_verifications_wait_while_their_queue_is_paused(scenario: Scenario) -> None:
    _, entry = due(scenario)
    scenario.ledger.pause("queue:verify")
    assert scenario.recheck_refusal(entry).reason == "paused"
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


def test_cycles_over_the_cap_are_deleted(new_scenario: ScenarioMaker) -> None:
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
