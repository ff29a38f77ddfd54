"""The ledger's contract, in memory and on Redis: work done elsewhere, in its subject's lane."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import redis
from support.ledger_stage import (
    Stage,
    StageMaker,
    answer,
    cut_short,
    passed,
    retries_at_once,
    retries_by_policy,
    succeeds,
)

from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.policies.jobs.job import Output, Usage
from mulligan.tasks.ports.ledger import (
    Accepted,
    Claim,
    ClaimRefused,
    CycleClaim,
    CycleFailure,
    Entry,
    Lease,
    NextEntry,
    SessionNote,
    Settlement,
)
from mulligan.workers.ledger import job_ids, keys, rows

#: How long a subject may keep what it claimed, and how long a delayed verification waits.
HELD = 1800.0
AFTER = 600


@pytest.fixture
def play(stage: StageMaker) -> Stage:
    return stage()


def take(play: Stage, job_id: str, number: int = 1) -> Claim:
    claim = play.ledger.claim(Entry("attempt", job_id, number), worker="external", lease=HELD)
    assert isinstance(claim, Claim), claim
    return claim


def verified_in_lane(settlement: Settlement) -> Settlement:
    return replace(settlement, verify_on="lane")


def failed(play: Stage, **fields: Any) -> str:
    """A job whose first attempt scored low: its mandatory retry waits."""
    job_id = play.submit_elsewhere(**fields)
    claim = take(play, job_id)
    play.settle(claim, verified_in_lane(retries_at_once(claim)))
    return job_id


def repaired(play: Stage, **fields: Any) -> tuple[str, Entry]:
    """A job that succeeded by its mandatory retry, and its delayed verification."""
    job_id = failed(play, **fields)
    claim = take(play, job_id, 2)
    play.ledger.store_output(claim.lease, answer("went"))
    play.settle(claim, verified_in_lane(succeeds(claim)))
    return job_id, Entry("cycle", job_id, 1, 1)


# -- waiting in a lane -----------------------------------------------------------------------------


def test_nothing_of_a_lane_goes_to_a_queue(play: Stage) -> None:
    job = play.view(play.submit_elsewhere()).job
    told = play.offer(job)
    assert isinstance(told, Accepted)
    assert told.publication is None
    play.advance(play.settings.republish_after * 2)
    assert play.swept("attempt", "repair", "verify") == set()
    assert play.waiting() is not None


def test_the_mandatory_retry_comes_first_then_what_is_due(play: Stage) -> None:
    """Given one of each, whenever it came: retry, delayed verification, policy retry, new work."""
    new = play.submit_elsewhere()
    _, check = repaired(play)
    play.advance(AFTER + 1)
    again = play.submit_elsewhere()
    claim = take(play, again)
    play.settle(claim, retries_by_policy(claim))
    retry = failed(play)
    assert play.waiting() == f"a:{retry}/2"
    done = take(play, retry, 2)
    play.settle(done, succeeds(done, cycle_done=None))
    assert play.waiting() == str(check)
    taken = play.take_recheck(check)
    assert play.ledger.settle_cycle(taken.lease, status="completed", score=90)
    assert play.waiting() == f"a:{again}/2"
    done = take(play, again, 2)
    play.settle(done, succeeds(done))
    assert play.waiting() == f"a:{new}/1"


def test_a_retry_that_is_not_due_is_not_offered_and_hides_nothing(play: Stage) -> None:
    later = play.submit_elsewhere()
    claim = take(play, later)
    play.settle(claim, retries_by_policy(claim, delay=50))
    new = play.submit_elsewhere()
    assert play.view(later).waiting_for == "delay"
    assert play.waiting() == f"a:{new}/1"
    play.advance(51)
    assert play.waiting() == f"a:{later}/2"


@pytest.mark.parametrize(
    ("subject", "tenant"), [("noa", None), ("mia", "school"), ("noa", "school")]
)
def test_other_subjects_and_other_tenants_have_nothing(
    play: Stage, subject: str, tenant: str | None
) -> None:
    failed(play)
    assert play.waiting() is not None
    assert play.waiting(subject, tenant=tenant) is None


def test_a_tenant_s_subject_is_its_own(play: Stage) -> None:
    job_id = failed(play, labels={"tenant": "school"})
    assert play.waiting() is None
    assert play.waiting(tenant="school") == f"a:{job_id}/2"
    assert play.view(job_id).tenant == "school"


# -- holding ---------------------------------------------------------------------------------------


def test_what_is_held_is_offered_again_with_its_token_until_it_expires(play: Stage) -> None:
    job_id = failed(play)
    first = take(play, job_id, 2)
    for _ in range(2):
        again = play.ledger.next_of("mia")
        assert again is not None
        assert (again.entry, again.token) == (first.lease.entry, first.lease.token)
        assert again.expires_at is not None
        play.advance(HELD / 2 - 10)
    play.advance(30)
    assert play.waiting() is None
    play.sweep()
    assert play.ledger.next_of("mia") == NextEntry(entry=first.lease.entry)
    assert play.ledger.hold(first.lease) == ClaimRefused("lost")
    assert take(play, job_id, 2).lease.token != first.lease.token


def test_an_expired_lease_is_refused_before_any_sweep(play: Stage) -> None:
    claim = take(play, failed(play), 2)
    play.advance(HELD + 1)
    assert play.ledger.hold(claim.lease) == ClaimRefused("lost")


def test_holding_tells_what_is_needed_to_settle(play: Stage) -> None:
    job_id = failed(play)
    claim = take(play, job_id, 2)
    held = play.ledger.hold(claim.lease)
    assert held == claim
    assert isinstance(held, Claim)
    assert held.plan.mode == "immediate_retry"
    assert play.ledger.hold(Lease(claim.lease.entry, "0123")) == ClaimRefused("lost")
    assert play.ledger.hold(Lease(Entry("attempt", job_id, 9), "0123")) == ClaimRefused("gone")
    play.settle(claim, succeeds(claim))
    assert play.ledger.hold(claim.lease) == ClaimRefused("stored")
    assert play.ledger.hold(Lease(claim.lease.entry, "0123")) == ClaimRefused("finished")


def test_an_answer_under_verification_is_no_longer_the_subject_s(play: Stage) -> None:
    job_id = play.submit_elsewhere()
    claim = take(play, job_id)
    play.ledger.store_output(claim.lease, answer(), verifications=[0])
    assert play.ledger.hold(claim.lease) == ClaimRefused("verifying")
    assert play.waiting() is None
    last = play.ledger.store_result(play.take_check(job_id, 0).lease, passed(), elapsed=0)
    assert isinstance(last, Claim)
    play.settle(last, succeeds(last))
    assert play.ledger.hold(claim.lease) == ClaimRefused("finished")


def test_an_answer_that_is_stored_is_never_asked_of_the_subject_again(play: Stage) -> None:
    """Its reporter died before the verdict: a worker settles it, without the subject."""
    job_id = play.submit_elsewhere()
    claim = take(play, job_id)
    play.ledger.store_output(claim.lease, answer("kept"))
    play.advance(HELD + 1)
    assert play.swept() == {f"a:{job_id}/1"}
    assert play.waiting() is None
    assert play.take(job_id).output == answer("kept")


def test_what_is_held_is_not_forgotten_for_an_attempt_brought_along(play: Stage) -> None:
    """Given a retry in hand, when its subject records another first attempt meanwhile."""
    retry = failed(play)
    held = take(play, retry, 2)
    other = play.submit_elsewhere()
    brought = take(play, other)
    play.settle(brought, verified_in_lane(retries_at_once(brought)))
    again = play.ledger.next_of("mia")
    assert again is not None
    assert (again.entry, again.token) == (held.lease.entry, held.lease.token)
    play.settle(held, succeeds(held))
    assert play.waiting() == f"a:{other}/2"


def test_the_end_of_another_job_takes_nothing_out_of_a_subject_s_hand(play: Stage) -> None:
    held = take(play, failed(play), 2)
    play.ledger.cancel(play.submit_elsewhere())
    again = play.ledger.next_of("mia")
    assert again is not None
    assert again.token == held.lease.token


def test_a_cancelled_job_leaves_its_lane(play: Stage) -> None:
    job_id = failed(play)
    claim = take(play, job_id, 2)
    assert play.ledger.cancel(job_id) == "cancelled"
    assert play.waiting() is None
    assert play.cycle(job_id).status is CycleStatus.CANCELLED
    play.settle(claim, succeeds(claim))
    assert play.view(job_id).state == "cancelled"


def test_an_attempt_given_back_waits_in_its_lane_again(play: Stage) -> None:
    job_id = failed(play)
    claim = take(play, job_id, 2)
    play.ledger.requeue(claim.lease, delay=10, detail="no verdict")
    assert play.waiting() is None
    play.advance(11)
    assert play.waiting() == f"a:{job_id}/2"
    assert play.swept("repair") == set()


# -- pauses, deadlines -----------------------------------------------------------------------------


@pytest.mark.parametrize("pause", ["queue:repair", "task_type:extract"])
def test_a_pause_holds_a_lane_and_lets_it_go(play: Stage, pause: str) -> None:
    job_id = failed(play)
    play.ledger.pause(pause)
    assert play.refusal(job_id, 2) == ClaimRefused("paused")
    assert (play.view(job_id).state, play.view(job_id).waiting_for) == ("waiting", "pause")
    play.ledger.resume(pause)
    assert play.swept() == set()
    assert play.waiting() == f"a:{job_id}/2"
    take(play, job_id, 2)


def test_what_a_pause_holds_back_hides_nothing_else(play: Stage) -> None:
    first = [
        failed(play, task_type="grammar") for _ in range(60)
    ]  # more than are looked at at once
    other = failed(play, task_type="spelling")
    new = play.submit_elsewhere(task_type="reading")
    play.ledger.pause("task_type:grammar")
    assert play.waiting() == f"a:{other}/2"
    assert {(play.view(each).state, play.view(each).waiting_for) for each in first} == {
        ("waiting", "pause")
    }
    play.ledger.pause("queue:repair")
    assert play.waiting() == f"a:{new}/1"
    play.ledger.pause("queue:attempt")
    assert play.waiting() is None
    for pause in ("queue:repair", "queue:attempt", "task_type:grammar"):
        play.ledger.resume(pause)
    assert play.waiting() in {f"a:{each}/2" for each in first}


def test_a_quota_holds_a_tenant_s_attempts_back_and_no_delayed_verification(
    stage: StageMaker,
) -> None:
    play = stage(quotas={"school": {"tokens_per_day": 100}})
    mine = {"labels": {"tenant": "school"}}
    _, check = repaired(play, **mine)
    play.advance(AFTER + 1)
    retry = failed(play, **mine)
    assert play.waiting(tenant="school") == f"a:{retry}/2"
    spender = play.submit_elsewhere(subject="noa", **mine)
    claim = take(play, spender)
    play.ledger.store_output(claim.lease, answer(tokens=100))
    play.settle(claim, succeeds(claim))
    assert play.waiting(tenant="school") == str(check)
    assert play.view(retry).waiting_for == "budget"


def test_a_retry_that_nobody_comes_for_ends_by_its_deadline(play: Stage) -> None:
    job_id = failed(play, deadline=1000)
    play.advance(990)
    play.sweep()
    assert play.view(job_id).state == "queued"
    play.advance(11)
    play.sweep()
    view = play.view(job_id)
    assert (view.state, view.reason) == ("escalated", "deadline")
    assert view.cycles[0].status is CycleStatus.ESCALATED
    assert play.waiting() is None


def test_what_is_in_hand_at_the_deadline_may_still_come_back(play: Stage) -> None:
    job_id = failed(play, deadline=1000)
    claim = take(play, job_id, 2)
    play.advance(1200)
    play.sweep()
    assert play.view(job_id).state == "running"
    play.settle(claim, succeeds(claim))
    assert play.view(job_id).state == "succeeded"


def test_what_is_not_brought_back_after_the_deadline_has_ended(play: Stage) -> None:
    job_id = failed(play, deadline=1000)
    take(play, job_id, 2)
    play.advance(1001)
    play.sweep()
    play.advance(HELD)
    play.sweep()
    assert play.view(job_id).reason == "deadline"


# -- delayed verification in a lane ----------------------------------------------------------------


def test_a_delayed_verification_waits_for_its_subject(play: Stage) -> None:
    job_id, entry = repaired(play)
    assert play.waiting() is None
    assert play.refused_recheck(entry) == ClaimRefused("early")
    play.advance(AFTER + 1)
    assert play.swept("verify", "attempt") == set()
    assert play.ledger.next_of("mia") == NextEntry(entry=entry)
    taken = play.ledger.claim_cycle(entry, worker="external", lease=HELD)
    assert isinstance(taken, CycleClaim)
    assert (taken.cycle_id, taken.claim.output) == (entry.cycle_id, answer("went"))
    again = play.ledger.next_of("mia")
    assert again is not None
    assert again.token == taken.lease.token
    assert play.ledger.hold(taken.lease) == taken
    assert play.ledger.settle_cycle(taken.lease, status="completed", score=90)
    assert play.cycle(job_id).status is CycleStatus.COMPLETED
    assert play.waiting() is None
    assert play.ledger.hold(taken.lease) == ClaimRefused("stored")
    assert play.ledger.hold(replace(taken.lease, token="0123")) == ClaimRefused("finished")


def test_one_that_does_not_count_is_counted_and_may_be_done_again(play: Stage) -> None:
    _, entry = repaired(play)
    play.advance(AFTER + 1)
    taken = play.take_recheck(entry)
    for reason in ("missing_prompt_context", "duplicate_task_family", "missing_prompt_context"):
        assert play.ledger.refuse_verification(taken.lease, reason=reason)
    kept = play.cycle_row(entry.cycle_id)
    assert json.loads(kept["delayed_invalid"]) == {
        "missing_prompt_context": 2,
        "duplicate_task_family": 1,
    }
    assert "delayed_valid" not in kept
    assert not play.ledger.refuse_verification(Lease(entry, "0123"), reason="x")
    assert isinstance(play.ledger.hold(taken.lease), CycleClaim)
    assert play.ledger.settle_cycle(taken.lease, status="completed", score=90)
    assert play.cycle_row(entry.cycle_id)["delayed_valid"] == "1"


def test_one_that_nobody_comes_for_is_stale(play: Stage) -> None:
    job_id, entry = repaired(play)
    play.advance(AFTER + play.settings.stale_after - 10)
    play.sweep()
    assert play.cycle(job_id).open
    play.advance(20)
    play.sweep()
    cycle = play.cycle(job_id)
    assert (cycle.status, cycle.reason) == (CycleStatus.ESCALATED, "missing_delayed_verification")
    assert play.waiting() is None
    assert play.view(job_id).state == "succeeded"
    escalation = play.ledger.escalation(entry.cycle_id)
    assert escalation is not None
    assert (escalation.reason, escalation.cycle_id) == (cycle.reason, cycle.id)


def test_a_lease_on_one_that_is_lost_brings_it_back_to_the_lane(play: Stage) -> None:
    _, entry = repaired(play)
    play.advance(AFTER + 1)
    first = play.take_recheck(entry)
    play.expire_leases()
    assert play.ledger.hold(first.lease) == ClaimRefused("lost")
    assert play.ledger.next_of("mia") == NextEntry(entry=entry)


def test_an_answer_in_other_words_is_kept_and_its_tokens_count(play: Stage) -> None:
    job_id, entry = repaired(play)
    play.advance(AFTER + 1)
    taken = play.take_recheck(entry)
    before = play.view(job_id).tokens
    other = Output(text="gone", usage=Usage(total_tokens=7))
    assert play.ledger.store_cycle_output(taken.lease, other)
    assert play.view(job_id).tokens == (before or 0) + 7
    held = play.ledger.hold(taken.lease)
    assert isinstance(held, CycleClaim)
    assert held.output == other
    assert not play.ledger.store_cycle_output(Lease(entry, "0123"), other)


def test_one_given_back_again_and_again_is_stale_by_its_first_due_time(play: Stage) -> None:
    """A provider that is away for good must not keep a cycle open for ever."""
    job_id, entry = play.repaired()
    play.advance(AFTER + 1)
    for _ in range(5):
        lease = play.take_recheck(entry).lease
        play.ledger.requeue(lease, delay=999, detail="503")
        play.advance(1000)
        play.sweep()
    assert play.refused_recheck(entry) == ClaimRefused("escalated", "missing_delayed_verification")
    assert play.cycle(job_id).status is CycleStatus.ESCALATED


# -- sessions --------------------------------------------------------------------------------------


def note(entry: str, *, loop: bool = False, window: float = 5400) -> SessionNote:
    return SessionNote(
        entry=entry, task_type="extract", mode="initial", seconds=5.5, loop=loop, window=window
    )


def test_a_session_is_what_a_subject_did_lately_oldest_first(play: Stage) -> None:
    notes = []
    for n in range(3):
        claim = take(play, play.submit_elsewhere())
        notes.append(note(str(claim.lease.entry), loop=n == 1))
        play.settle(claim, succeeds(claim, session=notes[-1]))
        play.advance(1)
    assert play.ledger.session("mia") == notes
    assert play.ledger.session("noa") == []
    assert play.ledger.session("mia", tenant="school") == []
    play.advance(5400)
    assert play.ledger.session("mia") == []


def test_a_cycle_cut_short_is_born_escalated_and_told_once(play: Stage) -> None:
    job_id = play.submit_elsewhere()
    claim = take(play, job_id)
    play.settle(claim, cut_short(claim))
    cycle = play.cycle(job_id)
    assert (cycle.status, cycle.reason) == (CycleStatus.ESCALATED, "per_skill_loop_cap")
    assert cycle.ended_at == cycle.created_at
    assert [e.id for e in play.ledger.escalations()] == [f"{job_id}:1"]
    assert play.waiting() is None


# -- partitions, and what is left behind -----------------------------------------------------------


def test_a_lane_s_jobs_live_in_the_lane_s_partition(redis_stage: StageMaker) -> None:
    play = redis_stage(partitions=3)
    met = set()
    for n in range(12):
        subject, tenant = f"s{n}", "school" if n % 2 else None
        labels = {"tenant": tenant} if tenant else {}
        jobs = [failed(play, subject=subject, labels=labels) for _ in range(2)]
        jobs.append(failed(play, subject=subject, labels=labels, idempotency_key=f"key {n}"))
        lane = rows.lane(subject, tenant)
        home = job_ids.partition_of_scope(lane, partitions=3)
        assert {keys.partition_of(job_id) for job_id in jobs} == {home}
        met.add(home)
        assert play.waiting(subject, tenant=tenant) == f"a:{jobs[0]}/2"
        _, entry = repaired(play, subject=subject, labels=labels)
        claim = take(play, jobs[0], 2)
        session = note(str(claim.lease.entry))
        play.settle(claim, succeeds(claim, session=session, cycle_done=None))
        assert play.ledger.session(subject, tenant=tenant) == [session]
        assert play.refused_recheck(entry) == ClaimRefused("early")
    assert met == {"p00", "p01", "p02"}


#: Keys of a fleet that are no job's, lane's, session's or tenant's: see keys.py.
RECORDS = {"events", "watermarks", "swept_at", "cycles", "cycle", "remedy"} | {
    *("escalation", "escalations", "group", "groups"),
}


def test_nothing_of_a_job_lane_session_or_tenant_is_left_behind(
    redis_stage: StageMaker, redis_client: redis.Redis
) -> None:
    """Given every way a job of a lane can end, and a day after the retention."""
    play = redis_stage(partitions=3, quotas={"*": {"concurrency": 1, "tokens_per_day": 1000}})
    for n in range(6):
        who: dict[str, Any] = {"subject": f"s{n}", "labels": {"tenant": f"t{n}"}, "deadline": 900}
        failed(play, **who)  # nobody comes back
        held = take(play, failed(play, **who), 2)  # in hand, and never heard of again
        play.ledger.cancel(held.job_id)
        play.expire_leases()
        play.advance(HELD)
        play.sweep()
        _, entry = repaired(play, **who)  # verified in time
        repaired(play, **who)  # and not
        job_id = play.submit_elsewhere(**who)
        claim = take(play, job_id)
        play.settle(claim, cut_short(claim, session=note(str(claim.lease.entry))))
        play.advance(AFTER + 1)
        taken = play.take_recheck(entry)
        play.ledger.settle_cycle(taken.lease, status="escalated", score=1, failure=CycleFailure())
        queued: dict[str, Any] = {"labels": {"tenant": f"q{n}"}, "memory_scope": "task_type"}
        first, second = play.submit(**queued), play.submit(**queued)
        play.take(first)
        assert play.refusal(second) == ClaimRefused("over_quota")
        play.ledger.cancel(second)
        play.ledger.cancel(first)
    for seconds in (1000.0, HELD, play.settings.stale_after, play.settings.retention, 200_000.0):
        play.advance(seconds)
        play.sweep()
    left = [n for n in redis_client.scan_iter(count=1000) if not n.startswith("test:")]
    assert {name.rpartition("}:")[2].partition(":")[0] for name in left} <= RECORDS
    for escalation in play.ledger.escalations(limit=500):
        play.end(escalation.id, "resolved")
    play.advance(play.settings.cycle_retention + 1)
    play.sweep()
    left = [n for n in redis_client.scan_iter(count=1000) if not n.startswith("test:")]
    assert {n.rpartition("}:")[2] for n in left} <= {"events", "watermarks", "swept_at"}
