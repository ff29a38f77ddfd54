"""The ledger's contract, in memory and on Redis: what a tenant may use at once and in a day."""

from __future__ import annotations

from typing import Any

import pytest
from support.jobs import answer, passed
from support.ledger_scenario import Scenario, ScenarioMaker
from support.settlements import retries_by_policy, retries_immediately, succeeds

from mulligan.tasks.ports.ledger import Claim, ClaimRefused, Entry, Publication

OVER = ClaimRefused("over_quota")
DAY = 86400


def one_at_once(new_scenario: ScenarioMaker, **overrides: Any) -> Scenario:
    return new_scenario(quotas={"acme": {"concurrency": 1}}, **overrides)


def of(tenant: str, **fields: Any) -> dict[str, Any]:
    return {"labels": {"tenant": tenant}, **fields}


def settled(scenario: Scenario, claim: Claim) -> list[Publication]:
    published = scenario.ledger.settle(claim.lease, succeeds(claim))
    assert not isinstance(published, ClaimRefused)
    return published


def test_a_tenant_runs_no_more_at_once_than_its_quota(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario(quotas={"acme": {"concurrency": 2}})
    jobs = [scenario.submit(**of("acme")) for _ in range(3)]
    scenario.claim(jobs[0])
    scenario.claim(jobs[1])
    assert scenario.refusal(jobs[2]) == OVER
    view = scenario.view(jobs[2])
    assert (view.state, view.waiting_for, view.tenant) == ("waiting", "budget", "acme")


@pytest.mark.parametrize(
    ("quotas", "tenant", "limited"),
    [
        ({"acme": {"concurrency": 1}}, "acme", True),
        ({"acme": {"concurrency": 1}}, "other", False),
        ({"acme": {"concurrency": 1}}, None, False),
        ({"*": {"concurrency": 1}}, "other", True),
        ({"*": {"concurrency": 1}}, None, False),  # a job of nobody's has no quota
        ({"*": {"concurrency": 1}}, "", False),
        ({"*": {"concurrency": 1}, "acme": {"concurrency": 9}}, "acme", False),
        ({"*": {"concurrency": 1}, "acme": {}}, "acme", False),
        ({}, "acme", False),
    ],
)
def test_whose_quota_counts(
    new_scenario: ScenarioMaker, quotas: dict[str, Any], tenant: str | None, limited: bool
) -> None:
    scenario = new_scenario(quotas=quotas)
    labels = {} if tenant is None else {"tenant": tenant}
    first, second = (scenario.submit(labels=labels) for _ in range(2))
    scenario.claim(first)
    if limited:
        assert scenario.refusal(second) == OVER
    else:
        scenario.claim(second)


def test_tenants_do_not_share_a_quota(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario(quotas={"*": {"concurrency": 1}})
    jobs = [scenario.submit(**of(tenant)) for tenant in ("acme", "other")]
    for job_id in jobs:
        scenario.claim(job_id)
    assert [scenario.view(job_id).state for job_id in jobs] == ["running", "running"]


def test_another_label_may_say_whose_a_job_is(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario(quotas={"blue": {"concurrency": 1}}, tenant_label="team")
    first, second = (scenario.submit(labels={"team": "blue", "tenant": "x"}) for _ in range(2))
    scenario.claim(first)
    assert scenario.refusal(second) == OVER
    assert scenario.view(first).tenant == "blue"


# -- who goes next ---------------------------------------------------------------------------------


def parked(scenario: Scenario, count: int) -> tuple[Claim, list[str]]:
    """One attempt of acme's in hand, and some behind the quota in the order of coming."""
    first = scenario.claim(scenario.submit(**of("acme", priority=3)))
    jobs = []
    for _ in range(count):
        scenario.advance(1)
        jobs.append(scenario.submit(**of("acme", priority=3)))
        assert scenario.refusal(jobs[-1]) == OVER
    return first, jobs


def test_a_settled_attempt_lets_the_first_one_go_at_once(new_scenario: ScenarioMaker) -> None:
    scenario = one_at_once(new_scenario)
    claim, jobs = parked(scenario, 3)
    scenario.advance(scenario.settings.lease - 10)
    assert scenario.swept_entries("attempt") == set()
    for job_id in jobs:
        told = settled(scenario, claim)
        assert told == [Publication(Entry("attempt", job_id, 1), "attempt", 3)]
        claim = scenario.claim(job_id)
    assert settled(scenario, claim) == []


def test_one_that_was_let_go_and_not_published_is_found_by_the_sweep(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = one_at_once(new_scenario)
    claim, jobs = parked(scenario, 1)
    assert settled(scenario, claim)
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.swept_entries() == {f"a:{jobs[0]}/1"}


def test_the_sweep_lets_as_many_go_as_there_are_slots(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario(quotas={"acme": {"concurrency": 2}})
    held = [scenario.claim(scenario.submit(**of("acme"))) for _ in range(2)]
    jobs = []
    for _ in range(4):
        scenario.advance(1)
        jobs.append(scenario.submit(**of("acme")))
        assert scenario.refusal(jobs[-1]) == OVER
    for claim in held:
        scenario.ledger.store_output(claim.lease, answer(), verifications=[0])  # frees its slot
    assert scenario.swept_entries() == {f"a:{job_id}/1" for job_id in jobs[:2]}


def test_one_that_came_too_late_for_its_slot_keeps_its_place(new_scenario: ScenarioMaker) -> None:
    """Given that somebody new takes the slot that the first of the line was let go for."""
    scenario = one_at_once(new_scenario)
    claim, jobs = parked(scenario, 2)
    assert settled(scenario, claim)[0].entry.job_id == jobs[0]
    faster = scenario.claim(scenario.submit(**of("acme")))
    assert scenario.refusal(jobs[0]) == OVER
    assert settled(scenario, faster)[0].entry.job_id == jobs[0]


def test_a_retry_takes_the_slot_of_the_attempt_it_follows(new_scenario: ScenarioMaker) -> None:
    scenario = one_at_once(new_scenario)
    claim, jobs = parked(scenario, 1)
    published = scenario.ledger.settle(claim.lease, retries_immediately(claim))
    assert published == [Publication(Entry("attempt", claim.job_id, 2), "repair", 0)]
    retry = scenario.claim(claim.job_id, 2)
    assert scenario.refusal(jobs[0]) == OVER
    assert settled(scenario, retry)[0].entry.job_id == jobs[0]


def test_a_retry_that_waits_leaves_its_slot_to_others(new_scenario: ScenarioMaker) -> None:
    scenario = one_at_once(new_scenario)
    claim, jobs = parked(scenario, 1)
    published = scenario.ledger.settle(claim.lease, retries_by_policy(claim, delay=50))
    assert published == [Publication(Entry("attempt", jobs[0], 1), "attempt", 3)]


def test_a_cancelled_job_behind_a_quota_is_passed_over(new_scenario: ScenarioMaker) -> None:
    scenario = one_at_once(new_scenario)
    claim, jobs = parked(scenario, 2)
    scenario.ledger.cancel(jobs[0])
    assert [told.entry.job_id for told in settled(scenario, claim)] == [jobs[1]]


# -- how a slot is freed ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", ["expired", "given back", "cancelled", "verifying", "lost for good"]
)
def test_every_end_of_a_lease_frees_its_slot(new_scenario: ScenarioMaker, how: str) -> None:
    scenario = one_at_once(new_scenario, max_claims=1)
    claim, jobs = parked(scenario, 1)
    freed = {f"a:{jobs[0]}/1"}
    match how:
        case "expired":
            assert scenario.expire_leases() >= freed
        case "given back":
            scenario.ledger.requeue(claim.lease, delay=500, detail="503")
            assert scenario.swept_entries() == freed
        case "cancelled":
            # Its worker is still at it: the slot is free when that ends.
            scenario.ledger.cancel(claim.job_id)
            assert scenario.swept_entries() == set()
            assert [told.entry.job_id for told in settled(scenario, claim)] == jobs
        case "verifying":
            scenario.ledger.store_output(claim.lease, answer(), verifications=[0])
            assert scenario.swept_entries() == freed
        case _:
            scenario.ledger.cancel(claim.job_id)
            assert scenario.expire_leases() == freed
    scenario.claim(jobs[0])


def test_a_renewed_lease_keeps_its_slot(new_scenario: ScenarioMaker) -> None:
    scenario = one_at_once(new_scenario)
    claim, jobs = parked(scenario, 1)
    scenario.advance(scenario.settings.lease - 5)
    scenario.ledger.renew([claim.lease])
    scenario.advance(20)
    assert scenario.swept_entries() == set()
    assert scenario.refusal(jobs[0]) == OVER


def test_a_verification_takes_no_slot_and_the_verdict_s_does(new_scenario: ScenarioMaker) -> None:
    scenario = one_at_once(new_scenario)
    first = scenario.submit(**of("acme"))
    scenario.hand_over(first, [0])
    second = scenario.claim(scenario.submit(**of("acme")))
    check = scenario.claim_verification(first, 0)
    last = scenario.ledger.store_result(check.lease, passed(), elapsed=0)
    assert isinstance(last, Claim)  # never refused: it only has to be written down
    settled(scenario, second)
    assert scenario.refusal(scenario.submit(**of("acme"))) == OVER
    settled(scenario, last)
    scenario.claim(scenario.submit(**of("acme")))


def test_an_expired_attempt_is_counted_once_when_it_is_tried_again(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = new_scenario(quotas={"acme": {"concurrency": 2}})
    job_id = scenario.submit(**of("acme"))
    scenario.claim(job_id)
    scenario.expire_leases()
    scenario.claim(job_id)
    scenario.claim(scenario.submit(**of("acme")))
    assert scenario.refusal(scenario.submit(**of("acme"))) == OVER


# -- tokens a day ----------------------------------------------------------------------------------


def spend(scenario: Scenario, tokens: int, **fields: Any) -> None:
    claim = scenario.claim(scenario.submit(**{**of("acme"), **fields}))
    scenario.ledger.store_output(claim.lease, answer(tokens=tokens))
    settled(scenario, claim)


def to_midnight(scenario: Scenario) -> float:
    return DAY - scenario.ledger.now() % DAY


def test_tokens_of_a_day_are_given_back_at_midnight_utc(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario(quotas={"acme": {"tokens_per_day": 100}})
    scenario.advance(to_midnight(scenario) + 10)  # a day begins, whenever this test runs
    spend(scenario, 60)
    spend(scenario, 60)  # what is asked for is not known before: the last one may go over
    waiting = scenario.submit(**of("acme", deadline=3 * DAY))
    assert scenario.refusal(waiting) == OVER
    assert scenario.view(waiting).waiting_for == "budget"
    spend(scenario, 10, labels={"tenant": "other"})
    scenario.advance(DAY - 30)
    assert scenario.swept_entries("attempt") == set()
    scenario.advance(30)
    assert scenario.swept_entries() == {f"a:{waiting}/1"}
    scenario.claim(waiting)


def test_a_settled_attempt_that_spent_the_day_s_last_tokens_lets_nobody_go(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = new_scenario(quotas={"acme": {"concurrency": 1, "tokens_per_day": 100}})
    scenario.advance(to_midnight(scenario) + 10)
    claim, _ = parked(scenario, 1)
    scenario.ledger.store_output(claim.lease, answer(tokens=100))
    assert settled(scenario, claim) == []
    assert scenario.swept_entries("attempt") == set()


def test_a_delayed_verification_in_other_words_spends_tokens_too(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = new_scenario(quotas={"acme": {"tokens_per_day": 100}})
    scenario.advance(to_midnight(scenario) + 10)
    _, entry = scenario.repaired_job(**of("acme"))
    scenario.advance(601)
    taken = scenario.claim_recheck(entry)
    for _ in range(2):  # whoever did not hear the answer asks again
        assert scenario.ledger.store_cycle_output(taken.lease, answer(tokens=100))
    assert scenario.refusal(scenario.submit(**of("acme"))) == OVER


def test_an_unknown_count_of_tokens_is_not_held_against_anybody(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = new_scenario(quotas={"acme": {"tokens_per_day": 1}})
    claim = scenario.claim(scenario.submit(**of("acme")))
    scenario.ledger.store_output(claim.lease, answer(tokens=None))
    settled(scenario, claim)
    scenario.claim(scenario.submit(**of("acme")))


# -- lanes and partitions --------------------------------------------------------------------------


def test_a_lane_waits_for_a_slot_without_a_queue(new_scenario: ScenarioMaker) -> None:
    scenario = one_at_once(new_scenario)
    claim = scenario.claim(scenario.submit(**of("acme")))
    job_id = scenario.submit_external(**of("acme"))
    assert scenario.refusal(job_id) == OVER
    assert settled(scenario, claim) == []
    assert scenario.next_entry(tenant="acme") == f"a:{job_id}/1"
    scenario.claim(job_id)


def test_every_partition_has_its_share_of_a_quota(new_redis_scenario: ScenarioMaker) -> None:
    """Rounded up: 4 over 3 partitions are 2 in each."""
    scenario = new_redis_scenario(partitions=3, quotas={"acme": {"concurrency": 4}})
    jobs = [scenario.submit(**of("acme")) for _ in range(60)]
    for home in ("p00", "p01", "p02"):
        here = [job_id for job_id in jobs if job_id.startswith(home)]
        assert len(here) > 2
        for job_id in here[:2]:
            scenario.claim(job_id)
        assert scenario.refusal(here[2]) == OVER
