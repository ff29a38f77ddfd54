"""The ledger's contract: escalations, their groups and how they end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from support.jobs import answer
from support.ledger_scenario import Scenario, ScenarioMaker
from support.settlements import (
    escalates,
    escalates_with_cycle,
    retries_by_policy,
    retries_immediately,
    succeeds,
)

from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.policies.jobs.job import Decoding, PolicySpec
from mulligan.policies.repair.retry import RetryPolicy
from mulligan.tasks.ports.ledger import (
    ClaimRefused,
    CycleFailure,
    Ended,
    Entry,
    Escalation,
    Publication,
)

SIGNATURE = "v1:json_invalid|$"
LONG = 1000.0


def escalation_of(scenario: Scenario, escalation_id: str) -> Escalation:
    found = scenario.ledger.escalation(escalation_id)
    assert found is not None
    return found


def succeeded_after_two_cycles(scenario: Scenario) -> str:
    """Return a job that succeeded after two cycles, whose delayed verifications are due."""
    job_id = scenario.submit()
    for number in (1, 3):
        claim = scenario.claim(job_id, number)
        scenario.settle(claim, retries_immediately(claim))
        claim = scenario.claim(job_id, number + 1)
        scenario.settle(claim, retries_by_policy(claim) if number == 1 else succeeds(claim))
    scenario.advance(601)
    return job_id


def fail_recheck(scenario: Scenario, entry: Entry) -> None:
    lease = scenario.claim_recheck(entry).lease
    failure = CycleFailure(reason="no_answer")
    scenario.ledger.settle_cycle(lease, status="escalated", score=1, failure=failure)


# -- records ---------------------------------------------------------------------------------------


def test_an_escalated_job_is_recorded(scenario: Scenario) -> None:
    job_id = scenario.escalated_job(group_signature=SIGNATURE, labels={"tenant": "acme"})
    found = escalation_of(scenario, f"{job_id}:1")
    assert found == Escalation(
        id=f"{job_id}:1",
        job_id=job_id,
        attempt=1,
        cycle_id=None,
        signature=SIGNATURE,
        reason="max_attempts",
        kind="json_invalid",
        task_type="extract",
        detail="it went wrong",
        tenant="acme",
        at=found.at,
        state="open",
        ended_at=None,
        ended_by=None,
        note=None,
    )
    event = [event.data for event in scenario.ledger.events() if event.type == "job"][-1]
    assert (event["escalation"], event["signature"]) == (found.id, SIGNATURE)
    assert (event["attempts"], event["first_try"], event["tenant"]) == (1, False, "acme")


def _deadline(scenario: Scenario) -> str:
    job_id = scenario.submit(deadline=10)
    scenario.advance(11)
    scenario.refusal(job_id)
    return job_id


def _worker_lost(scenario: Scenario) -> str:
    job_id = scenario.submit()
    for _ in range(scenario.settings.max_claims):
        scenario.claim(job_id)
        scenario.expire_leases()
    scenario.refusal(job_id)
    return job_id


def _tool_error(scenario: Scenario) -> str:
    claim = scenario.claim(scenario.submit())
    scenario.ledger.requeue(
        claim.lease, delay=1, detail="no verdict", counter="errors", limit=1, reason="tool_error"
    )
    return claim.job_id


def _lane_deadline(scenario: Scenario) -> str:
    job_id = scenario.submit_external(deadline=10)
    scenario.advance(11)
    scenario.sweep()
    return job_id


@pytest.mark.parametrize(
    ("escalate", "reason"),
    [
        (_deadline, "deadline"),
        (_worker_lost, "worker_lost"),
        (_tool_error, "tool_error"),
        (_lane_deadline, "deadline"),
    ],
)
def test_escalations_without_a_failure_are_grouped_by_reason(
    scenario: Scenario, escalate: Callable[[Scenario], str], reason: str
) -> None:
    job_id = escalate(scenario)
    found = escalation_of(scenario, f"{job_id}:1")
    assert (found.reason, found.signature, found.kind) == (reason, f"reason:{reason}", None)


@pytest.mark.parametrize("state", ["succeeded", "cancelled"])
def test_other_final_states_are_no_escalations(scenario: Scenario, state: str) -> None:
    job_id = scenario.submit()
    if state == "cancelled":
        scenario.ledger.cancel(job_id)
    else:
        claim = scenario.claim(job_id)
        scenario.settle(claim, succeeds(claim))
    assert scenario.ledger.escalations(only_open=False) == []
    assert scenario.ledger.groups(only_open=False) == []


@pytest.mark.parametrize(
    ("failure", "detail"),
    [
        (CycleFailure(detail="it scored 40"), "it scored 40"),
        (CycleFailure(detail="it scored 12"), "it scored 12"),
        (CycleFailure(reason="no_answer"), "no_answer"),
    ],
)
def test_a_failed_delayed_verification_is_an_escalation_of_its_cycle(
    scenario: Scenario, failure: CycleFailure, detail: str
) -> None:
    """The job stays succeeded. Escalations are grouped by reason, not by detail."""
    job_id, entry = scenario.repaired_job()
    scenario.advance(601)
    lease = scenario.claim_recheck(entry).lease
    scenario.ledger.settle_cycle(lease, status="escalated", score=40, failure=failure)
    (found,) = scenario.ledger.escalations()
    assert (found.id, found.cycle_id, found.attempt) == (entry.cycle_id, entry.cycle_id, 1)
    assert (found.reason, found.signature) == (failure.reason, f"reason:{failure.reason}")
    assert found.detail == detail
    assert scenario.cycle(job_id).reason == detail
    assert scenario.view(job_id).state == "succeeded"


def test_cycles_that_end_with_their_job_add_no_escalation(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    scenario.settle(claim, retries_immediately(claim))
    claim = scenario.claim(job_id, 2)
    scenario.settle(claim, escalates(claim))
    assert [each.id for each in scenario.ledger.escalations()] == [f"{job_id}:2"]


@pytest.mark.parametrize("size", [100, 167, 499, 500, 501, 10_000])
@pytest.mark.parametrize("letter", ["a", "é", "字", "😀"])
def test_a_long_detail_is_cut_between_characters(
    new_redis_scenario: ScenarioMaker, new_fake_scenario: ScenarioMaker, size: int, letter: str
) -> None:
    details = set()
    for scenario in (new_redis_scenario(), new_fake_scenario()):
        claim = scenario.claim(scenario.submit())
        scenario.ledger.requeue(
            claim.lease, delay=0, detail="x" + letter * size, counter="n", limit=1, reason="why"
        )
        (group,) = scenario.ledger.groups()
        assert group.detail == escalation_of(scenario, f"{claim.job_id}:1").detail
        details.add(group.detail)
    (detail,) = details
    assert ("x" + letter * size).startswith(detail)
    assert len(detail.encode()) <= 500
    assert len(detail) == size + 1 or len(detail.encode()) > 496


# -- groups ----------------------------------------------------------------------------------------


def test_escalations_with_one_signature_are_one_group(scenario: Scenario) -> None:
    scenario.escalated_job(group_signature=SIGNATURE, labels={"tenant": "acme"})
    scenario.advance(10)
    scenario.escalated_job(
        group_signature=SIGNATURE, task_type="summarise", labels={"tenant": "acme"}
    )
    last = scenario.escalated_job(group_signature=SIGNATURE)
    other = scenario.escalated_job(group_signature="v1:other")
    groups = {group.signature: group for group in scenario.ledger.groups()}
    assert groups.keys() == {SIGNATURE, "v1:other"}
    group = groups[SIGNATURE]
    assert (group.open, group.total) == (3, 3)
    assert group.task_types == {"extract": 2, "summarise": 1}
    assert group.tenants == {"acme": 2}
    assert group.example == last
    assert group.last_at - group.first_at >= 10
    assert scenario.ledger.group(SIGNATURE) == group
    assert scenario.ledger.group("v1:unknown") is None
    assert {each.job_id for each in scenario.ledger.escalations(signature="v1:other")} == {other}
    assert len(scenario.ledger.escalations(signature=SIGNATURE)) == 3
    assert len(scenario.ledger.escalations(signature=SIGNATURE, tenant="acme")) == 2
    assert len(scenario.ledger.escalations(tenant="acme", limit=1)) == 1


def test_groups_and_escalations_are_listed_newest_first(scenario: Scenario) -> None:
    for name in "abc":
        scenario.escalated_job(group_signature=f"v1:{name}")
        scenario.advance(1)
    scenario.escalated_job(group_signature="v1:a")
    assert [group.signature for group in scenario.ledger.groups()] == ["v1:a", "v1:c", "v1:b"]
    assert [group.signature for group in scenario.ledger.groups(limit=1)] == ["v1:a"]
    assert [each.signature for each in scenario.ledger.escalations()] == [
        *("v1:a", "v1:c", "v1:b", "v1:a")
    ]


def test_a_tenant_sees_the_groups_with_its_open_escalations(scenario: Scenario) -> None:
    scenario.escalated_job(group_signature="v1:a", labels={"tenant": "acme"})
    scenario.escalated_job(group_signature="v1:b", labels={"tenant": "other"})
    scenario.escalated_job(group_signature="v1:c")
    assert [group.signature for group in scenario.ledger.groups(tenant="acme")] == ["v1:a"]
    assert scenario.ledger.groups(tenant="unknown") == []


def test_a_group_is_muted_and_unmuted(scenario: Scenario) -> None:
    assert not scenario.ledger.mute(SIGNATURE, until=5.0)
    scenario.escalated_job(group_signature=SIGNATURE)
    until = scenario.ledger.now() + 100
    assert scenario.ledger.mute(SIGNATURE, until=until)
    group = scenario.ledger.group(SIGNATURE)
    assert group is not None
    assert group.muted_until == pytest.approx(until)
    scenario.escalated_job(group_signature=SIGNATURE)
    assert scenario.ledger.mute(SIGNATURE, until=None)
    group = scenario.ledger.group(SIGNATURE)
    assert group is not None
    assert (group.muted_until, group.open) == (None, 2)


def test_a_group_spans_all_partitions(new_redis_scenario: ScenarioMaker) -> None:
    scenario = new_redis_scenario(partitions=3)
    jobs = [
        scenario.escalated_job(group_signature=SIGNATURE, labels={"tenant": f"t{n % 2}"})
        for n in range(20)
    ]
    assert {job_id[:3] for job_id in jobs} == {"p00", "p01", "p02"}
    (group,) = scenario.ledger.groups()
    assert (group.open, group.total, group.example) == (20, 20, jobs[-1])
    assert group.tenants == {"t0": 10, "t1": 10}
    assert {each.job_id for each in scenario.ledger.escalations()} == set(jobs)
    assert len(scenario.ledger.escalations(signature=SIGNATURE, limit=7)) == 7
    assert scenario.ledger.mute(SIGNATURE, until=scenario.ledger.now() + 9)
    for job_id in jobs:
        scenario.end(f"{job_id}:1", "resolved")
    assert scenario.ledger.groups() == []
    (group,) = scenario.ledger.groups(only_open=False)
    assert (group.open, group.total, group.task_types, group.tenants) == (0, 20, {}, {})


# -- ending an escalation --------------------------------------------------------------------------


def test_the_record_says_who_ended_it_and_why(scenario: Scenario) -> None:
    job_id = scenario.escalated_job(group_signature=SIGNATURE, labels={"tenant": "acme"})
    ended = scenario.ledger.end_escalation(f"{job_id}:1", how="resolved", by="ada", note="known")
    assert ended == Ended(state="resolved")
    found = escalation_of(scenario, f"{job_id}:1")
    assert (found.state, found.ended_by, found.note) == ("resolved", "ada", "known")
    assert found.ended_at is not None
    assert scenario.view(job_id).state == "escalated"
    assert scenario.ledger.escalations() == []
    assert scenario.ledger.escalations(signature=SIGNATURE) == []
    assert scenario.ledger.escalations(signature=SIGNATURE, only_open=False) == [found]
    assert scenario.ledger.groups() == []
    event = list(scenario.ledger.events())[-1]
    assert (event.type, event.data["state"], event.data["by"]) == ("escalation", "resolved", "ada")


@pytest.mark.parametrize("how", ["resolved", "requeued", "cancelled"])
def test_an_escalation_is_ended_once(scenario: Scenario, how: Any) -> None:
    job_id = scenario.escalated_job()
    scenario.end(f"{job_id}:1", how)
    for again in ("resolved", "requeued", "cancelled"):
        refused = scenario.ledger.end_escalation(f"{job_id}:1", how=again, by="bob")
        assert refused == ClaimRefused("finished", how)
    assert escalation_of(scenario, f"{job_id}:1").ended_by == "ada"


@pytest.mark.parametrize("how", ["resolved", "requeued", "cancelled"])
@pytest.mark.parametrize("name", ["p00-unknown:1", "p00-unknown", "what", "", ":", "p00-a:b:c"])
def test_an_unknown_escalation_is_gone(scenario: Scenario, how: Any, name: str) -> None:
    assert scenario.ledger.escalation(name) is None
    assert scenario.ledger.end_escalation(name, how=how, by="ada") == ClaimRefused("gone")


def test_the_escalation_of_an_expired_job_can_only_be_resolved(scenario: Scenario) -> None:
    job_id = scenario.escalated_job()
    scenario.advance(scenario.settings.retention + 1)
    scenario.sweep()
    assert scenario.ledger.job(job_id) is None
    refused = scenario.ledger.end_escalation(f"{job_id}:1", how="requeued", by="ada")
    assert refused == ClaimRefused("gone", "the job is no longer kept")
    assert escalation_of(scenario, f"{job_id}:1").state == "open"
    scenario.end(f"{job_id}:1", "resolved")
    refused = scenario.ledger.end_escalation(f"{job_id}:1", how="requeued", by="ada")
    assert refused == ClaimRefused("finished", "resolved")


def test_cancelling_an_escalation_cancels_its_job(scenario: Scenario) -> None:
    job_id = scenario.escalated_job()
    scenario.end(f"{job_id}:1", "cancelled", note="not worth it")
    view = scenario.view(job_id)
    assert (view.state, view.reason, view.detail) == ("cancelled", "cancelled", "not worth it")
    assert [each.id for each in scenario.ledger.jobs(state="cancelled")] == [job_id]
    assert scenario.ledger.jobs(state="escalated") == []


def test_cancelling_a_cycle_s_escalation_leaves_the_job_succeeded(scenario: Scenario) -> None:
    job_id, entry = scenario.repaired_job()
    scenario.advance(601)
    fail_recheck(scenario, entry)
    scenario.end(entry.cycle_id, "cancelled")
    assert scenario.view(job_id).state == "succeeded"


# -- requeueing ------------------------------------------------------------------------------------


def escalated_after_two_attempts(scenario: Scenario, **fields: Any) -> str:
    """Return a job that was escalated after two attempts, 20 tokens and one second."""
    job_id = scenario.submit(**fields)
    claim = scenario.claim(job_id)
    scenario.ledger.store_output(claim.lease, answer("first"))
    scenario.settle(claim, retries_immediately(claim, score=60.0))
    claim = scenario.claim(job_id, 2)
    scenario.ledger.store_output(claim.lease, answer("second"))
    scenario.settle(claim, escalates(claim, score=30.0, group_signature=SIGNATURE))
    return job_id


def test_a_requeued_job_starts_from_zero(scenario: Scenario) -> None:
    """Memory, budgets, limits and the deadline count from here."""
    job_id = escalated_after_two_attempts(scenario, deadline=LONG, priority=3)
    scenario.advance(LONG - 10)
    decoding = Decoding(temperature=0.9)
    ended = scenario.end(f"{job_id}:2", "requeued", prompt="In other words.", decoding=decoding)
    assert ended.publication == Publication(Entry("attempt", job_id, 3), "attempt", 3)
    view = scenario.view(job_id)
    assert (view.state, view.reason, view.finished_at) == ("queued", None, None)
    scenario.advance(LONG - 10)  # the deadline is counted from the requeue
    claim = scenario.claim(job_id, 3)
    assert (claim.plan.mode, claim.plan.since) == ("initial", 2)
    assert (claim.plan.prompt, claim.plan.decoding) == ("In other words.", decoding)
    assert claim.memory.counts == {}
    assert (claim.tokens_used, claim.seconds_used, claim.repair_seconds) == (0, 0.0, 0.0)
    assert claim.loops == 0
    policy = RetryPolicy.from_spec(PolicySpec(max_attempts=2), attempts_before_requeue=2)
    assert policy.max_attempts == 4


def test_a_requeued_job_keeps_its_earlier_attempts(scenario: Scenario) -> None:
    job_id = escalated_after_two_attempts(scenario)
    scenario.end(f"{job_id}:2", "requeued")
    claim = scenario.claim(job_id, 3)
    scenario.ledger.store_output(claim.lease, answer("third"))
    scenario.settle(claim, retries_immediately(claim, score=10.0))
    claim = scenario.claim(job_id, 4)
    scenario.settle(claim, escalates(claim, score=20.0))
    view = scenario.view(job_id)
    assert [a.output.text if a.output else None for a in view.attempts] == [
        *("first", "second", "third", None)
    ]
    assert (view.best_attempt, view.tokens, view.seconds) == (1, 30, 1.5)
    assert [cycle.source_attempt for cycle in view.cycles] == [1, 3]
    assert [each.id for each in scenario.ledger.escalations()] == [f"{job_id}:4"]
    assert len(scenario.ledger.escalations(only_open=False)) == 2


def test_a_requeued_job_still_shows_all_its_cycles(scenario: Scenario) -> None:
    job_id = scenario.submit()
    for number in (1, 3):  # two loops before, none after
        claim = scenario.claim(job_id, number)
        scenario.settle(claim, retries_immediately(claim))
        claim = scenario.claim(job_id, number + 1)
        then = retries_by_policy(claim) if number == 1 else escalates(claim)
        scenario.settle(claim, then)
    scenario.end(f"{job_id}:4", "requeued")
    assert len(scenario.view(job_id).cycles) == 2
    claim = scenario.claim(job_id, 5)
    scenario.settle(claim, escalates(claim))
    scenario.end(f"{job_id}:5", "requeued")
    assert [cycle.loop_index for cycle in scenario.view(job_id).cycles] == [1, 2]


def test_only_usage_after_a_requeue_counts(
    scenario: Scenario,
) -> None:
    job_id = escalated_after_two_attempts(scenario)
    scenario.end(f"{job_id}:2", "requeued")
    claim = scenario.claim(job_id, 3)
    scenario.ledger.store_output(claim.lease, answer())
    scenario.settle(claim, retries_immediately(claim))
    claim = scenario.claim(job_id, 4)
    assert (claim.tokens_used, claim.seconds_used, claim.loops) == (10, 0.5, 1)
    assert set(claim.memory.counts.values()) == {1}


def test_a_requeue_does_not_clear_a_shared_memory(scenario: Scenario) -> None:
    job_id = escalated_after_two_attempts(scenario, memory_scope="task_type")
    scenario.end(f"{job_id}:2", "requeued")
    assert scenario.claim(job_id, 3).memory.counts == {"json_invalid|$": 2}


def test_the_retention_of_a_requeued_job_starts_at_its_new_end(scenario: Scenario) -> None:
    job_id = escalated_after_two_attempts(scenario)
    scenario.advance(scenario.settings.retention - 100)
    scenario.end(f"{job_id}:2", "requeued")
    scenario.advance(scenario.settings.retention + 100)
    scenario.sweep()
    assert len(scenario.view(job_id).attempts) == 3
    claim = scenario.claim(job_id, 3)
    assert claim.job.task_type == "extract"
    scenario.settle(claim, succeeds(claim))
    scenario.advance(scenario.settings.retention - 100)
    assert scenario.attempt(job_id, 1).output == answer("first")
    scenario.advance(200)
    assert scenario.ledger.job(job_id) is None
    scenario.sweep()
    assert scenario.ledger.jobs() == []
    assert escalation_of(scenario, f"{job_id}:2").state == "requeued"


def test_an_unpublished_requeued_attempt_is_found_by_the_sweep(scenario: Scenario) -> None:
    job_id = scenario.escalated_job()
    scenario.end(f"{job_id}:1", "requeued")
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.swept_entries() == {f"a:{job_id}/2"}


def test_a_running_job_cannot_be_requeued_by_its_other_escalation(
    scenario: Scenario,
) -> None:
    """Given a succeeded job with two failed delayed verifications."""
    job_id = succeeded_after_two_cycles(scenario)
    cycles = [Entry("cycle", job_id, 1, 1), Entry("cycle", job_id, 3, 2)]
    for entry in cycles:
        fail_recheck(scenario, entry)
    first, second = (entry.cycle_id for entry in cycles)
    scenario.end(first, "requeued")
    assert scenario.ledger.end_escalation(second, how="requeued", by="ada") == ClaimRefused("held")
    claim = scenario.claim(job_id, 5)
    scenario.settle(claim, succeeds(claim))
    assert scenario.end(second, "requeued").publication is not None
    assert scenario.claim(job_id, 6).plan.since == 5


def test_a_requeued_external_job_waits_in_its_lane(scenario: Scenario) -> None:
    job_id = scenario.submit_external(deadline=LONG)
    claim = scenario.claim(job_id)
    scenario.settle(claim, escalates_with_cycle(claim))
    scenario.advance(LONG + 500)
    assert scenario.end(f"{job_id}:1", "requeued").publication is None
    assert scenario.next_entry() == f"a:{job_id}/2"
    scenario.advance(LONG + 1)
    scenario.sweep()
    assert scenario.view(job_id).reason == "deadline"
    assert escalation_of(scenario, f"{job_id}:2").signature == "reason:deadline"


def test_a_requeued_job_postpones_its_delayed_verification(scenario: Scenario) -> None:
    job_id = succeeded_after_two_cycles(scenario)
    first, second = Entry("cycle", job_id, 1, 1), Entry("cycle", job_id, 3, 2)
    fail_recheck(scenario, first)
    scenario.end(first.cycle_id, "requeued")
    assert scenario.recheck_refusal(second) == ClaimRefused("early")
    claim = scenario.claim(job_id, 5)
    scenario.settle(claim, succeeds(claim))
    scenario.advance(scenario.settings.lease + 1)
    lease = scenario.claim_recheck(second).lease
    assert scenario.ledger.settle_cycle(lease, status="completed", score=90)
    statuses = [cycle.status for cycle in scenario.view(job_id).cycles]
    assert statuses == [CycleStatus.ESCALATED, CycleStatus.COMPLETED]


def test_a_requeue_is_an_event(scenario: Scenario) -> None:
    job_id = scenario.escalated_job(labels={"tenant": "acme"})
    scenario.end(f"{job_id}:1", "requeued")
    event = [event.data for event in scenario.ledger.events() if event.type == "job"][-1]
    assert (event["state"], event["requeued"], event["tenant"]) == ("queued", True, "acme")


# -- retention -------------------------------------------------------------------------------------


def test_only_ended_escalations_expire(scenario: Scenario) -> None:
    kept, gone = (
        scenario.escalated_job(group_signature="v1:kept"),
        scenario.escalated_job(group_signature="v1:gone"),
    )
    scenario.end(f"{gone}:1", "resolved")
    scenario.advance(scenario.settings.cycle_retention + 1)
    scenario.sweep()
    assert scenario.ledger.escalation(f"{gone}:1") is None
    assert [each.job_id for each in scenario.ledger.escalations(only_open=False)] == [kept]
    assert [group.signature for group in scenario.ledger.groups(only_open=False)] == ["v1:kept"]


def test_a_group_that_recurs_keeps_its_history(scenario: Scenario) -> None:
    job_id = scenario.escalated_job(group_signature=SIGNATURE)
    scenario.end(f"{job_id}:1", "resolved")
    scenario.advance(scenario.settings.cycle_retention - 100)
    scenario.escalated_job(group_signature=SIGNATURE)
    scenario.advance(200)
    scenario.sweep()
    group = scenario.ledger.group(SIGNATURE)
    assert group is not None
    assert (group.open, group.total) == (1, 2)


def test_over_the_cap_ended_escalations_go_first_then_the_oldest(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = new_scenario(escalations_cap=100)
    jobs = []
    for n in range(105):
        scenario.advance(0.01)
        jobs.append(
            scenario.escalated_job(group_signature=SIGNATURE, labels={"tenant": f"t{n % 3}"})
        )
    for job_id in (jobs[50], jobs[60]):
        scenario.end(f"{job_id}:1", "resolved")
    for _ in range(2):  # a separate sweep deletes ended ones first
        scenario.sweep()
    left = [
        each.job_id for each in reversed(scenario.ledger.escalations(only_open=False, limit=500))
    ]
    assert left == [job_id for job_id in jobs[3:] if job_id not in (jobs[50], jobs[60])]
    group = scenario.ledger.group(SIGNATURE)
    assert group is not None
    assert group.open == sum(group.tenants.values()) == group.task_types["extract"] == 100
    assert len(scenario.ledger.escalations(signature=SIGNATURE, limit=500)) == 100


def test_an_ended_escalation_leaves_no_key_without_expiry(
    new_redis_scenario: ScenarioMaker, redis_client: redis.Redis
) -> None:
    scenario = new_redis_scenario()
    for how in ("resolved", "cancelled"):
        scenario.end(f"{scenario.escalated_job(group_signature=f'v1:{how}')}:1", how)
    endless = {
        name.rpartition("}:")[2]
        for name in redis_client.scan_iter(count=1000)
        if redis_client.pttl(name) < 0 and not name.startswith("test:")
    }
    indexes = {"jobs", "jobs:escalated", "jobs:cancelled", "escalations", "escalations:ended"}
    assert endless == indexes | {"groups", "events"}
