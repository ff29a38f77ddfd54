"""The ledger's contract, in memory and on Redis: what a tenant may use at once and in a day."""

from __future__ import annotations

from typing import Any

import pytest
from support.ledger_stage import (
    Stage,
    StageMaker,
    answer,
    passed,
    retries_at_once,
    retries_by_policy,
    succeeds,
)

from mulligan.tasks.ports.ledger import Claim, ClaimRefused, Entry, Publication

OVER = ClaimRefused("over_quota")
DAY = 86400


def one_at_once(stage: StageMaker, **overrides: Any) -> Stage:
    return stage(quotas={"acme": {"concurrency": 1}}, **overrides)


def of(tenant: str, **fields: Any) -> dict[str, Any]:
    return {"labels": {"tenant": tenant}, **fields}


def settled(play: Stage, claim: Claim) -> list[Publication]:
    published = play.ledger.settle(claim.lease, succeeds(claim))
    assert not isinstance(published, ClaimRefused)
    return published


def test_a_tenant_runs_no_more_at_once_than_its_quota(stage: StageMaker) -> None:
    play = stage(quotas={"acme": {"concurrency": 2}})
    jobs = [play.submit(**of("acme")) for _ in range(3)]
    play.take(jobs[0])
    play.take(jobs[1])
    assert play.refusal(jobs[2]) == OVER
    view = play.view(jobs[2])
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
    stage: StageMaker, quotas: dict[str, Any], tenant: str | None, limited: bool
) -> None:
    play = stage(quotas=quotas)
    labels = {} if tenant is None else {"tenant": tenant}
    first, second = (play.submit(labels=labels) for _ in range(2))
    play.take(first)
    if limited:
        assert play.refusal(second) == OVER
    else:
        play.take(second)


def test_tenants_do_not_share_a_quota(stage: StageMaker) -> None:
    play = stage(quotas={"*": {"concurrency": 1}})
    jobs = [play.submit(**of(tenant)) for tenant in ("acme", "other")]
    for job_id in jobs:
        play.take(job_id)
    assert [play.view(job_id).state for job_id in jobs] == ["running", "running"]


def test_another_label_may_say_whose_a_job_is(stage: StageMaker) -> None:
    play = stage(quotas={"blue": {"concurrency": 1}}, tenant_label="team")
    first, second = (play.submit(labels={"team": "blue", "tenant": "x"}) for _ in range(2))
    play.take(first)
    assert play.refusal(second) == OVER
    assert play.view(first).tenant == "blue"


# -- who goes next ---------------------------------------------------------------------------------


def parked(play: Stage, count: int) -> tuple[Claim, list[str]]:
    """One attempt of acme's in hand, and some behind the quota in the order of coming."""
    first = play.take(play.submit(**of("acme", priority=3)))
    jobs = []
    for _ in range(count):
        play.advance(1)
        jobs.append(play.submit(**of("acme", priority=3)))
        assert play.refusal(jobs[-1]) == OVER
    return first, jobs


def test_a_settled_attempt_lets_the_first_one_go_at_once(stage: StageMaker) -> None:
    play = one_at_once(stage)
    claim, jobs = parked(play, 3)
    play.advance(play.settings.lease - 10)
    assert play.swept("attempt") == set()
    for job_id in jobs:
        told = settled(play, claim)
        assert told == [Publication(Entry("attempt", job_id, 1), "attempt", 3)]
        claim = play.take(job_id)
    assert settled(play, claim) == []


def test_one_that_was_let_go_and_not_published_is_found_by_the_sweep(stage: StageMaker) -> None:
    play = one_at_once(stage)
    claim, jobs = parked(play, 1)
    assert settled(play, claim)
    play.advance(play.settings.outbox_grace + 1)
    assert play.swept() == {f"a:{jobs[0]}/1"}


def test_the_sweep_lets_as_many_go_as_there_are_slots(stage: StageMaker) -> None:
    play = stage(quotas={"acme": {"concurrency": 2}})
    held = [play.take(play.submit(**of("acme"))) for _ in range(2)]
    jobs = []
    for _ in range(4):
        play.advance(1)
        jobs.append(play.submit(**of("acme")))
        assert play.refusal(jobs[-1]) == OVER
    for claim in held:
        play.ledger.store_output(claim.lease, answer(), verifications=[0])  # frees its slot
    assert play.swept() == {f"a:{job_id}/1" for job_id in jobs[:2]}


def test_one_that_came_too_late_for_its_slot_keeps_its_place(stage: StageMaker) -> None:
    """Given that somebody new takes the slot that the first of the line was let go for."""
    play = one_at_once(stage)
    claim, jobs = parked(play, 2)
    assert settled(play, claim)[0].entry.job_id == jobs[0]
    faster = play.take(play.submit(**of("acme")))
    assert play.refusal(jobs[0]) == OVER
    assert settled(play, faster)[0].entry.job_id == jobs[0]


def test_a_retry_takes_the_slot_of_the_attempt_it_follows(stage: StageMaker) -> None:
    play = one_at_once(stage)
    claim, jobs = parked(play, 1)
    published = play.ledger.settle(claim.lease, retries_at_once(claim))
    assert published == [Publication(Entry("attempt", claim.job_id, 2), "repair", 0)]
    retry = play.take(claim.job_id, 2)
    assert play.refusal(jobs[0]) == OVER
    assert settled(play, retry)[0].entry.job_id == jobs[0]


def test_a_retry_that_waits_leaves_its_slot_to_others(stage: StageMaker) -> None:
    play = one_at_once(stage)
    claim, jobs = parked(play, 1)
    published = play.ledger.settle(claim.lease, retries_by_policy(claim, delay=50))
    assert published == [Publication(Entry("attempt", jobs[0], 1), "attempt", 3)]


def test_a_cancelled_job_behind_a_quota_is_passed_over(stage: StageMaker) -> None:
    play = one_at_once(stage)
    claim, jobs = parked(play, 2)
    play.ledger.cancel(jobs[0])
    assert [told.entry.job_id for told in settled(play, claim)] == [jobs[1]]


# -- how a slot is freed ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", ["expired", "given back", "cancelled", "verifying", "lost for good"]
)
def test_every_end_of_a_lease_frees_its_slot(stage: StageMaker, how: str) -> None:
    play = one_at_once(stage, max_claims=1)
    claim, jobs = parked(play, 1)
    freed = {f"a:{jobs[0]}/1"}
    match how:
        case "expired":
            assert play.expire_leases() >= freed
        case "given back":
            play.ledger.requeue(claim.lease, delay=500, detail="503")
            assert play.swept() == freed
        case "cancelled":
            # Its worker is still at it: the slot is free when that ends.
            play.ledger.cancel(claim.job_id)
            assert play.swept() == set()
            assert [told.entry.job_id for told in settled(play, claim)] == jobs
        case "verifying":
            play.ledger.store_output(claim.lease, answer(), verifications=[0])
            assert play.swept() == freed
        case _:
            play.ledger.cancel(claim.job_id)
            assert play.expire_leases() == freed
    play.take(jobs[0])


def test_a_renewed_lease_keeps_its_slot(stage: StageMaker) -> None:
    play = one_at_once(stage)
    claim, jobs = parked(play, 1)
    play.advance(play.settings.lease - 5)
    play.ledger.renew([claim.lease])
    play.advance(20)
    assert play.swept() == set()
    assert play.refusal(jobs[0]) == OVER


def test_a_verification_takes_no_slot_and_the_verdict_s_does(stage: StageMaker) -> None:
    play = one_at_once(stage)
    first = play.submit(**of("acme"))
    play.hand_over(first, [0])
    second = play.take(play.submit(**of("acme")))
    check = play.take_check(first, 0)
    last = play.ledger.store_result(check.lease, passed(), elapsed=0)
    assert isinstance(last, Claim)  # never refused: it only has to be written down
    settled(play, second)
    assert play.refusal(play.submit(**of("acme"))) == OVER
    settled(play, last)
    play.take(play.submit(**of("acme")))


def test_an_expired_attempt_is_counted_once_when_it_is_tried_again(stage: StageMaker) -> None:
    play = stage(quotas={"acme": {"concurrency": 2}})
    job_id = play.submit(**of("acme"))
    play.take(job_id)
    play.expire_leases()
    play.take(job_id)
    play.take(play.submit(**of("acme")))
    assert play.refusal(play.submit(**of("acme"))) == OVER


# -- tokens a day ----------------------------------------------------------------------------------


def spend(play: Stage, tokens: int, **fields: Any) -> None:
    claim = play.take(play.submit(**{**of("acme"), **fields}))
    play.ledger.store_output(claim.lease, answer(tokens=tokens))
    settled(play, claim)


def to_midnight(play: Stage) -> float:
    return DAY - play.ledger.now() % DAY


def test_tokens_of_a_day_are_given_back_at_midnight_utc(stage: StageMaker) -> None:
    play = stage(quotas={"acme": {"tokens_per_day": 100}})
    play.advance(to_midnight(play) + 10)  # a day begins, whenever this test runs
    spend(play, 60)
    spend(play, 60)  # what is asked for is not known before: the last one may go over
    waiting = play.submit(**of("acme", deadline=3 * DAY))
    assert play.refusal(waiting) == OVER
    assert play.view(waiting).waiting_for == "budget"
    spend(play, 10, labels={"tenant": "other"})
    play.advance(DAY - 30)
    assert play.swept("attempt") == set()
    play.advance(30)
    assert play.swept() == {f"a:{waiting}/1"}
    play.take(waiting)


def test_a_settled_attempt_that_spent_the_day_s_last_tokens_lets_nobody_go(
    stage: StageMaker,
) -> None:
    play = stage(quotas={"acme": {"concurrency": 1, "tokens_per_day": 100}})
    play.advance(to_midnight(play) + 10)
    claim, _ = parked(play, 1)
    play.ledger.store_output(claim.lease, answer(tokens=100))
    assert settled(play, claim) == []
    assert play.swept("attempt") == set()


def test_a_delayed_verification_in_other_words_spends_tokens_too(stage: StageMaker) -> None:
    play = stage(quotas={"acme": {"tokens_per_day": 100}})
    play.advance(to_midnight(play) + 10)
    _, entry = play.repaired(**of("acme"))
    play.advance(601)
    taken = play.take_recheck(entry)
    for _ in range(2):  # whoever did not hear the answer asks again
        assert play.ledger.store_cycle_output(taken.lease, answer(tokens=100))
    assert play.refusal(play.submit(**of("acme"))) == OVER


def test_an_unknown_count_of_tokens_is_not_held_against_anybody(stage: StageMaker) -> None:
    play = stage(quotas={"acme": {"tokens_per_day": 1}})
    claim = play.take(play.submit(**of("acme")))
    play.ledger.store_output(claim.lease, answer(tokens=None))
    settled(play, claim)
    play.take(play.submit(**of("acme")))


# -- lanes and partitions --------------------------------------------------------------------------


def test_a_lane_waits_for_a_slot_without_a_queue(stage: StageMaker) -> None:
    play = one_at_once(stage)
    claim = play.take(play.submit(**of("acme")))
    job_id = play.submit_elsewhere(**of("acme"))
    assert play.refusal(job_id) == OVER
    assert settled(play, claim) == []
    assert play.waiting(tenant="acme") == f"a:{job_id}/1"
    play.take(job_id)


def test_every_partition_has_its_share_of_a_quota(redis_stage: StageMaker) -> None:
    """Rounded up: 4 over 3 partitions are 2 in each."""
    play = redis_stage(partitions=3, quotas={"acme": {"concurrency": 4}})
    jobs = [play.submit(**of("acme")) for _ in range(60)]
    for home in ("p00", "p01", "p02"):
        here = [job_id for job_id in jobs if job_id.startswith(home)]
        assert len(here) > 2
        for job_id in here[:2]:
            play.take(job_id)
        assert play.refusal(here[2]) == OVER
