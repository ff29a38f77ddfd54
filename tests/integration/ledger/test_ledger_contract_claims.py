"""The ledger's contract: accepting, claiming, leases and pauses."""

from __future__ import annotations

import pytest
from support.jobs import answer, make_job, passed
from support.ledger_scenario import Scenario, ScenarioMaker
from support.settlements import retries_immediately, succeeds

from mulligan.tasks.ports.ledger import (
    Accepted,
    Claim,
    ClaimRefused,
    Entry,
    KeyConflict,
    Publication,
    Submission,
)
from mulligan.workers.ledger import keys


@pytest.fixture
def repeated_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call uses the same token, as a call repeated after a lost reply does."""
    monkeypatch.setattr("secrets.token_hex", lambda _bytes: "f00d")


# -- accept ----------------------------------------------------------------------------------------


def test_a_new_job_is_queued_with_its_first_attempt_to_publish(scenario: Scenario) -> None:
    job = make_job(priority=3, labels={"suite": "demo"})
    accepted = scenario.accept(job)
    assert isinstance(accepted, Accepted)
    assert accepted.publication == Publication(Entry("attempt", accepted.id, 1), "attempt", 3)
    view = scenario.view(accepted.id)
    assert (view.state, view.job, view.tokens, view.seconds) == ("queued", job, None, 0.0)
    assert [a.state for a in view.attempts] == ["queued"]
    assert view.best_attempt is None
    assert view.finished_at is None


def test_the_same_job_under_one_key_is_seen_and_stored_once(scenario: Scenario) -> None:
    job = make_job(idempotency_key="once")
    first = scenario.accept(job)
    again = scenario.accept(job)
    assert again == Accepted(id=first.id, status="seen", publication=None)
    assert [view.id for view in scenario.ledger.jobs()] == [first.id]


def test_another_job_under_the_same_key_is_a_conflict_and_changes_nothing(
    scenario: Scenario,
) -> None:
    first = scenario.accept(make_job(idempotency_key="once"))
    other = scenario.accept(make_job(idempotency_key="once", prompt="Something else."))
    assert other == KeyConflict(id=first.id)
    assert scenario.view(first.id).job.prompt == "Extract the person."


def test_a_conflict_in_a_batch_keeps_the_others(scenario: Scenario) -> None:
    taken = scenario.accept(make_job(idempotency_key="taken"))
    jobs = [make_job(), make_job(idempotency_key="taken", prompt="Other."), make_job()]
    results = scenario.ledger.accept([Submission(id=scenario.new_id(job), job=job) for job in jobs])
    assert [type(each) for each in results] == [Accepted, KeyConflict, Accepted]
    assert {view.id for view in scenario.ledger.jobs()} == {taken.id, results[0].id, results[2].id}


def test_checking_for_conflicts_writes_nothing(scenario: Scenario) -> None:
    taken = scenario.accept(make_job(idempotency_key="taken"))
    same, other = make_job(idempotency_key="taken"), make_job(idempotency_key="taken", prompt="?")
    jobs = [same, make_job(idempotency_key="free"), make_job()]
    offered = [Submission(id=scenario.new_id(job), job=job) for job in jobs]
    assert scenario.ledger.conflicts(offered) == set()
    assert scenario.ledger.conflicts([Submission(id=taken.id, job=other), *offered[1:]]) == {
        taken.id
    }
    assert [view.id for view in scenario.ledger.jobs()] == [taken.id]


def test_a_job_that_cannot_be_serialised_leaves_nothing_behind(scenario: Scenario) -> None:
    """Given a good and a bad job in one batch, then neither is stored or published."""
    good, bad = make_job(), make_job(runner={"kind": "scripted", "answers": [object()]})
    with pytest.raises(Exception, match="serialize"):
        scenario.ledger.accept(
            [Submission(id=scenario.new_id(job), job=job) for job in (good, bad)]
        )
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.ledger.jobs() == []
    assert scenario.swept_entries() == set()


# -- claim -----------------------------------------------------------------------------------------


def test_a_claim_has_everything_the_attempt_needs(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id, worker="host:1")
    assert claim.job == make_job()
    assert (claim.plan.number, claim.plan.mode) == (1, "initial")
    assert (claim.output, claim.results, dict(claim.memory.counts)) == (None, {}, {})
    assert (claim.tokens_used, claim.seconds_used, claim.loops, claim.faults) == (0, 0.0, 0, 0)
    view, attempt = scenario.view(job_id), scenario.attempt(job_id)
    assert view.state == "running"
    assert (attempt.state, attempt.worker, attempt.claims) == ("running", "host:1", 1)
    assert attempt.started_at is not None


def test_a_claimed_attempt_is_held(scenario: Scenario) -> None:
    job_id = scenario.submit()
    scenario.claim(job_id)
    assert scenario.refusal(job_id) == ClaimRefused("held")


@pytest.mark.parametrize(("job_id", "number"), [("p00-unknown", 1), (None, 2)])
def test_a_job_or_an_attempt_that_does_not_exist_is_gone(
    scenario: Scenario, job_id: str | None, number: int
) -> None:
    known = scenario.submit()
    assert scenario.refusal(job_id or known, number) == ClaimRefused("gone")


def test_a_settled_attempt_and_a_finished_job_are_finished(scenario: Scenario) -> None:
    job_id = scenario.submit()
    first = scenario.claim(job_id)
    scenario.settle(first, retries_immediately(first))
    assert scenario.refusal(job_id, 1) == ClaimRefused("finished")
    scenario.ledger.cancel(job_id)
    assert scenario.refusal(job_id, 2) == ClaimRefused("finished")


def test_an_attempt_whose_answer_is_being_verified_is_left_alone(scenario: Scenario) -> None:
    job_id = scenario.submit()
    scenario.hand_over(job_id)
    assert scenario.refusal(job_id) == ClaimRefused("verifying")


def test_a_message_before_its_due_time_is_early(scenario: Scenario) -> None:
    job_id = scenario.submit()
    scenario.ledger.requeue(scenario.claim(job_id).lease, delay=100, detail="429")
    assert scenario.refusal(job_id) == ClaimRefused("early")
    scenario.advance(101)
    assert scenario.swept_entries() == {f"a:{job_id}/1"}
    scenario.claim(job_id)


def test_a_job_past_its_deadline_is_escalated_by_the_next_claim(scenario: Scenario) -> None:
    job_id = scenario.submit(deadline=50)
    scenario.advance(51)
    assert scenario.refusal(job_id) == ClaimRefused("escalated", "deadline")
    view = scenario.view(job_id)
    assert (view.state, view.reason) == ("escalated", "deadline")
    assert scenario.refusal(job_id) == ClaimRefused("finished")
    assert scenario.swept_entries("attempt") == set()


def test_an_attempt_that_loses_every_worker_is_escalated_as_worker_lost(scenario: Scenario) -> None:
    job_id = scenario.submit()
    for _ in range(scenario.settings.max_claims):
        scenario.claim(job_id)
        assert scenario.expire_leases() == {f"a:{job_id}/1"}
    assert scenario.refusal(job_id) == ClaimRefused("escalated", "worker_lost")
    view = scenario.view(job_id)
    assert (view.state, view.reason) == ("escalated", "worker_lost")
    assert view.detail == "3 workers were lost while running attempt 1"


@pytest.mark.usefixtures("repeated_token")
def test_a_claim_repeated_with_its_token_is_the_same(scenario: Scenario) -> None:
    job_id = scenario.submit()
    first, again = scenario.claim(job_id), scenario.claim(job_id)
    assert again == first
    assert scenario.attempt(job_id).claims == 1


# -- renewing and losing a lease -------------------------------------------------------------------


def test_a_renewed_lease_outlives_its_first_term(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    for _ in range(5):
        scenario.advance(scenario.settings.lease - 5)
        assert scenario.ledger.renew([claim.lease]) == set()
        assert scenario.swept_entries() == set()
    assert scenario.refusal(job_id) == ClaimRefused("held")


def test_a_lease_is_lost_once_another_worker_has_taken_over(scenario: Scenario) -> None:
    job_id, other_id = scenario.submit(), scenario.submit()
    slow, other = scenario.claim(job_id), scenario.claim(other_id)
    scenario.advance(scenario.settings.lease - 1)
    scenario.ledger.renew([other.lease])
    scenario.advance(2)
    successor = scenario.claim(job_id)
    assert scenario.ledger.renew([slow.lease, other.lease]) == {slow.lease.entry}
    assert scenario.ledger.renew([successor.lease]) == set()


def test_no_lease_is_renewed_past_the_hard_limit(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    scenario.advance(scenario.settings.hard_limit + 1)
    assert scenario.ledger.renew([claim.lease]) == {claim.lease.entry}
    assert scenario.swept_entries() == {f"a:{job_id}/1"}


def test_a_renewal_does_not_restore_a_released_lease(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.hand_over(job_id)
    assert scenario.ledger.renew([claim.lease]) == {claim.lease.entry}
    assert scenario.expire_leases() == {f"v:{job_id}/1/0", f"v:{job_id}/1/1"}


def test_a_worker_cannot_write_after_the_sweep_took_its_lease(scenario: Scenario) -> None:
    """Given an expired lease, when its worker wakes up, then every write is refused."""
    job_id = scenario.submit()
    zombie = scenario.claim(job_id)
    assert scenario.expire_leases() == {f"a:{job_id}/1"}
    assert scenario.view(job_id).state == "queued"
    assert scenario.ledger.store_output(zombie.lease, answer()) == ClaimRefused("lost")
    assert scenario.ledger.settle(zombie.lease, succeeds(zombie)) == ClaimRefused("lost")
    assert scenario.ledger.requeue(zombie.lease, delay=0, detail="sorry") == ClaimRefused("lost")
    assert scenario.claim(job_id).output is None
    assert scenario.view(job_id).tokens is None


def test_a_worker_cannot_overwrite_its_successor(scenario: Scenario) -> None:
    """Given an expired lease before any sweep, when another worker claims, then it owns the
    attempt."""
    job_id = scenario.submit()
    zombie = scenario.claim(job_id)
    scenario.advance(scenario.settings.lease + 1)
    successor = scenario.claim(job_id)
    assert scenario.ledger.store_output(zombie.lease, answer("stale")) == ClaimRefused("lost")
    assert scenario.ledger.store_output(successor.lease, answer("fresh")) == []
    assert scenario.ledger.settle(zombie.lease, succeeds(zombie)) == ClaimRefused("lost")
    scenario.settle(successor, succeeds(successor))
    output = scenario.attempt(job_id).output
    assert output is not None
    assert output.text == "fresh"


def test_a_verification_without_its_lease_cannot_store_a_result(scenario: Scenario) -> None:
    job_id = scenario.submit()
    scenario.hand_over(job_id)
    zombie = scenario.claim_verification(job_id, 0)
    assert f"v:{job_id}/1/0" in scenario.expire_leases()
    assert scenario.ledger.store_result(zombie.lease, passed(), elapsed=1) == ClaimRefused("lost")
    assert scenario.ledger.requeue(zombie.lease, delay=0, detail="sorry") == ClaimRefused("lost")
    assert scenario.claim_verification(job_id, 0).results == {}


def test_the_worker_of_a_cancelled_job_cannot_write_without_its_lease(
    scenario: Scenario,
) -> None:
    job_id = scenario.submit()
    zombie = scenario.claim(job_id)
    scenario.ledger.cancel(job_id)
    assert scenario.expire_leases() == set()
    assert scenario.ledger.settle(zombie.lease, succeeds(zombie)) == ClaimRefused("lost")
    assert scenario.view(job_id).best_attempt is None


def test_the_last_lost_worker_cannot_write_into_the_escalated_job(scenario: Scenario) -> None:
    """Given three lost workers, when a fourth claim escalates, then the third cannot write."""
    job_id = scenario.submit()
    for _ in range(scenario.settings.max_claims):
        zombie = scenario.claim(job_id)
        scenario.advance(scenario.settings.lease + 1)
    assert scenario.refusal(job_id) == ClaimRefused("escalated", "worker_lost")
    assert scenario.ledger.settle(zombie.lease, succeeds(zombie)) == ClaimRefused("lost")


# -- pauses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pause", ["queue:attempt", "task_type:extract"])
def test_a_paused_attempt_is_parked_until_the_pause_is_lifted(
    scenario: Scenario, pause: str
) -> None:
    job_id = scenario.submit()
    scenario.ledger.pause(pause)
    assert scenario.refusal(job_id).reason == "paused"
    view = scenario.view(job_id)
    assert (view.state, view.waiting_for) == ("waiting", "pause")
    scenario.advance(scenario.settings.republish_after * 100)
    assert scenario.swept_entries("attempt") == set()  # parked: an empty queue does not release it
    scenario.ledger.resume(pause)
    assert scenario.sweep() == [Publication(Entry("attempt", job_id, 1), "attempt", 5)]
    assert isinstance(scenario.claim(job_id), Claim)
    assert scenario.view(job_id).waiting_for is None


def test_a_pause_affects_only_its_queue_or_task_type(scenario: Scenario) -> None:
    scenario.ledger.pause("queue:repair")
    scenario.ledger.pause("task_type:translate")
    assert scenario.ledger.paused() == ["queue:repair", "task_type:translate"]
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    scenario.settle(claim, retries_immediately(claim))
    assert scenario.refusal(job_id, 2).reason == "paused"
    assert scenario.refusal(scenario.submit(task_type="translate")).reason == "paused"
    scenario.ledger.resume("queue:repair")
    assert scenario.ledger.paused() == ["task_type:translate"]
    assert scenario.swept_entries() == {f"a:{job_id}/2"}


def test_every_partition_follows_the_pauses_of_the_first(new_scenario: ScenarioMaker) -> None:
    """Given commands that reached some partitions only, then the sweep finishes them."""
    scenario = new_scenario(partitions=3)
    ledger, prefixes = scenario.ledger, keys.partition_prefixes(scenario.settings.key_prefix, 3)
    ledger.calls.run("HSET", keys.paused(prefixes[0]), "queue:attempt", 1)
    ledger.calls.run("HSET", keys.paused(prefixes[2]), "queue:repair", 2)
    scenario.sweep()
    for prefix in prefixes:
        assert ledger.calls.run("HGETALL", keys.paused(prefix)) == {"queue:attempt": "1"}
    assert ledger.paused() == ["queue:attempt"]
    assert ledger.resume("queue:attempt")
    assert not ledger.resume("queue:attempt")


def test_a_pause_that_is_newer_than_what_the_sweep_read_is_kept(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = new_scenario(partitions=2)
    ledger, prefixes = scenario.ledger, keys.partition_prefixes(scenario.settings.key_prefix, 2)
    ledger.pause("queue:attempt")
    seen = {"queue:attempt": "of an earlier pause", "queue:verify": "ended meanwhile"}
    ledger.calls.one("copy_pauses", prefixes[1], seen=seen, pauses={"queue:verify": "new"})
    assert ledger.calls.run("HKEYS", keys.paused(prefixes[1])) == ["queue:attempt"]


def test_a_late_stamp_does_not_release_parked_work(scenario: Scenario) -> None:
    job_id = scenario.submit()
    scenario.ledger.pause("queue:attempt")
    scenario.refusal(job_id)
    scenario.ledger.stamp([Entry("attempt", job_id, 1)])
    scenario.advance(scenario.settings.republish_after * 2)
    assert scenario.swept_entries("attempt") == set()
    scenario.ledger.resume("queue:attempt")
    assert scenario.swept_entries() == {f"a:{job_id}/1"}


def test_an_outage_shorter_than_a_lease_costs_nobody_its_lease(scenario: Scenario) -> None:
    """Given a lease that was last renewed some time before Redis went away."""
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    scenario.sweep()
    scenario.advance(scenario.settings.lease / 3)
    scenario.advance(scenario.settings.lease * 0.7, away=True)
    assert scenario.swept_entries() == set()
    stored = scenario.ledger.store_output(claim.lease, answer())
    assert not isinstance(stored, ClaimRefused)


def test_the_verifications_of_a_cancelled_job_leave_their_parking_place(scenario: Scenario) -> None:
    scenario.ledger.pause("queue:verify")
    job_id = scenario.submit()
    scenario.hand_over(job_id)
    for index in (0, 1):
        scenario.verification_refusal(job_id, index)
    scenario.ledger.cancel(job_id)
    assert scenario.ledger.parked() == []
    scenario.ledger.resume("queue:verify")
    assert scenario.expire_leases() == set()


def test_verifications_wait_while_their_queue_is_paused(scenario: Scenario) -> None:
    job_id = scenario.submit()
    scenario.hand_over(job_id)
    scenario.ledger.pause("queue:verify")
    assert scenario.verification_refusal(job_id, 0).reason == "paused"
    scenario.ledger.resume("queue:verify")
    assert scenario.swept_entries() == {f"v:{job_id}/1/0"}
    scenario.claim_verification(job_id, 0)


def test_a_delay_continues_during_a_pause(scenario: Scenario) -> None:
    """Given a delay, when its message arrives early during a pause, then the delay still counts."""
    job_id = scenario.submit()
    scenario.ledger.requeue(scenario.claim(job_id).lease, delay=100, detail="429")
    scenario.ledger.pause("queue:attempt")
    assert scenario.refusal(job_id) == ClaimRefused("early")
    scenario.ledger.resume("queue:attempt")
    assert scenario.swept_entries() == set()
    assert scenario.view(job_id).waiting_for == "delay"
    scenario.advance(101)
    assert scenario.swept_entries() == {f"a:{job_id}/1"}


def test_parked_work_that_is_cancelled_does_not_come_back(scenario: Scenario) -> None:
    job_id = scenario.submit()
    scenario.ledger.pause("queue:attempt")
    scenario.refusal(job_id)
    assert scenario.ledger.cancel(job_id) == "cancelled"
    scenario.ledger.resume("queue:attempt")
    assert scenario.swept_entries("attempt") == set()


# -- cancelling ------------------------------------------------------------------------------------


def test_cancelling_ends_a_waiting_job_and_its_entry(scenario: Scenario) -> None:
    job_id = scenario.submit()
    assert scenario.ledger.cancel(job_id, detail="not needed") == "cancelled"
    view = scenario.view(job_id)
    assert (view.state, view.reason, view.detail) == ("cancelled", "cancelled", "not needed")
    assert view.finished_at is not None
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.swept_entries("attempt") == set()


def test_cancelling_a_finished_job_returns_its_state(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    scenario.settle(claim, succeeds(claim))
    assert scenario.ledger.cancel(job_id) == "succeeded"
    assert scenario.ledger.cancel("p00-unknown") == "gone"


# -- a time without sweeps -------------------------------------------------------------------------


def test_leases_are_extended_once_after_a_time_without_sweeps(scenario: Scenario) -> None:
    """Given attempts in flight and a Redis that is away for longer than a lease, when it is back,
    then no attempt is taken from its worker until one more lease has passed."""
    jobs = [scenario.submit() for _ in range(3)]
    claims = [scenario.claim(job_id) for job_id in jobs]
    scenario.sweep()
    scenario.advance(10 * scenario.settings.lease, away=True)
    assert scenario.refusal(jobs[0]) == ClaimRefused("held")  # also before the first sweep
    assert scenario.swept_entries() == set()
    assert scenario.ledger.renew([claims[0].lease]) == set()
    answered = scenario.ledger.store_output(claims[1].lease, answer("paid"))
    assert answered == []
    scenario.advance(scenario.settings.lease - 1)
    scenario.ledger.renew([claims[0].lease])
    scenario.advance(2)
    # Only once: the two workers that did not renew are lost.
    assert scenario.swept_entries() == {f"a:{job_id}/1" for job_id in jobs[1:]}
    assert scenario.refusal(jobs[0]) == ClaimRefused("held")


def test_sweeps_that_are_always_late_still_find_lost_workers(scenario: Scenario) -> None:
    """Given a lease shorter than the time between two sweeps, then it is extended a few times."""
    job_id = scenario.submit()
    scenario.claim(job_id)
    found = []
    for _ in range(4):
        scenario.advance(scenario.settings.lease + 1, away=True)
        found.append(scenario.swept_entries())
    assert found == [set(), set(), set(), {f"a:{job_id}/1"}]


def test_the_first_sweep_of_a_ledger_extends_leases_too(scenario: Scenario) -> None:
    """Given a Redis that was away before anyone swept, then its workers get one more lease."""
    job_id = scenario.submit()
    scenario.claim(job_id)
    scenario.advance(scenario.settings.lease + 1, away=True)
    assert scenario.refusal(job_id) == ClaimRefused("held")
    assert scenario.swept_entries() == set()
    scenario.advance(scenario.settings.lease + 1)
    assert scenario.swept_entries() == {f"a:{job_id}/1"}
