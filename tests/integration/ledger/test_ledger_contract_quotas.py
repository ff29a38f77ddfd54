"""The ledger's contract: a tenant's quotas of concurrency and daily tokens."""

from __future__ import annotations

from typing import Any

import pytest
from support.jobs import answer, passed
from support.ledger_scenario import Scenario, ScenarioMaker
from support.settlements import retries_by_policy, retries_immediately, succeeds

from mulligan.tasks.ports.ledger import Claim, ClaimRefused, Entry, EntryRequeued, Publication
from mulligan.workers.ledger import keys

OVER_QUOTA = "over_quota"
DAY = 86400


def with_one_slot(new_scenario: ScenarioMaker, **overrides: Any) -> Scenario:
    return new_scenario(quotas={"acme": {"concurrency": 1}}, **overrides)


def of_tenant(tenant: str, **fields: Any) -> dict[str, Any]:
    return {"labels": {"tenant": tenant}, **fields}


def settle(scenario: Scenario, claim: Claim) -> list[Publication]:
    published = scenario.ledger.settle(claim.lease, succeeds(claim))
    assert not isinstance(published, ClaimRefused)
    return published


def test_a_tenant_runs_at_most_its_quota_at_once(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario(quotas={"acme": {"concurrency": 2}})
    jobs = [scenario.submit(**of_tenant("acme")) for _ in range(3)]
    scenario.claim(jobs[0])
    scenario.claim(jobs[1])
    assert scenario.refusal(jobs[2]).reason == OVER_QUOTA
    view = scenario.view(jobs[2])
    assert (view.state, view.waiting_for, view.tenant) == ("waiting", "budget", "acme")


@pytest.mark.parametrize(
    ("quotas", "tenant", "limited"),
    [
        ({"acme": {"concurrency": 1}}, "acme", True),
        ({"acme": {"concurrency": 1}}, "other", False),
        ({"acme": {"concurrency": 1}}, None, False),
        ({"*": {"concurrency": 1}}, "other", True),
        ({"*": {"concurrency": 1}}, None, False),  # a job without a tenant has no quota
        ({"*": {"concurrency": 1}}, "", False),
        ({"*": {"concurrency": 1}, "acme": {"concurrency": 9}}, "acme", False),
        ({"*": {"concurrency": 1}, "acme": {}}, "acme", False),
        ({}, "acme", False),
    ],
)
def test_a_job_is_limited_by_its_tenant_s_quota_or_the_default(
    new_scenario: ScenarioMaker, quotas: dict[str, Any], tenant: str | None, limited: bool
) -> None:
    scenario = new_scenario(quotas=quotas)
    labels = {} if tenant is None else {"tenant": tenant}
    first, second = (scenario.submit(labels=labels) for _ in range(2))
    scenario.claim(first)
    if limited:
        assert scenario.refusal(second).reason == OVER_QUOTA
    else:
        scenario.claim(second)


def test_tenants_do_not_share_a_quota(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario(quotas={"*": {"concurrency": 1}})
    jobs = [scenario.submit(**of_tenant(tenant)) for tenant in ("acme", "other")]
    for job_id in jobs:
        scenario.claim(job_id)
    assert [scenario.view(job_id).state for job_id in jobs] == ["running", "running"]


def test_another_label_may_name_the_tenant(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario(quotas={"blue": {"concurrency": 1}}, tenant_label="team")
    first, second = (scenario.submit(labels={"team": "blue", "tenant": "x"}) for _ in range(2))
    scenario.claim(first)
    assert scenario.refusal(second).reason == OVER_QUOTA
    assert scenario.view(first).tenant == "blue"


# -- order of release ------------------------------------------------------------------------------


def parked(scenario: Scenario, count: int) -> tuple[Claim, list[str]]:
    """Return one claimed attempt of acme, and jobs that wait for the quota in order."""
    claimed = scenario.claim(scenario.submit(**of_tenant("acme", priority=3)))
    jobs = []
    for _ in range(count):
        scenario.advance(1)
        jobs.append(scenario.submit(**of_tenant("acme", priority=3)))
        assert scenario.refusal(jobs[-1]).reason == OVER_QUOTA
    return claimed, jobs


def test_settling_releases_the_first_waiting_attempt(new_scenario: ScenarioMaker) -> None:
    scenario = with_one_slot(new_scenario)
    claim, jobs = parked(scenario, 3)
    scenario.advance(scenario.settings.lease - 10)
    assert scenario.swept_entries("attempt") == set()
    for job_id in jobs:
        published = settle(scenario, claim)
        assert published == [Publication(Entry("attempt", job_id, 1), "attempt", 3)]
        claim = scenario.claim(job_id)
    assert settle(scenario, claim) == []


def test_a_released_but_unpublished_attempt_is_found_by_the_sweep(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = with_one_slot(new_scenario)
    claim, jobs = parked(scenario, 1)
    assert settle(scenario, claim)
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.swept_entries() == {f"a:{jobs[0]}/1"}


def test_the_sweep_releases_one_attempt_per_free_slot(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario(quotas={"acme": {"concurrency": 2}})
    held = [scenario.claim(scenario.submit(**of_tenant("acme"))) for _ in range(2)]
    jobs = []
    for _ in range(4):
        scenario.advance(1)
        jobs.append(scenario.submit(**of_tenant("acme")))
        assert scenario.refusal(jobs[-1]).reason == OVER_QUOTA
    scenario.ledger.stamp([Entry("attempt", job_id, 1) for job_id in jobs])
    for claim, job_id in zip(held, jobs, strict=False):
        released = scenario.ledger.store_output(
            claim.lease, answer(), verifications=[0], priority=5
        )
        assert isinstance(released, list)
        assert str(released[-1].entry) == f"a:{job_id}/1"
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.swept_entries() == {f"a:{job_id}/1" for job_id in jobs[:2]} | {
        f"v:{claim.job_id}/1/0" for claim in held
    }


def test_a_slot_is_kept_for_the_attempt_that_was_released_for_it(
    new_scenario: ScenarioMaker,
) -> None:
    """Given a new job that comes before the first waiting attempt is claimed, then it waits."""
    scenario = with_one_slot(new_scenario)
    claim, jobs = parked(scenario, 2)
    assert settle(scenario, claim)[0].entry.job_id == jobs[0]
    assert scenario.refusal(scenario.submit(**of_tenant("acme"))).reason == OVER_QUOTA
    assert settle(scenario, scenario.claim(jobs[0]))[0].entry.job_id == jobs[1]


def test_a_slot_whose_attempt_is_never_claimed_is_given_to_the_next(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = with_one_slot(new_scenario)
    claim, jobs = parked(scenario, 2)
    lost = settle(scenario, claim)[0].entry
    scenario.ledger.stamp([lost])
    scenario.advance(20)
    assert scenario.swept_entries() == {f"a:{jobs[1]}/1"}
    assert scenario.refusal(jobs[0]).reason == OVER_QUOTA
    assert settle(scenario, scenario.claim(jobs[1]))[0].entry == lost


def test_a_retry_takes_the_slot_of_the_attempt_it_follows(new_scenario: ScenarioMaker) -> None:
    scenario = with_one_slot(new_scenario)
    claim, jobs = parked(scenario, 1)
    published = scenario.ledger.settle(claim.lease, retries_immediately(claim))
    assert published == [Publication(Entry("attempt", claim.job_id, 2), "repair", 0)]
    retry = scenario.claim(claim.job_id, 2)
    assert scenario.refusal(jobs[0]).reason == OVER_QUOTA
    assert settle(scenario, retry)[0].entry.job_id == jobs[0]


def test_a_delayed_retry_frees_its_slot(new_scenario: ScenarioMaker) -> None:
    scenario = with_one_slot(new_scenario)
    claim, jobs = parked(scenario, 1)
    published = scenario.ledger.settle(claim.lease, retries_by_policy(claim, delay=50))
    assert published == [Publication(Entry("attempt", jobs[0], 1), "attempt", 3)]


def test_a_cancelled_job_waiting_for_a_quota_is_skipped(new_scenario: ScenarioMaker) -> None:
    scenario = with_one_slot(new_scenario)
    claim, jobs = parked(scenario, 2)
    scenario.ledger.cancel(jobs[0])
    assert [published.entry.job_id for published in settle(scenario, claim)] == [jobs[1]]


# -- freeing a slot --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["expired", "requeued", "cancelled", "verifying", "lost for good"])
def test_every_end_of_a_lease_frees_its_slot(new_scenario: ScenarioMaker, how: str) -> None:
    scenario = with_one_slot(new_scenario, max_claims=1)
    claim, jobs = parked(scenario, 1)
    freed = {f"a:{jobs[0]}/1"}
    match how:
        case "expired":
            assert scenario.expire_leases() >= freed
        case "requeued":
            requeued = scenario.ledger.requeue(claim.lease, delay=500, detail="503")
            assert isinstance(requeued, EntryRequeued)
            assert {str(each.entry) for each in requeued.released} == freed
        case "cancelled":
            # Its worker is still running: the slot is freed when it ends.
            scenario.ledger.cancel(claim.job_id)
            assert scenario.swept_entries() == set()
            assert [published.entry.job_id for published in settle(scenario, claim)] == jobs
        case "verifying":
            stored = scenario.ledger.store_output(
                claim.lease, answer(), verifications=[0], priority=5
            )
            assert isinstance(stored, list)
            assert {str(each.entry) for each in stored} == freed | {f"v:{claim.job_id}/1/0"}
        case _:
            scenario.ledger.cancel(claim.job_id)
            assert scenario.expire_leases() == freed
    scenario.claim(jobs[0])


def test_a_slot_whose_job_is_no_longer_kept_is_given_to_the_next(
    new_scenario: ScenarioMaker,
) -> None:
    """Given a job that was cancelled while it ran, and a fleet that was away for its retention."""
    scenario = new_scenario(quotas={"acme": {"concurrency": 1}})
    cancelled = scenario.submit(**of_tenant("acme"))
    scenario.claim(cancelled)
    scenario.ledger.cancel(cancelled)
    scenario.advance(scenario.settings.retention + 1, away=True)
    assert scenario.ledger.job(cancelled) is None
    waiting = scenario.submit(**of_tenant("acme"))
    scenario.sweep()
    assert scenario.view(waiting).state == "waiting"  # the worker has one more lease to report
    assert scenario.expire_leases() == {f"a:{waiting}/1"}
    scenario.claim(waiting)


def test_a_renewed_lease_keeps_its_slot(new_scenario: ScenarioMaker) -> None:
    scenario = with_one_slot(new_scenario)
    claim, jobs = parked(scenario, 1)
    scenario.advance(scenario.settings.lease - 5)
    scenario.ledger.renew([claim.lease])
    scenario.advance(20)
    assert scenario.swept_entries() == set()
    assert scenario.refusal(jobs[0]).reason == OVER_QUOTA


def test_a_verification_takes_no_slot_but_settling_does(new_scenario: ScenarioMaker) -> None:
    scenario = with_one_slot(new_scenario)
    first = scenario.submit(**of_tenant("acme"))
    scenario.hand_over(first, [0])
    second = scenario.claim(scenario.submit(**of_tenant("acme")))
    check = scenario.claim_verification(first, 0)
    last = scenario.ledger.store_result(check.lease, passed(), elapsed=0)
    assert isinstance(last, Claim)  # never refused: only settling is left
    settle(scenario, second)
    third = scenario.submit(**of_tenant("acme"))
    assert scenario.refusal(third).reason == OVER_QUOTA
    assert [each.entry.job_id for each in settle(scenario, last)] == [third]


def test_an_expired_attempt_takes_one_slot_when_it_runs_again(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = new_scenario(quotas={"acme": {"concurrency": 2}})
    job_id = scenario.submit(**of_tenant("acme"))
    scenario.claim(job_id)
    scenario.expire_leases()
    scenario.claim(job_id)
    scenario.claim(scenario.submit(**of_tenant("acme")))
    assert scenario.refusal(scenario.submit(**of_tenant("acme"))).reason == OVER_QUOTA


# -- tokens a day ----------------------------------------------------------------------------------


def spend(scenario: Scenario, tokens: int, **fields: Any) -> None:
    claim = scenario.claim(scenario.submit(**{**of_tenant("acme"), **fields}))
    scenario.ledger.store_output(claim.lease, answer(tokens=tokens))
    settle(scenario, claim)


def seconds_to_midnight(scenario: Scenario) -> float:
    return DAY - scenario.ledger.now() % DAY


def test_daily_tokens_are_renewed_at_midnight_utc(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario(quotas={"acme": {"tokens_per_day": 100}})
    scenario.advance(seconds_to_midnight(scenario) + 10)  # start of a day, whenever this test runs
    spend(scenario, 60)
    spend(scenario, 60)  # usage is not known in advance: the last one may exceed it
    waiting = scenario.submit(**of_tenant("acme", deadline=3 * DAY))
    assert scenario.refusal(waiting).reason == OVER_QUOTA
    assert scenario.view(waiting).waiting_for == "budget"
    spend(scenario, 10, labels={"tenant": "other"})
    scenario.advance(DAY - 30)
    assert scenario.swept_entries("attempt") == set()
    scenario.advance(30)
    assert scenario.swept_entries() == {f"a:{waiting}/1"}
    scenario.claim(waiting)


def test_settling_releases_nothing_when_the_daily_tokens_are_spent(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = new_scenario(quotas={"acme": {"concurrency": 1, "tokens_per_day": 100}})
    scenario.advance(seconds_to_midnight(scenario) + 10)
    claim, _ = parked(scenario, 1)
    scenario.ledger.store_output(claim.lease, answer(tokens=100))
    assert settle(scenario, claim) == []
    assert scenario.swept_entries("attempt") == set()


def test_a_reformulated_delayed_verification_spends_tokens_too(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = new_scenario(quotas={"acme": {"tokens_per_day": 100}})
    scenario.advance(seconds_to_midnight(scenario) + 10)
    _, entry = scenario.repaired_job(**of_tenant("acme"))
    scenario.advance(601)
    taken = scenario.claim_recheck(entry)
    for _ in range(2):  # repeated after a lost reply
        assert scenario.ledger.store_cycle_output(taken.lease, answer(tokens=100)) == []
    assert scenario.refusal(scenario.submit(**of_tenant("acme"))).reason == OVER_QUOTA


def test_unknown_usage_does_not_count_against_the_quota(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = new_scenario(quotas={"acme": {"tokens_per_day": 1}})
    claim = scenario.claim(scenario.submit(**of_tenant("acme")))
    scenario.ledger.store_output(claim.lease, answer(tokens=None))
    settle(scenario, claim)
    scenario.claim(scenario.submit(**of_tenant("acme")))


def test_a_retry_after_slow_verifications_waits_for_a_slot(new_scenario: ScenarioMaker) -> None:
    """Given a tenant whose slot went to another job while an answer was verified."""
    scenario = with_one_slot(new_scenario)
    first, second = (scenario.submit(**of_tenant("acme")) for _ in range(2))
    claim = scenario.claim(first)
    scenario.ledger.store_output(claim.lease, answer(), verifications=[0])
    running = scenario.claim(second)
    verifying = scenario.claim_verification(first, 0)
    last = scenario.ledger.store_result(verifying.lease, passed(), elapsed=0.1)
    assert isinstance(last, Claim)
    assert scenario.ledger.settle(last.lease, retries_immediately(last)) == []
    assert scenario.refusal(first, 2).reason == OVER_QUOTA
    assert [str(each.entry) for each in settle(scenario, running)] == [f"a:{first}/2"]
    scenario.claim(first, 2)


# -- lanes and partitions --------------------------------------------------------------------------


def test_external_work_waits_for_a_slot_in_its_lane(new_scenario: ScenarioMaker) -> None:
    scenario = with_one_slot(new_scenario)
    claim = scenario.claim(scenario.submit(**of_tenant("acme")))
    job_id = scenario.submit_external(**of_tenant("acme"))
    assert scenario.refusal(job_id).reason == OVER_QUOTA
    assert settle(scenario, claim) == []
    assert scenario.next_entry(tenant="acme") == f"a:{job_id}/1"
    scenario.claim(job_id)


def test_partitions_share_a_quota(new_scenario: ScenarioMaker) -> None:
    """Given 4 slots and 3 partitions, then 4 attempts run, and what waits in any partition gets the
    next free slot in order of arrival."""
    scenario = new_scenario(partitions=3, quotas={"acme": {"concurrency": 4}})
    jobs = []
    for _ in range(20):
        scenario.advance(0.01)
        jobs.append(scenario.submit(**of_tenant("acme")))
    assert {keys.partition_of(job_id) for job_id in jobs} == {"p00", "p01", "p02"}
    running = [scenario.claim(job_id) for job_id in jobs[:4]]
    for job_id in jobs[4:]:
        assert scenario.refusal(job_id).reason == OVER_QUOTA
    for job_id in jobs[4:]:
        assert [str(each.entry) for each in settle(scenario, running.pop(0))] == [f"a:{job_id}/1"]
        running.append(scenario.claim(job_id))
    assert [settle(scenario, claim) for claim in running] == [[]] * 4


def test_a_raised_number_of_partitions_leaves_a_quota_whole(new_scenario: ScenarioMaker) -> None:
    """Given work with keys, which stays in the first partition."""
    quotas = {"acme": {"concurrency": 3, "tokens_per_day": 100}}
    before = new_scenario(partitions=1, quotas=quotas)
    running = [before.claim(before.submit(**of_tenant("acme"), idempotency_key="k"))]
    after = new_scenario(partitions=3, quotas=quotas)
    keyed = [after.submit(**of_tenant("acme"), idempotency_key=f"k{n}") for n in range(3)]
    assert {keys.partition_of(job_id) for job_id in keyed} == {"p00"}
    running += [after.claim(job_id) for job_id in keyed[:2]]
    elsewhere = after.submit(**of_tenant("acme"))
    while keys.partition_of(elsewhere) == "p00":
        elsewhere = after.submit(**of_tenant("acme"))
    assert after.refusal(elsewhere).reason == after.refusal(keyed[2]).reason == OVER_QUOTA
    before.ledger.store_output(running[0].lease, answer(tokens=120))
    assert settle(before, running[0]) == []  # the day's tokens are spent in every partition
    assert after.view(elsewhere).state == "waiting"
    assert after.ledger.tokens_spent(["acme"], day=int(after.ledger.now() // DAY)) == {"acme": 120}


def test_a_slot_whose_records_are_gone_is_freed_for_other_partitions(
    new_scenario: ScenarioMaker,
) -> None:
    """Given slots of two partitions, then the sweep of one keeps the slots of the other."""
    scenario = new_scenario(partitions=2, quotas={"acme": {"concurrency": 2}})
    jobs = [scenario.submit(**of_tenant("acme")) for _ in range(12)]
    first = next(each for each in jobs if keys.partition_of(each) == "p00")
    second = next(each for each in jobs if keys.partition_of(each) == "p01")
    for job_id in (first, second):
        scenario.claim(job_id)
    third = next(each for each in jobs if each not in (first, second))
    assert scenario.refusal(third).reason == OVER_QUOTA
    scenario.sweep()
    assert scenario.view(third).state == "waiting"
