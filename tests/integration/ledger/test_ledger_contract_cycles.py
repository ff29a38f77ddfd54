"""The ledger's contract, in memory and on Redis: the delayed verification of a cycle."""

from __future__ import annotations

import pytest
from support.ledger_stage import (
    Stage,
    StageMaker,
    answer,
    escalates,
    retries_at_once,
    retries_by_policy,
    succeeds,
)

from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.tasks.ports.ledger import ClaimRefused, CycleFailure, Entry, Publication

#: Seconds from the mandatory retry to its delayed verification.
AFTER = 600


@pytest.fixture
def play(stage: StageMaker) -> Stage:
    return stage()


def due(play: Stage) -> tuple[str, Entry]:
    """A repaired job whose delayed verification is due and was published."""
    job_id, entry = play.repaired()
    play.advance(AFTER + 1)
    assert play.swept() == {str(entry)}
    return job_id, entry


def test_the_mandatory_retry_s_verdict_starts_the_delay(play: Stage) -> None:
    job_id, entry = play.repaired()
    cycle = play.cycle(job_id)
    assert cycle.status is CycleStatus.PENDING_DELAYED_VERIFICATION
    assert cycle.immediate_attempt_id == f"{job_id}-2"
    assert cycle.immediate_at is not None
    assert cycle.ended_at is None
    play.advance(AFTER - 10)
    assert play.swept("verify") == set()
    assert play.refused_recheck(entry) == ClaimRefused("early")
    play.advance(11)
    assert play.sweep() == [Publication(entry, "verify", 5)]


def test_a_retry_that_fails_awaits_its_verification_just_the_same(play: Stage) -> None:
    job_id = play.submit()
    first = play.take(job_id)
    play.settle(first, retries_at_once(first))
    second = play.take(job_id, 2)
    play.settle(second, retries_by_policy(second))
    assert play.cycle(job_id).status is CycleStatus.PENDING_DELAYED_VERIFICATION


def test_a_delayed_verification_brings_the_best_answer(play: Stage) -> None:
    _, entry = due(play)
    taken = play.take_recheck(entry)
    assert taken.cycle_id == entry.cycle_id
    assert (taken.claim.plan.number, taken.claim.output) == (2, answer("repaired"))
    assert play.refused_recheck(entry) == ClaimRefused("held")


@pytest.mark.parametrize(
    ("status", "score", "failure"),
    [("completed", 100.0, None), ("escalated", 40.0, CycleFailure(detail="it scored 40"))],
)
def test_its_score_ends_the_cycle_and_never_changes_the_job(
    play: Stage, status: str, score: float, failure: CycleFailure | None
) -> None:
    job_id, entry = due(play)
    lease = play.take_recheck(entry).lease
    assert play.ledger.settle_cycle(lease, status=status, score=score, failure=failure)
    cycle = play.cycle(job_id)
    assert (cycle.status.value, cycle.reason) == (status, failure.detail if failure else "")
    assert cycle.ended_at is not None
    assert play.view(job_id).state == "succeeded"
    assert play.refused_recheck(entry) == ClaimRefused("finished")
    assert cycle.score == score
    # A repeat changes nothing.
    assert play.ledger.settle_cycle(lease, status=status, score=1)
    assert play.cycle(job_id) == cycle
    assert not play.ledger.settle_cycle(lease, status="cancelled", score=None)
    assert play.cycle(job_id).status.value == status


def test_a_verification_that_comes_while_the_job_is_still_repaired_is_postponed(
    play: Stage,
) -> None:
    """Given a job that goes on after its mandatory retry, then its cycle waits for the end."""
    job_id = play.submit()
    first = play.take(job_id)
    play.settle(first, retries_at_once(first))
    second = play.take(job_id, 2)
    play.settle(second, retries_by_policy(second))
    entry = Entry("cycle", job_id, 1, 1)
    play.advance(AFTER + 1)
    assert str(entry) in play.swept()
    assert play.refused_recheck(entry) == ClaimRefused("early")
    assert str(entry) not in play.swept()
    third = play.take(job_id, 3)
    play.settle(third, succeeds(third))
    assert play.refused_recheck(entry) == ClaimRefused("early")
    play.advance(play.settings.lease + 1)
    assert play.swept() == {str(entry)}
    assert play.take_recheck(entry).claim.plan.number == 3


def test_one_that_never_happened_is_escalated_as_stale(play: Stage) -> None:
    job_id, entry = play.repaired()
    play.advance(AFTER + play.settings.stale_after + 1)
    assert play.refused_recheck(entry) == ClaimRefused("escalated", "missing_delayed_verification")
    cycle = play.cycle(job_id)
    assert cycle.status is CycleStatus.ESCALATED
    assert cycle.reason == "missing_delayed_verification"
    assert play.view(job_id).state == "succeeded"


def test_one_that_loses_every_worker_is_escalated_as_worker_lost(play: Stage) -> None:
    job_id, entry = due(play)
    for _ in range(play.settings.max_claims):
        zombie = play.take_recheck(entry)
        assert play.expire_leases() == {str(entry)}
    assert play.refused_recheck(entry) == ClaimRefused("escalated", "worker_lost")
    assert play.cycle(job_id).reason == "worker_lost"
    assert not play.ledger.settle_cycle(zombie.lease, status="completed", score=100)
    assert play.cycle(job_id).status is CycleStatus.ESCALATED


def test_a_zombie_cannot_end_a_cycle_that_another_worker_has_in_hand(play: Stage) -> None:
    _, entry = due(play)
    zombie = play.take_recheck(entry)
    play.advance(play.settings.lease + 1)
    heir = play.take_recheck(entry)
    assert play.ledger.renew([zombie.lease, heir.lease]) == {entry}
    assert not play.ledger.settle_cycle(
        zombie.lease, status="escalated", score=0, failure=CycleFailure()
    )
    assert play.ledger.settle_cycle(heir.lease, status="completed", score=100)


def test_one_repeated_with_its_own_token_is_claimed_once(
    stage: StageMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a single allowed claim whose answer was lost, then repeating it loses no worker."""
    play = stage(max_claims=1)
    _, entry = due(play)
    monkeypatch.setattr("secrets.token_hex", lambda _bytes: "f00d")
    assert play.take_recheck(entry) == play.take_recheck(entry)


def test_one_without_a_verdict_is_run_again_and_then_escalated(play: Stage) -> None:
    job_id, entry = due(play)
    for last in (False, False, True):
        told = play.ledger.requeue(
            play.take_recheck(entry).lease,
            delay=5,
            detail="no pytest",
            counter="verifier_errors",
            limit=3,
            reason="tool_error",
        )
        if not last:
            assert told is None
            assert play.refused_recheck(entry) == ClaimRefused("early")
            play.advance(6)
            assert play.sweep() == [Publication(entry, "verify", 5)]
    assert told == ClaimRefused("escalated", "tool_error")
    assert play.cycle(job_id).reason == "tool_error"
    assert play.view(job_id).state == "succeeded"


def test_delayed_verifications_wait_behind_a_paused_queue(play: Stage) -> None:
    _, entry = due(play)
    play.ledger.pause("queue:verify")
    assert play.refused_recheck(entry) == ClaimRefused("paused")
    play.advance(play.settings.republish_after * 2)
    assert play.swept("verify") == set()
    play.ledger.resume("queue:verify")
    assert play.swept() == {str(entry)}
    play.take_recheck(entry)


def test_a_cycle_that_does_not_exist_is_gone(play: Stage) -> None:
    assert play.refused_recheck(Entry("cycle", "p00-unknown", 1, 1)) == ClaimRefused("gone")


@pytest.mark.parametrize("end", ["escalated", "cancelled"])
def test_open_cycles_end_with_a_job_that_did_not_succeed(play: Stage, end: str) -> None:
    job_id = play.submit()
    first = play.take(job_id)
    play.settle(first, retries_at_once(first))
    second = play.take(job_id, 2)
    play.settle(second, retries_by_policy(second))
    if end == "cancelled":
        play.ledger.cancel(job_id)
    else:
        third = play.take(job_id, 3)
        play.settle(third, escalates(third))
    assert play.cycle(job_id).status.value == end
    play.advance(AFTER + 1)
    assert play.swept("verify") == set()
    assert play.refused_recheck(Entry("cycle", job_id, 1, 1)) == ClaimRefused("finished")


def test_cycles_are_listed_newest_first_within_a_window(play: Stage) -> None:
    older, _ = play.repaired()
    play.advance(1000)
    newer, _ = play.repaired()
    listed = play.ledger.cycles(since=0, limit=10)
    assert [cycle.job_id for cycle in listed] == [newer, older]
    window = listed[0].created_at - 500
    assert [cycle.job_id for cycle in play.ledger.cycles(since=window, limit=10)] == [newer]
    assert [cycle.job_id for cycle in play.ledger.cycles(since=0, limit=1)] == [newer]


def test_no_more_cycles_are_kept_than_the_cap(stage: StageMaker) -> None:
    """Given a cap of two, when three cycles have ended, then the oldest record is deleted."""
    play = stage(cycles_cap=2)
    jobs = []
    for _ in range(3):
        job_id, entry = play.repaired()
        play.advance(AFTER + 1)
        lease = play.take_recheck(entry).lease
        play.ledger.settle_cycle(lease, status="completed", score=100)
        jobs.append(job_id)
    play.sweep()
    assert [cycle.job_id for cycle in play.ledger.cycles(since=0, limit=10)] == jobs[:0:-1]
    assert play.view(jobs[0]).cycles == ()
    assert len(play.view(jobs[1]).cycles) == 1
