"""The ledger's contract: external work, in its subject's lane."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import redis
from support.jobs import answer, passed
from support.ledger_scenario import Scenario, ScenarioMaker
from support.settlements import (
    escalates_with_cycle,
    retries_by_policy,
    retries_immediately,
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
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.stored import job_ids, rows

#: Seconds of a subject's lease, and seconds until a delayed verification.
LEASE = 1800.0
AFTER = 600


def take(scenario: Scenario, job_id: str, number: int = 1) -> Claim:
    claim = scenario.ledger.claim(Entry("attempt", job_id, number), worker="external", lease=LEASE)
    assert isinstance(claim, Claim), claim
    return claim


def verified_in_lane(settlement: Settlement) -> Settlement:
    return replace(settlement, verify_on="lane")


def failed(scenario: Scenario, **fields: Any) -> str:
    """Return a job whose first attempt scored low and whose mandatory retry waits."""
    job_id = scenario.submit_external(**fields)
    claim = take(scenario, job_id)
    scenario.settle(claim, verified_in_lane(retries_immediately(claim)))
    return job_id


def repaired(scenario: Scenario, **fields: Any) -> tuple[str, Entry]:
    """Return a job that its mandatory retry repaired, and its delayed verification."""
    job_id = failed(scenario, **fields)
    claim = take(scenario, job_id, 2)
    scenario.ledger.store_output(claim.lease, answer("went"))
    scenario.settle(claim, verified_in_lane(succeeds(claim)))
    return job_id, Entry("cycle", job_id, 1, 1)


# -- waiting in a lane -----------------------------------------------------------------------------


def test_external_work_is_never_published_to_a_queue(scenario: Scenario) -> None:
    job = scenario.view(scenario.submit_external()).job
    accepted = scenario.accept(job)
    assert isinstance(accepted, Accepted)
    assert accepted.publication is None
    scenario.advance(scenario.settings.republish_after * 2)
    assert scenario.swept_entries("attempt", "repair", "verify") == set()
    assert scenario.next_entry() is not None


def test_the_mandatory_retry_comes_first_then_what_is_due(scenario: Scenario) -> None:
    """Given one of each in any order: retry, delayed verification, policy retry, new work."""
    new = scenario.submit_external()
    _, check = repaired(scenario)
    scenario.advance(AFTER + 1)
    again = scenario.submit_external()
    claim = take(scenario, again)
    scenario.settle(claim, retries_by_policy(claim))
    retry = failed(scenario)
    assert scenario.next_entry() == f"a:{retry}/2"
    done = take(scenario, retry, 2)
    scenario.settle(done, succeeds(done, cycle_done=None))
    assert scenario.next_entry() == str(check)
    taken = scenario.claim_recheck(check)
    assert scenario.ledger.settle_cycle(taken.lease, status="completed", score=90)
    assert scenario.next_entry() == f"a:{again}/2"
    done = take(scenario, again, 2)
    scenario.settle(done, succeeds(done))
    assert scenario.next_entry() == f"a:{new}/1"


def test_a_delayed_retry_is_skipped_until_it_is_due(scenario: Scenario) -> None:
    later = scenario.submit_external()
    claim = take(scenario, later)
    scenario.settle(claim, retries_by_policy(claim, delay=50))
    new = scenario.submit_external()
    assert scenario.view(later).waiting_for == "delay"
    assert scenario.next_entry() == f"a:{new}/1"
    scenario.advance(51)
    assert scenario.next_entry() == f"a:{later}/2"


@pytest.mark.parametrize(
    ("subject", "tenant"), [("noa", None), ("mia", "school"), ("noa", "school")]
)
def test_other_subjects_and_other_tenants_have_nothing(
    scenario: Scenario, subject: str, tenant: str | None
) -> None:
    failed(scenario)
    assert scenario.next_entry() is not None
    assert scenario.next_entry(subject, tenant=tenant) is None


def test_a_subject_belongs_to_its_tenant(scenario: Scenario) -> None:
    job_id = failed(scenario, labels={"tenant": "school"})
    assert scenario.next_entry() is None
    assert scenario.next_entry(tenant="school") == f"a:{job_id}/2"
    assert scenario.view(job_id).tenant == "school"


# -- holding ---------------------------------------------------------------------------------------


def test_a_claimed_entry_is_offered_again_with_its_token_until_it_expires(
    scenario: Scenario,
) -> None:
    job_id = failed(scenario)
    first = take(scenario, job_id, 2)
    for _ in range(2):
        again = scenario.ledger.next_of("mia")
        assert again is not None
        assert (again.entry, again.token) == (first.lease.entry, first.lease.token)
        assert again.expires_at is not None
        scenario.advance(LEASE / 2 - 10)
    scenario.advance(30)
    assert scenario.next_entry() is None
    scenario.sweep()
    assert scenario.ledger.next_of("mia") == NextEntry(entry=first.lease.entry)
    assert scenario.ledger.hold(first.lease) == ClaimRefused("lost")
    assert take(scenario, job_id, 2).lease.token != first.lease.token


def test_an_expired_lease_is_refused_before_any_sweep(scenario: Scenario) -> None:
    claim = take(scenario, failed(scenario), 2)
    scenario.advance(LEASE + 1)
    assert scenario.ledger.hold(claim.lease) == ClaimRefused("lost")


def test_holding_returns_the_claim(scenario: Scenario) -> None:
    job_id = failed(scenario)
    claim = take(scenario, job_id, 2)
    held = scenario.ledger.hold(claim.lease)
    assert held == claim
    assert isinstance(held, Claim)
    assert held.plan.mode == "immediate_retry"
    assert scenario.ledger.hold(Lease(claim.lease.entry, "0123")) == ClaimRefused("held")
    assert scenario.ledger.hold(Lease(Entry("attempt", job_id, 9), "0123")) == ClaimRefused("gone")
    scenario.settle(claim, succeeds(claim))
    assert scenario.ledger.hold(claim.lease) == ClaimRefused("stored")
    assert scenario.ledger.hold(Lease(claim.lease.entry, "0123")) == ClaimRefused("finished")


def test_the_subject_no_longer_holds_an_answer_being_verified(scenario: Scenario) -> None:
    job_id = scenario.submit_external()
    claim = take(scenario, job_id)
    scenario.ledger.store_output(claim.lease, answer(), verifications=[0])
    assert scenario.ledger.hold(claim.lease) == ClaimRefused("verifying")
    assert scenario.next_entry() is None
    last = scenario.ledger.store_result(
        scenario.claim_verification(job_id, 0).lease, passed(), elapsed=0
    )
    assert isinstance(last, Claim)
    scenario.settle(last, succeeds(last))
    assert scenario.ledger.hold(claim.lease) == ClaimRefused("stored")
    assert scenario.ledger.hold(Lease(claim.lease.entry, "0123")) == ClaimRefused("finished")


def test_a_stored_answer_is_settled_by_a_worker_without_the_subject(scenario: Scenario) -> None:
    """Given a reporter that died before the verdict."""
    job_id = scenario.submit_external()
    claim = take(scenario, job_id)
    scenario.ledger.store_output(claim.lease, answer("kept"))
    scenario.advance(LEASE + 1)
    assert scenario.swept_entries() == {f"a:{job_id}/1"}
    assert scenario.next_entry() is None
    assert scenario.claim(job_id).output == answer("kept")


def test_recording_another_attempt_keeps_the_claimed_retry(scenario: Scenario) -> None:
    """Given a claimed retry, when its subject records another first attempt meanwhile."""
    retry = failed(scenario)
    held = take(scenario, retry, 2)
    other = scenario.submit_external()
    brought = take(scenario, other)
    scenario.settle(brought, verified_in_lane(retries_immediately(brought)))
    again = scenario.ledger.next_of("mia")
    assert again is not None
    assert (again.entry, again.token) == (held.lease.entry, held.lease.token)
    scenario.settle(held, succeeds(held))
    assert scenario.next_entry() == f"a:{other}/2"


def test_cancelling_another_job_keeps_the_claimed_retry(scenario: Scenario) -> None:
    held = take(scenario, failed(scenario), 2)
    scenario.ledger.cancel(scenario.submit_external())
    again = scenario.ledger.next_of("mia")
    assert again is not None
    assert again.token == held.lease.token


def test_a_cancelled_job_leaves_its_lane(scenario: Scenario) -> None:
    job_id = failed(scenario)
    claim = take(scenario, job_id, 2)
    assert scenario.ledger.cancel(job_id) == "cancelled"
    assert scenario.next_entry() is None
    assert scenario.cycle(job_id).status is CycleStatus.CANCELLED
    scenario.settle(claim, succeeds(claim))
    assert scenario.view(job_id).state == "cancelled"


def test_a_requeued_attempt_waits_in_its_lane_again(scenario: Scenario) -> None:
    job_id = failed(scenario)
    claim = take(scenario, job_id, 2)
    scenario.ledger.requeue(claim.lease, delay=10, detail="no verdict")
    assert scenario.next_entry() is None
    scenario.advance(11)
    assert scenario.next_entry() == f"a:{job_id}/2"
    assert scenario.swept_entries("repair") == set()


# -- pauses, deadlines -----------------------------------------------------------------------------


@pytest.mark.parametrize("pause", ["queue:repair", "task_type:extract"])
def test_a_paused_lane_is_released_on_resume(scenario: Scenario, pause: str) -> None:
    job_id = failed(scenario)
    scenario.ledger.pause(pause)
    assert scenario.refusal(job_id, 2).reason == "paused"
    assert (scenario.view(job_id).state, scenario.view(job_id).waiting_for) == ("waiting", "pause")
    scenario.ledger.resume(pause)
    assert scenario.swept_entries() == set()
    assert scenario.next_entry() == f"a:{job_id}/2"
    take(scenario, job_id, 2)


def test_a_lease_that_lapsed_during_a_pause_returns_to_its_lane(scenario: Scenario) -> None:
    """Given a claim that finds the pause before a sweep finds the lapsed lease."""
    job_id = scenario.submit_external()
    scenario.claim(job_id)
    scenario.advance(scenario.settings.lease + 1)
    scenario.ledger.pause("queue:attempt")
    assert scenario.refusal(job_id).reason == "paused"
    scenario.ledger.resume("queue:attempt")
    scenario.sweep()
    assert scenario.next_entry() == f"a:{job_id}/1"


def test_a_stored_answer_whose_lease_lapsed_during_a_pause_is_settled(scenario: Scenario) -> None:
    job_id = scenario.submit_external()
    scenario.ledger.store_output(scenario.claim(job_id).lease, answer())
    scenario.expire_leases()
    scenario.claim(job_id)  # to settle it
    scenario.advance(scenario.settings.lease + 1)
    scenario.ledger.pause("queue:attempt")
    assert scenario.refusal(job_id).reason == "paused"
    scenario.ledger.resume("queue:attempt")
    assert scenario.swept_entries() == {f"a:{job_id}/1"}
    scenario.claim(job_id)


def test_paused_entries_do_not_hide_others(scenario: Scenario) -> None:
    # More than one scan of the lane covers.
    first = [failed(scenario, task_type="grammar") for _ in range(60)]
    other = failed(scenario, task_type="spelling")
    new = scenario.submit_external(task_type="reading")
    scenario.ledger.pause("task_type:grammar")
    assert scenario.next_entry() == f"a:{other}/2"
    assert {(scenario.view(each).state, scenario.view(each).waiting_for) for each in first} == {
        ("waiting", "pause")
    }
    scenario.ledger.pause("queue:repair")
    assert scenario.next_entry() == f"a:{new}/1"
    scenario.ledger.pause("queue:attempt")
    assert scenario.next_entry() is None
    for pause in ("queue:repair", "queue:attempt", "task_type:grammar"):
        scenario.ledger.resume(pause)
    assert scenario.next_entry() in {f"a:{each}/2" for each in first}


def test_a_quota_delays_attempts_but_not_delayed_verifications(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = new_scenario(quotas={"school": {"tokens_per_day": 100}})
    mine = {"labels": {"tenant": "school"}}
    _, check = repaired(scenario, **mine)
    scenario.advance(AFTER + 1)
    retry = failed(scenario, **mine)
    assert scenario.next_entry(tenant="school") == f"a:{retry}/2"
    spender = scenario.submit_external(subject="noa", **mine)
    claim = take(scenario, spender)
    scenario.ledger.store_output(claim.lease, answer(tokens=100))
    scenario.settle(claim, succeeds(claim))
    assert scenario.next_entry(tenant="school") == str(check)
    assert scenario.view(retry).waiting_for == "budget"


def test_an_unclaimed_retry_is_escalated_at_its_deadline(scenario: Scenario) -> None:
    job_id = failed(scenario, deadline=1000)
    scenario.advance(990)
    scenario.sweep()
    assert scenario.view(job_id).state == "queued"
    scenario.advance(11)
    scenario.sweep()
    view = scenario.view(job_id)
    assert (view.state, view.reason) == ("escalated", "deadline")
    assert view.cycles[0].status is CycleStatus.ESCALATED
    assert scenario.next_entry() is None


def test_a_retry_after_parked_verifications_is_escalated_at_its_deadline(
    scenario: Scenario,
) -> None:
    """Given an answer whose verification was parked, then the deadline still ends the job."""
    job_id = scenario.submit_external(deadline=600)
    scenario.ledger.pause("queue:verify")
    scenario.hand_over(job_id, [0])
    scenario.ledger.resume("queue:verify")
    assert scenario.swept_entries() == {f"v:{job_id}/1/0"}
    verification = scenario.claim_verification(job_id, 0)
    last = scenario.ledger.store_result(verification.lease, passed(), elapsed=1)
    assert isinstance(last, Claim)
    scenario.settle(last, retries_immediately(last))
    assert scenario.next_entry() == f"a:{job_id}/2"
    scenario.advance(601)
    scenario.sweep()
    assert scenario.view(job_id).reason == "deadline"


def test_an_attempt_claimed_before_the_deadline_may_still_be_settled(scenario: Scenario) -> None:
    job_id = failed(scenario, deadline=1000)
    claim = take(scenario, job_id, 2)
    scenario.advance(1200)
    scenario.sweep()
    assert scenario.view(job_id).state == "running"
    scenario.settle(claim, succeeds(claim))
    assert scenario.view(job_id).state == "succeeded"


def test_an_attempt_not_settled_after_the_deadline_is_escalated(scenario: Scenario) -> None:
    job_id = failed(scenario, deadline=1000)
    take(scenario, job_id, 2)
    scenario.advance(1001)
    scenario.sweep()
    scenario.advance(LEASE)
    scenario.sweep()
    assert scenario.view(job_id).reason == "deadline"


# -- delayed verification in a lane ----------------------------------------------------------------


def test_a_delayed_verification_waits_for_its_subject(scenario: Scenario) -> None:
    job_id, entry = repaired(scenario)
    assert scenario.next_entry() is None
    assert scenario.recheck_refusal(entry) == ClaimRefused("early")
    scenario.advance(AFTER + 1)
    assert scenario.swept_entries("verify", "attempt") == set()
    assert scenario.ledger.next_of("mia") == NextEntry(entry=entry)
    taken = scenario.ledger.claim_cycle(entry, worker="external", lease=LEASE)
    assert isinstance(taken, CycleClaim)
    assert (taken.cycle_id, taken.claim.output) == (entry.cycle_id, answer("went"))
    again = scenario.ledger.next_of("mia")
    assert again is not None
    assert again.token == taken.lease.token
    assert scenario.ledger.hold(taken.lease) == taken
    assert scenario.ledger.settle_cycle(taken.lease, status="completed", score=90)
    assert scenario.cycle(job_id).status is CycleStatus.COMPLETED
    assert scenario.next_entry() is None
    assert scenario.ledger.hold(taken.lease) == ClaimRefused("stored")
    assert scenario.ledger.hold(replace(taken.lease, token="0123")) == ClaimRefused("finished")


def test_a_refused_delayed_verification_is_counted_and_may_be_repeated(scenario: Scenario) -> None:
    _, entry = repaired(scenario)
    scenario.advance(AFTER + 1)
    taken = scenario.claim_recheck(entry)
    for reason in ("missing_prompt_context", "duplicate_task_family", "missing_prompt_context"):
        assert scenario.ledger.refuse_verification(taken.lease, reason=reason)
    again = {"cycle": entry.cycle_id, "token": taken.lease.token, "reason": "duplicate_task_family"}
    prefix = keys.prefix_of(scenario.settings.key_prefix, entry.job_id)
    for _ in range(2):  # the first answer was lost
        scenario.ledger.calls.one("refuse_verification", prefix, call="one", **again)
    row = scenario.cycle_row(entry.cycle_id)
    assert json.loads(row["delayed_invalid"]) == {
        "missing_prompt_context": 2,
        "duplicate_task_family": 2,
    }
    assert "delayed_valid" not in row
    assert not scenario.ledger.refuse_verification(Lease(entry, "0123"), reason="x")
    assert isinstance(scenario.ledger.hold(taken.lease), CycleClaim)
    assert scenario.ledger.settle_cycle(taken.lease, status="completed", score=90)
    assert scenario.cycle_row(entry.cycle_id)["delayed_valid"] == "1"


def test_an_unclaimed_delayed_verification_becomes_stale(scenario: Scenario) -> None:
    job_id, entry = repaired(scenario)
    scenario.advance(AFTER + scenario.settings.stale_after - 10)
    scenario.sweep()
    assert scenario.cycle(job_id).open
    scenario.advance(20)
    scenario.sweep()
    cycle = scenario.cycle(job_id)
    assert (cycle.status, cycle.reason) == (CycleStatus.ESCALATED, "missing_delayed_verification")
    assert scenario.next_entry() is None
    assert scenario.view(job_id).state == "succeeded"
    escalation = scenario.ledger.escalation(entry.cycle_id)
    assert escalation is not None
    assert (escalation.reason, escalation.cycle_id) == (cycle.reason, cycle.id)


def test_a_delayed_verification_returns_to_its_lane_when_its_lease_expires(
    scenario: Scenario,
) -> None:
    _, entry = repaired(scenario)
    scenario.advance(AFTER + 1)
    first = scenario.claim_recheck(entry)
    scenario.expire_leases()
    assert scenario.ledger.hold(first.lease) == ClaimRefused("lost")
    assert scenario.ledger.next_of("mia") == NextEntry(entry=entry)


def test_a_reformulated_answer_is_kept_and_its_tokens_count(scenario: Scenario) -> None:
    job_id, entry = repaired(scenario)
    scenario.advance(AFTER + 1)
    taken = scenario.claim_recheck(entry)
    before = scenario.view(job_id).tokens
    other = Output(text="gone", usage=Usage(total_tokens=7))
    assert scenario.ledger.store_cycle_output(taken.lease, other) == []
    assert scenario.view(job_id).tokens == (before or 0) + 7
    held = scenario.ledger.hold(taken.lease)
    assert isinstance(held, CycleClaim)
    assert held.output == other
    stolen = scenario.ledger.store_cycle_output(Lease(entry, "0123"), other)
    assert stolen == ClaimRefused("lost")


def test_a_delayed_verification_requeued_repeatedly_becomes_stale_by_its_first_due_time(
    scenario: Scenario,
) -> None:
    """A provider that never recovers does not keep a cycle open."""
    job_id, entry = scenario.repaired_job()
    scenario.advance(AFTER + 1)
    for _ in range(5):
        lease = scenario.claim_recheck(entry).lease
        scenario.ledger.requeue(lease, delay=999, detail="503")
        scenario.advance(1000)
        scenario.sweep()
    assert scenario.recheck_refusal(entry) == ClaimRefused(
        "escalated", "missing_delayed_verification"
    )
    assert scenario.cycle(job_id).status is CycleStatus.ESCALATED


# -- sessions --------------------------------------------------------------------------------------


def note(entry: str, *, loop: bool = False, window: float = 5400) -> SessionNote:
    return SessionNote(
        entry=entry, task_type="extract", mode="initial", seconds=5.5, loop=loop, window=window
    )


def test_a_session_lists_a_subject_s_recent_entries_oldest_first(scenario: Scenario) -> None:
    notes = []
    for n in range(3):
        claim = take(scenario, scenario.submit_external())
        notes.append(note(str(claim.lease.entry), loop=n == 1))
        scenario.settle(claim, succeeds(claim, session=notes[-1]))
        scenario.advance(1)
    assert scenario.ledger.session("mia") == notes
    assert scenario.ledger.session("noa") == []
    assert scenario.ledger.session("mia", tenant="school") == []
    scenario.advance(5400)
    assert scenario.ledger.session("mia") == []


def test_a_cycle_stopped_by_a_guardrail_is_created_escalated_with_one_escalation(
    scenario: Scenario,
) -> None:
    job_id = scenario.submit_external()
    claim = take(scenario, job_id)
    scenario.settle(claim, escalates_with_cycle(claim))
    cycle = scenario.cycle(job_id)
    assert (cycle.status, cycle.reason) == (CycleStatus.ESCALATED, "per_skill_loop_cap")
    assert cycle.ended_at == cycle.created_at
    assert [e.id for e in scenario.ledger.escalations()] == [f"{job_id}:1"]
    assert scenario.next_entry() is None


# -- partitions, and what is left behind -----------------------------------------------------------


def test_the_jobs_of_a_lane_share_its_partition(new_redis_scenario: ScenarioMaker) -> None:
    scenario = new_redis_scenario(partitions=3)
    partitions = set()
    for n in range(12):
        subject, tenant = f"s{n}", "school" if n % 2 else None
        labels = {"tenant": tenant} if tenant else {}
        jobs = [failed(scenario, subject=subject, labels=labels) for _ in range(2)]
        jobs.append(failed(scenario, subject=subject, labels=labels, idempotency_key=f"key {n}"))
        lane = rows.lane(subject, tenant)
        partition = job_ids.partition_of_scope(lane, partitions=3)
        assert {keys.partition_of(job_id) for job_id in jobs} == {partition}
        partitions.add(partition)
        assert scenario.next_entry(subject, tenant=tenant) == f"a:{jobs[0]}/2"
        _, entry = repaired(scenario, subject=subject, labels=labels)
        claim = take(scenario, jobs[0], 2)
        session = note(str(claim.lease.entry))
        scenario.settle(claim, succeeds(claim, session=session, cycle_done=None))
        assert scenario.ledger.session(subject, tenant=tenant) == [session]
        assert scenario.recheck_refusal(entry) == ClaimRefused("early")
    assert partitions == {"p00", "p01", "p02"}


#: Keys of a fleet that belong to no job, lane, session or tenant: see keys.py.
RECORDS = {"events", "watermarks", "swept_at", "limits", "cycles", "cycle", "remedy"} | {
    "partitions",
    *("escalation", "escalations", "group", "groups"),
}


def test_no_key_of_a_job_lane_session_or_tenant_is_left_behind(
    new_redis_scenario: ScenarioMaker, redis_client: redis.Redis
) -> None:
    """Given every way an external job can end, and a day after the retention."""
    scenario = new_redis_scenario(
        partitions=3, quotas={"*": {"concurrency": 1, "tokens_per_day": 1000}}
    )
    for n in range(6):
        who: dict[str, Any] = {"subject": f"s{n}", "labels": {"tenant": f"t{n}"}, "deadline": 900}
        failed(scenario, **who)  # never claimed
        held = take(scenario, failed(scenario, **who), 2)  # claimed and never settled
        scenario.ledger.cancel(held.job_id)
        scenario.expire_leases()
        scenario.advance(LEASE)
        scenario.sweep()
        _, entry = repaired(scenario, **who)  # verified in time
        repaired(scenario, **who)  # not verified in time
        job_id = scenario.submit_external(**who)
        claim = take(scenario, job_id)
        scenario.settle(claim, escalates_with_cycle(claim, session=note(str(claim.lease.entry))))
        scenario.advance(AFTER + 1)
        taken = scenario.claim_recheck(entry)
        scenario.ledger.settle_cycle(
            taken.lease, status="escalated", score=1, failure=CycleFailure()
        )
        queued: dict[str, Any] = {"labels": {"tenant": f"q{n}"}, "memory_scope": "task_type"}
        first, second = scenario.submit(**queued), scenario.submit(**queued)
        scenario.claim(first)
        assert scenario.refusal(second).reason == "over_quota"
        scenario.ledger.cancel(second)
        scenario.ledger.cancel(first)
    for seconds in (
        1000.0,
        LEASE,
        scenario.settings.stale_after,
        scenario.settings.retention,
        200_000.0,
    ):
        scenario.advance(seconds)
        scenario.sweep()
    left = [n for n in redis_client.scan_iter(count=1000) if not n.startswith("test:")]
    assert {name.rpartition("}:")[2].partition(":")[0] for name in left} <= RECORDS
    for escalation in scenario.ledger.escalations(limit=500):
        scenario.end(escalation.id, "resolved")
    scenario.advance(scenario.settings.cycle_retention + 1)
    scenario.sweep()
    left = [n for n in redis_client.scan_iter(count=1000) if not n.startswith("test:")]
    lasting = {"events", "watermarks", "swept_at", "limits", "partitions"}
    assert {n.rpartition("}:")[2] for n in left} <= lasting
