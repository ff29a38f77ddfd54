"""The ledger's contract, in memory and on Redis: accepting, claiming, leases and pauses."""

from __future__ import annotations

import pytest
from support.ledger_stage import (
    Stage,
    StageMaker,
    answer,
    make_job,
    passed,
    retries_at_once,
    succeeds,
)

from mulligan.tasks.ports.ledger import (
    Accepted,
    Claim,
    ClaimRefused,
    Entry,
    KeyConflict,
    Publication,
    Submission,
)


@pytest.fixture
def play(stage: StageMaker) -> Stage:
    return stage()


@pytest.fixture
def one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call draws the same token: a call repeated because its answer was lost."""
    monkeypatch.setattr("secrets.token_hex", lambda _bytes: "f00d")


# -- accept -------------------------------------------------------------------------------------


def test_a_new_job_is_queued_and_its_first_attempt_is_to_be_published(play: Stage) -> None:
    job = make_job(priority=3, labels={"suite": "demo"})
    told = play.offer(job)
    assert isinstance(told, Accepted)
    assert told.publication == Publication(Entry("attempt", told.id, 1), "attempt", 3)
    view = play.view(told.id)
    assert (view.state, view.job, view.tokens, view.seconds) == ("queued", job, None, 0.0)
    assert [a.state for a in view.attempts] == ["queued"]
    assert view.best_attempt is None
    assert view.finished_at is None


def test_the_same_job_under_one_key_is_seen_and_stored_once(play: Stage) -> None:
    job = make_job(idempotency_key="once")
    first = play.offer(job)
    again = play.offer(job)
    assert again == Accepted(id=first.id, status="seen", publication=None)
    assert [view.id for view in play.ledger.jobs()] == [first.id]


def test_another_job_under_the_same_key_is_a_conflict_and_changes_nothing(play: Stage) -> None:
    first = play.offer(make_job(idempotency_key="once"))
    other = play.offer(make_job(idempotency_key="once", prompt="Something else."))
    assert other == KeyConflict(id=first.id)
    assert play.view(first.id).job.prompt == "Extract the person."


def test_a_conflict_in_a_batch_keeps_the_others(play: Stage) -> None:
    taken = play.offer(make_job(idempotency_key="taken"))
    jobs = [make_job(), make_job(idempotency_key="taken", prompt="Other."), make_job()]
    told = play.ledger.accept([Submission(id=play.new_id(job), job=job) for job in jobs])
    assert [type(each) for each in told] == [Accepted, KeyConflict, Accepted]
    assert {view.id for view in play.ledger.jobs()} == {taken.id, told[0].id, told[2].id}


def test_looking_for_conflicts_finds_them_and_writes_nothing(play: Stage) -> None:
    taken = play.offer(make_job(idempotency_key="taken"))
    same, other = make_job(idempotency_key="taken"), make_job(idempotency_key="taken", prompt="?")
    jobs = [same, make_job(idempotency_key="free"), make_job()]
    offered = [Submission(id=play.new_id(job), job=job) for job in jobs]
    assert play.ledger.conflicts(offered) == set()
    assert play.ledger.conflicts([Submission(id=taken.id, job=other), *offered[1:]]) == {taken.id}
    assert [view.id for view in play.ledger.jobs()] == [taken.id]


def test_a_job_that_cannot_be_serialised_leaves_nothing_behind(play: Stage) -> None:
    """Given a good and a bad job in one batch, then neither is stored, and no entry either."""
    good, bad = make_job(), make_job(runner={"kind": "scripted", "answers": [object()]})
    with pytest.raises(Exception, match="serialize"):
        play.ledger.accept([Submission(id=play.new_id(job), job=job) for job in (good, bad)])
    play.advance(play.settings.outbox_grace + 1)
    assert play.ledger.jobs() == []
    assert play.swept() == set()


# -- claim --------------------------------------------------------------------------------------


def test_a_claim_brings_everything_the_attempt_needs(play: Stage) -> None:
    job_id = play.submit()
    claim = play.take(job_id, worker="host:1")
    assert claim.job == make_job()
    assert (claim.plan.number, claim.plan.mode) == (1, "initial")
    assert (claim.output, claim.results, dict(claim.memory.counts)) == (None, {}, {})
    assert (claim.tokens_used, claim.seconds_used, claim.loops, claim.faults) == (0, 0.0, 0, 0)
    view, attempt = play.view(job_id), play.attempt(job_id)
    assert view.state == "running"
    assert (attempt.state, attempt.worker, attempt.claims) == ("running", "host:1", 1)
    assert attempt.started_at is not None


def test_an_attempt_in_hand_is_held(play: Stage) -> None:
    job_id = play.submit()
    play.take(job_id)
    assert play.refusal(job_id) == ClaimRefused("held")


@pytest.mark.parametrize(("job_id", "number"), [("p00-unknown", 1), (None, 2)])
def test_a_job_or_an_attempt_that_does_not_exist_is_gone(
    play: Stage, job_id: str | None, number: int
) -> None:
    known = play.submit()
    assert play.refusal(job_id or known, number) == ClaimRefused("gone")


def test_a_settled_attempt_and_a_finished_job_are_finished(play: Stage) -> None:
    job_id = play.submit()
    first = play.take(job_id)
    play.settle(first, retries_at_once(first))
    assert play.refusal(job_id, 1) == ClaimRefused("finished")
    play.ledger.cancel(job_id)
    assert play.refusal(job_id, 2) == ClaimRefused("finished")


def test_an_attempt_whose_answer_is_being_verified_is_left_alone(play: Stage) -> None:
    job_id = play.submit()
    play.hand_over(job_id)
    assert play.refusal(job_id) == ClaimRefused("verifying")


def test_a_message_that_comes_before_its_time_is_early(play: Stage) -> None:
    job_id = play.submit()
    play.ledger.requeue(play.take(job_id).lease, delay=100, detail="429")
    assert play.refusal(job_id) == ClaimRefused("early")
    play.advance(101)
    assert play.swept() == {f"a:{job_id}/1"}
    play.take(job_id)


def test_a_job_past_its_deadline_is_escalated_by_the_next_claim(play: Stage) -> None:
    job_id = play.submit(deadline=50)
    play.advance(51)
    assert play.refusal(job_id) == ClaimRefused("escalated", "deadline")
    view = play.view(job_id)
    assert (view.state, view.reason) == ("escalated", "deadline")
    assert play.refusal(job_id) == ClaimRefused("finished")
    assert play.swept("attempt") == set()


def test_an_attempt_that_loses_every_worker_is_escalated_as_worker_lost(play: Stage) -> None:
    job_id = play.submit()
    for _ in range(play.settings.max_claims):
        play.take(job_id)
        assert play.expire_leases() == {f"a:{job_id}/1"}
    assert play.refusal(job_id) == ClaimRefused("escalated", "worker_lost")
    view = play.view(job_id)
    assert (view.state, view.reason) == ("escalated", "worker_lost")
    assert view.detail == "3 workers were lost while running attempt 1"


@pytest.mark.usefixtures("one_token")
def test_a_claim_repeated_with_its_own_token_is_the_same_claim(play: Stage) -> None:
    job_id = play.submit()
    first, again = play.take(job_id), play.take(job_id)
    assert again == first
    assert play.attempt(job_id).claims == 1


# -- renewing and losing a lease ----------------------------------------------------------------


def test_a_renewed_lease_outlives_its_first_term(play: Stage) -> None:
    job_id = play.submit()
    claim = play.take(job_id)
    for _ in range(5):
        play.advance(play.settings.lease - 5)
        assert play.ledger.renew([claim.lease]) == set()
        assert play.swept() == set()
    assert play.refusal(job_id) == ClaimRefused("held")


def test_a_lease_is_lost_once_another_worker_has_taken_over(play: Stage) -> None:
    job_id, other_id = play.submit(), play.submit()
    slow, other = play.take(job_id), play.take(other_id)
    play.advance(play.settings.lease - 1)
    play.ledger.renew([other.lease])
    play.advance(2)
    swift = play.take(job_id)
    assert play.ledger.renew([slow.lease, other.lease]) == {slow.lease.entry}
    assert play.ledger.renew([swift.lease]) == set()


def test_no_lease_is_renewed_past_the_hard_limit(play: Stage) -> None:
    job_id = play.submit()
    claim = play.take(job_id)
    play.advance(play.settings.hard_limit + 1)
    assert play.ledger.renew([claim.lease]) == {claim.lease.entry}
    assert play.swept() == {f"a:{job_id}/1"}


def test_a_renewal_does_not_bring_back_a_lease_that_was_given_up(play: Stage) -> None:
    job_id = play.submit()
    claim = play.hand_over(job_id)
    assert play.ledger.renew([claim.lease]) == {claim.lease.entry}
    assert play.expire_leases() == {f"v:{job_id}/1/0", f"v:{job_id}/1/1"}


def test_a_zombie_cannot_write_once_the_sweep_took_its_lease(play: Stage) -> None:
    """Given an expired lease, when its worker wakes up, then nothing it says is heard."""
    job_id = play.submit()
    zombie = play.take(job_id)
    assert play.expire_leases() == {f"a:{job_id}/1"}
    assert play.view(job_id).state == "queued"
    assert play.ledger.store_output(zombie.lease, answer()) == ClaimRefused("lost")
    assert play.ledger.settle(zombie.lease, succeeds(zombie)) == ClaimRefused("lost")
    assert play.ledger.requeue(zombie.lease, delay=0, detail="sorry") == ClaimRefused("lost")
    assert play.take(job_id).output is None
    assert play.view(job_id).tokens is None


def test_a_zombie_cannot_write_over_the_worker_that_took_over(play: Stage) -> None:
    """Given an expired lease that no sweep has seen, when another worker claims, it owns it."""
    job_id = play.submit()
    zombie = play.take(job_id)
    play.advance(play.settings.lease + 1)
    heir = play.take(job_id)
    assert play.ledger.store_output(zombie.lease, answer("stale")) == ClaimRefused("lost")
    assert play.ledger.store_output(heir.lease, answer("fresh")) == []
    assert play.ledger.settle(zombie.lease, succeeds(zombie)) == ClaimRefused("lost")
    play.settle(heir, succeeds(heir))
    output = play.attempt(job_id).output
    assert output is not None
    assert output.text == "fresh"


def test_a_verification_s_zombie_cannot_store_its_result(play: Stage) -> None:
    job_id = play.submit()
    play.hand_over(job_id)
    zombie = play.take_check(job_id, 0)
    assert f"v:{job_id}/1/0" in play.expire_leases()
    assert play.ledger.store_result(zombie.lease, passed(), elapsed=1) == ClaimRefused("lost")
    assert play.ledger.requeue(zombie.lease, delay=0, detail="sorry") == ClaimRefused("lost")
    assert play.take_check(job_id, 0).results == {}


def test_the_worker_of_a_cancelled_job_is_a_zombie_too_once_its_lease_is_gone(play: Stage) -> None:
    job_id = play.submit()
    zombie = play.take(job_id)
    play.ledger.cancel(job_id)
    assert play.expire_leases() == set()
    assert play.ledger.settle(zombie.lease, succeeds(zombie)) == ClaimRefused("lost")
    assert play.view(job_id).best_attempt is None


def test_the_last_lost_worker_cannot_write_into_the_escalated_job(play: Stage) -> None:
    """Given three lost workers, when a fourth claim escalates, then the third is not heard."""
    job_id = play.submit()
    for _ in range(play.settings.max_claims):
        zombie = play.take(job_id)
        play.advance(play.settings.lease + 1)
    assert play.refusal(job_id) == ClaimRefused("escalated", "worker_lost")
    assert play.ledger.settle(zombie.lease, succeeds(zombie)) == ClaimRefused("lost")


# -- pauses -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pause", ["queue:attempt", "task_type:extract"])
def test_a_paused_attempt_is_parked_until_the_pause_is_lifted(play: Stage, pause: str) -> None:
    job_id = play.submit()
    play.ledger.pause(pause)
    assert play.refusal(job_id) == ClaimRefused("paused")
    view = play.view(job_id)
    assert (view.state, view.waiting_for) == ("waiting", "pause")
    play.advance(play.settings.republish_after * 100)
    assert play.swept("attempt") == set()  # parked: not even an empty queue brings it back
    play.ledger.resume(pause)
    assert play.sweep() == [Publication(Entry("attempt", job_id, 1), "attempt", 5)]
    assert isinstance(play.take(job_id), Claim)
    assert play.view(job_id).waiting_for is None


def test_a_pause_of_one_queue_or_type_leaves_the_others_alone(play: Stage) -> None:
    play.ledger.pause("queue:repair")
    play.ledger.pause("task_type:translate")
    assert play.ledger.paused() == ["queue:repair", "task_type:translate"]
    job_id = play.submit()
    claim = play.take(job_id)
    play.settle(claim, retries_at_once(claim))
    assert play.refusal(job_id, 2) == ClaimRefused("paused")
    assert play.refusal(play.submit(task_type="translate")) == ClaimRefused("paused")
    play.ledger.resume("queue:repair")
    assert play.ledger.paused() == ["task_type:translate"]
    assert play.swept() == {f"a:{job_id}/2"}


def test_a_stamp_that_comes_late_does_not_wake_parked_work(play: Stage) -> None:
    job_id = play.submit()
    play.ledger.pause("queue:attempt")
    play.refusal(job_id)
    play.ledger.stamp([Entry("attempt", job_id, 1)])
    play.advance(play.settings.republish_after * 2)
    assert play.swept("attempt") == set()
    play.ledger.resume("queue:attempt")
    assert play.swept() == {f"a:{job_id}/1"}


def test_verifications_wait_behind_a_paused_queue(play: Stage) -> None:
    job_id = play.submit()
    play.hand_over(job_id)
    play.ledger.pause("queue:verify")
    assert play.refused_check(job_id, 0) == ClaimRefused("paused")
    play.ledger.resume("queue:verify")
    assert play.swept() == {f"v:{job_id}/1/0"}
    play.take_check(job_id, 0)


def test_a_delay_goes_on_during_a_pause(play: Stage) -> None:
    """Given a back-off, when its message meets a pause too soon, then the back-off still counts."""
    job_id = play.submit()
    play.ledger.requeue(play.take(job_id).lease, delay=100, detail="429")
    play.ledger.pause("queue:attempt")
    assert play.refusal(job_id) == ClaimRefused("early")
    play.ledger.resume("queue:attempt")
    assert play.swept() == set()
    assert play.view(job_id).waiting_for == "delay"
    play.advance(101)
    assert play.swept() == {f"a:{job_id}/1"}


def test_parked_work_that_is_cancelled_does_not_come_back(play: Stage) -> None:
    job_id = play.submit()
    play.ledger.pause("queue:attempt")
    play.refusal(job_id)
    assert play.ledger.cancel(job_id) == "cancelled"
    play.ledger.resume("queue:attempt")
    assert play.swept("attempt") == set()


# -- cancelling ---------------------------------------------------------------------------------


def test_cancelling_ends_a_waiting_job_and_its_entry(play: Stage) -> None:
    job_id = play.submit()
    assert play.ledger.cancel(job_id, detail="not needed") == "cancelled"
    view = play.view(job_id)
    assert (view.state, view.reason, view.detail) == ("cancelled", "cancelled", "not needed")
    assert view.finished_at is not None
    play.advance(play.settings.outbox_grace + 1)
    assert play.swept("attempt") == set()


def test_cancelling_answers_with_the_state_of_a_job_that_has_ended(play: Stage) -> None:
    job_id = play.submit()
    claim = play.take(job_id)
    play.settle(claim, succeeds(claim))
    assert play.ledger.cancel(job_id) == "succeeded"
    assert play.ledger.cancel("p00-unknown") == "gone"
