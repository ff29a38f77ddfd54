"""The ledger's contract: what has to wait is never published, shows what it waits for, and ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.jobs import answer, make_job, passed
from support.ledger_scenario import Scenario, ScenarioMaker
from support.provider_calls import (
    answer_call,
    ask,
    fail_call,
    open_breaker,
    start_call,
    submit_for,
)
from support.settlements import retries_by_policy, retries_immediately, succeeds

from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.policies.jobs.provider_limits import ProviderLimits
from mulligan.tasks.ports.ledger import Accepted, Claim, ClaimRefused, Entry, Submission
from mulligan.workers.ledger.stored.job_ids import job_id as new_job_id

ACME: dict[str, Any] = {"labels": {"tenant": "acme"}}
QUOTA = {"acme": {"concurrency": 1, "tokens_per_day": 10}}


def waiting(scenario: Scenario, job_id: str) -> tuple[str, str | None, str | None]:
    view = scenario.view(job_id)
    return view.state, view.waiting_for, view.waiting_behind


def submit(scenario: Scenario, **fields: Any) -> Accepted:
    """Submit a job of tenant acme whose runner asks the provider `api`."""
    job = make_job(runner={"profile": "of-api"}, **{**ACME, **fields})
    (accepted,) = scenario.ledger.accept([Submission(id=new_job_id(partitions=1), job=job)])
    assert isinstance(accepted, Accepted)
    return accepted


# -- accept ----------------------------------------------------------------------------------------


def pause(what: str) -> Callable[[Scenario], Any]:
    def close(scenario: Scenario) -> None:
        scenario.ledger.pause(what)

    return close


def spend_tokens(scenario: Scenario) -> None:
    claim = start_call(scenario.ledger, "api", **ACME)
    answer_call(scenario.ledger, claim)
    scenario.settle(claim, succeeds(claim))


def take_the_slot_of_the_quota(scenario: Scenario) -> None:
    start_call(scenario.ledger, "other", **ACME)


def take_every_slot_of_the_provider(scenario: Scenario) -> None:
    for _ in range(8):
        start_call(scenario.ledger, "api")


def refuse_with_retry_after(scenario: Scenario) -> None:
    claim = start_call(scenario.ledger, "api")
    fail_call(scenario.ledger, claim, status=429, retry_after=30)
    scenario.ledger.cancel(claim.job_id)


CLOSED = {
    "paused queue": (pause("queue:attempt"), "pause", "queue:attempt"),
    "paused task type": (pause("task_type:extract"), "pause", "task_type:extract"),
    "paused provider": (pause("provider:api"), "pause", "provider:api"),
    "Retry-After": (refuse_with_retry_after, "provider", "provider:api"),
    "open breaker": (lambda s: open_breaker(s.ledger, "api"), "breaker", "provider:api"),
    "full provider": (take_every_slot_of_the_provider, "provider", "provider:api"),
    "spent tokens": (spend_tokens, "budget", "quota:acme"),
    "full quota": (take_the_slot_of_the_quota, "budget", "quota:acme"),
}


@pytest.mark.parametrize("why", CLOSED)
def test_a_job_that_would_have_to_wait_is_parked_when_it_is_accepted(
    new_scenario: ScenarioMaker, why: str
) -> None:
    scenario = new_scenario(quotas=QUOTA)
    known = start_call(scenario.ledger, "api")  # so that the ledger knows the runner's provider
    scenario.ledger.cancel(known.job_id)
    scenario.ledger.requeue(known.lease, delay=0, detail="cancelled")
    close, waits_for, behind = CLOSED[why]
    close(scenario)
    accepted = submit(scenario)
    assert accepted.publication is None
    assert waiting(scenario, accepted.id) == ("waiting", waits_for, behind)
    assert scenario.swept_entries("attempt") == set()
    assert [(each.reason, each.count) for each in scenario.ledger.parked()] == [(behind, 1)]


def test_a_thousand_jobs_for_a_paused_provider_publish_nothing(
    new_redis_scenario: ScenarioMaker,
) -> None:
    """Given a thousand jobs for a paused provider, then the outbox has nothing to publish, and when
    it is resumed, they are released in their order, retries and urgent ones first."""
    scenario = new_redis_scenario(sweep_limit=100)
    ledger = scenario.ledger
    failed = start_call(ledger, "api")
    ledger.pause("provider:api")
    scenario.settle(failed, retries_by_policy(failed))
    ordinary = [submit(scenario, labels={}) for _ in range(1000)]
    urgent = submit(scenario, labels={}, priority=1)
    assert {each.publication for each in (*ordinary, urgent)} == {None}
    assert ledger.calls.run("ZCARD", "mulligan:{p00}:outbox") == 0
    ledger.resume("provider:api")
    released = [publication.entry.job_id for publication in scenario.sweep()]
    assert released == [failed.job_id, urgent.id, *(each.id for each in ordinary[:6])]  # its limit


def test_a_probe_is_published_and_what_follows_it_waits(scenario: Scenario) -> None:
    """Given a breaker whose time is over, then the next job is published to try the provider."""
    open_breaker(scenario.ledger, "api")
    scenario.advance(3)
    probe = submit(scenario)
    assert probe.publication is not None
    assert isinstance(ask(scenario.ledger, probe.id, "api"), Claim)
    second = submit(scenario)
    assert second.publication is None
    assert waiting(scenario, second.id) == ("waiting", "breaker", "provider:api")


def test_a_freed_slot_releases_a_job_that_was_parked_when_it_was_accepted(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = new_scenario(quotas={"acme": {"concurrency": 1}})
    running = start_call(scenario.ledger, "api", **ACME)
    accepted = submit(scenario)
    assert accepted.publication is None
    published = scenario.ledger.settle(running.lease, succeeds(running))
    assert not isinstance(published, ClaimRefused)
    assert [str(each.entry) for each in published] == [f"a:{accepted.id}/1"]
    scenario.claim(accepted.id)


def test_external_work_waits_in_its_lane_and_not_behind_a_pause(scenario: Scenario) -> None:
    scenario.ledger.pause("queue:attempt")
    job_id = scenario.submit_external()
    assert scenario.ledger.parked() == []
    scenario.ledger.resume("queue:attempt")
    assert scenario.next_entry() == f"a:{job_id}/1"


# -- whatever else makes an entry due --------------------------------------------------------------


def test_a_mandatory_retry_is_parked_when_its_queue_is_paused(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    scenario.ledger.pause("queue:repair")
    settlement = retries_immediately(claim)
    assert scenario.ledger.settle(claim.lease, settlement) == []
    assert scenario.ledger.settle(claim.lease, settlement) == []  # a repeated call
    assert waiting(scenario, job_id) == ("waiting", "pause", "queue:repair")
    assert scenario.swept_entries("repair", "attempt") == set()
    scenario.ledger.resume("queue:repair")
    assert scenario.swept_entries() == {f"a:{job_id}/2"}
    assert scenario.claim(job_id, 2).plan.mode == "immediate_retry"


def test_a_parked_retry_leaves_the_slot_of_its_tenant_to_others(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = new_scenario(quotas={"acme": {"concurrency": 1}})
    claim = scenario.claim(scenario.submit(**ACME))
    other = scenario.submit(**ACME)
    scenario.ledger.pause("queue:repair")
    published = scenario.ledger.settle(claim.lease, retries_immediately(claim))
    assert not isinstance(published, ClaimRefused)
    assert [str(each.entry) for each in published] == [f"a:{other}/1"]


@pytest.mark.parametrize("how", ["requeued", "delayed retry", "lost worker", "lost message"])
def test_an_attempt_that_is_due_during_a_pause_is_not_published(
    scenario: Scenario, how: str
) -> None:
    job_id = scenario.submit()
    number = 1
    if how == "lost message":
        scenario.advance(scenario.settings.outbox_grace + 1)
    else:
        claim = scenario.claim(job_id)
        if how == "requeued":
            scenario.ledger.requeue(claim.lease, delay=10, detail="503")
        elif how == "delayed retry":
            scenario.settle(claim, retries_by_policy(claim, delay=10))
            number = 2
        scenario.advance(scenario.settings.lease + 1)
    scenario.ledger.pause("task_type:extract")
    assert scenario.swept_entries("attempt") == set()
    assert waiting(scenario, job_id) == ("waiting", "pause", "task_type:extract")
    scenario.ledger.resume("task_type:extract")
    assert scenario.swept_entries() == {f"a:{job_id}/{number}"}
    scenario.claim(job_id, number)


def test_an_attempt_whose_lease_lapsed_is_queued_while_it_is_parked(scenario: Scenario) -> None:
    """Given a claim that finds the pause before a sweep finds the lapsed lease."""
    job_id = scenario.submit()
    scenario.claim(job_id)
    scenario.advance(scenario.settings.lease + 1)
    scenario.ledger.pause("queue:attempt")
    assert scenario.refusal(job_id).reason == "paused"
    assert waiting(scenario, job_id) == ("waiting", "pause", "queue:attempt")
    assert scenario.attempt(job_id).state == "queued"


def test_a_person_s_requeue_is_parked_too(scenario: Scenario) -> None:
    job_id = scenario.escalated_job()
    scenario.ledger.pause("task_type:extract")
    assert scenario.end(f"{job_id}:1", "requeued").publication is None
    assert waiting(scenario, job_id) == ("waiting", "pause", "task_type:extract")
    scenario.ledger.resume("task_type:extract")
    assert scenario.swept_entries() == {f"a:{job_id}/2"}


def test_outcomes_are_sent_during_every_pause(scenario: Scenario) -> None:
    job_id = scenario.submit(on_done={"task": "app.done", "queue": "app"})
    claim = scenario.claim(job_id)
    scenario.settle(claim, succeeds(claim))
    for what in ("queue:attempt", "queue:verify", "queue:repair", "task_type:extract"):
        scenario.ledger.pause(what)
    assert scenario.swept_entries() == {f"d:{job_id}/1"}


# -- verifications ---------------------------------------------------------------------------------


def test_verifications_of_a_paused_queue_are_not_published_and_their_job_says_so(
    scenario: Scenario,
) -> None:
    job_id = scenario.submit()
    scenario.ledger.pause("queue:verify")
    claim = scenario.claim(job_id)
    for _ in range(2):  # the second is a repeated call
        assert scenario.ledger.store_output(claim.lease, answer(), verifications=(0, 1)) == []
    assert waiting(scenario, job_id) == ("waiting", "pause", "queue:verify")
    assert scenario.swept_entries("verify") == set()
    scenario.ledger.resume("queue:verify")
    assert scenario.swept_entries() == {f"v:{job_id}/1/0", f"v:{job_id}/1/1"}
    assert waiting(scenario, job_id) == ("running", None, None)
    for index in (0, 1):
        scenario.claim_verification(job_id, index)


def test_parked_verifications_end_with_the_deadline_of_their_job_and_not_before(
    scenario: Scenario,
) -> None:
    job_id = scenario.submit(deadline=100)
    scenario.hand_over(job_id)
    scenario.ledger.pause("queue:verify")
    for index in (0, 1):
        assert scenario.verification_refusal(job_id, index).reason == "paused"
    assert waiting(scenario, job_id) == ("waiting", "pause", "queue:verify")
    scenario.advance(99)
    scenario.sweep()
    assert scenario.view(job_id).state == "waiting"
    scenario.advance(1.1)
    scenario.ledger.resume("queue:verify")  # too late: the deadline comes first
    assert scenario.swept_entries() == set()
    view = scenario.view(job_id)
    assert (view.state, view.reason) == ("escalated", "deadline")
    assert scenario.ledger.parked() == []


def test_a_job_runs_while_one_of_its_verifications_runs(scenario: Scenario) -> None:
    """Given one verification that runs and one that is parked, when the first ends after the
    deadline, then the job waits, and ends in the next sweep."""
    job_id = scenario.submit(deadline=100)
    scenario.hand_over(job_id)
    running = scenario.claim_verification(job_id, 0)
    scenario.ledger.pause("queue:verify")
    scenario.verification_refusal(job_id, 1)
    assert waiting(scenario, job_id) == ("running", None, None)
    scenario.advance(101)
    scenario.ledger.renew([running.lease])
    scenario.sweep()
    assert scenario.view(job_id).state == "running"
    scenario.ledger.store_result(running.lease, passed(), elapsed=1.0)
    assert waiting(scenario, job_id) == ("waiting", "pause", "queue:verify")
    scenario.sweep()
    assert scenario.view(job_id).reason == "deadline"


def test_a_job_whose_verifications_are_parked_can_be_cancelled(scenario: Scenario) -> None:
    job_id = scenario.submit()
    scenario.ledger.pause("queue:verify")
    scenario.hand_over(job_id)
    assert scenario.ledger.cancel(job_id) == "cancelled"
    assert scenario.ledger.parked() == []
    assert scenario.ledger.calls.run("ZCARD", "mulligan:{p00}:stale") == 0


def test_a_requeued_verification_that_is_due_during_a_pause_is_parked(scenario: Scenario) -> None:
    job_id = scenario.submit()
    scenario.hand_over(job_id, (0,))
    verification = scenario.claim_verification(job_id, 0)
    scenario.ledger.requeue(verification.lease, delay=5, detail="no verdict")
    scenario.ledger.pause("queue:verify")
    scenario.advance(6)
    assert scenario.swept_entries("verify") == set()
    assert waiting(scenario, job_id) == ("waiting", "pause", "queue:verify")


# -- delayed verifications -------------------------------------------------------------------------


def parked_recheck(scenario: Scenario) -> tuple[str, Entry]:
    """Return a repaired job whose delayed verification became due during a pause."""
    job_id, entry = scenario.repaired_job()
    scenario.ledger.pause("queue:verify")
    scenario.advance(601)
    assert scenario.swept_entries("verify") == set()
    assert [(each.reason, each.count) for each in scenario.ledger.parked()] == [("queue:verify", 1)]
    return job_id, entry


def test_a_delayed_verification_that_is_due_during_a_pause_is_not_published(
    scenario: Scenario,
) -> None:
    job_id, entry = parked_recheck(scenario)
    assert waiting(scenario, job_id) == ("succeeded", None, None)
    scenario.ledger.resume("queue:verify")
    assert scenario.swept_entries() == {str(entry)}
    scenario.claim_recheck(entry)


def test_a_parked_delayed_verification_becomes_stale_and_not_before(scenario: Scenario) -> None:
    job_id, _ = parked_recheck(scenario)
    scenario.advance(scenario.settings.stale_after - 5)
    scenario.sweep()
    assert scenario.cycle(job_id).status is CycleStatus.PENDING_DELAYED_VERIFICATION
    scenario.advance(6)
    scenario.sweep()
    cycle = scenario.cycle(job_id)
    assert (cycle.status, cycle.reason) == (CycleStatus.ESCALATED, "missing_delayed_verification")
    assert scenario.ledger.parked() == []
    assert scenario.view(job_id).state == "succeeded"


def test_a_delayed_verification_is_parked_behind_the_provider_it_asks(scenario: Scenario) -> None:
    job_id = submit_for(
        scenario.ledger, "of-api", delayed_verification={"mode": "reformulate", "after": 10}
    )
    first = ask(scenario.ledger, job_id, "api")
    assert isinstance(first, Claim)
    scenario.settle(first, retries_immediately(first))
    second = ask(scenario.ledger, job_id, "api", 2)
    assert isinstance(second, Claim)
    answer_call(scenario.ledger, second)
    scenario.settle(second, succeeds(second, verify_on="attempt", verify_after=10.0))
    scenario.ledger.pause("provider:api")
    scenario.advance(11)
    assert scenario.swept_entries("attempt") == set()
    scenario.ledger.resume("provider:api")
    assert scenario.swept_entries() == {f"c:{job_id}:1:1"}


# -- the share of a release ------------------------------------------------------------------------


def test_a_limit_grows_no_further_than_the_fleet_uses_it(scenario: Scenario) -> None:
    """Given a backlog and workers that run 8 calls at once, then the limit stays near 8: entries
    that were released and not claimed are no calls."""
    ledger = scenario.ledger
    running = [start_call(ledger, "api") for _ in range(8)]
    for _ in range(200):
        submit(scenario, labels={})
    released: list[str] = []
    for _ in range(100):
        released += answer_call(ledger, running.pop(0))
        claim = ask(ledger, Entry.parse(released.pop(0)).job_id, "api")
        assert isinstance(claim, Claim)
        running.append(claim)
    assert ledger.breakers.all()["api"].limit <= 2 * 8 + 1


def test_released_entries_do_not_take_every_worker_from_others(scenario: Scenario) -> None:
    """Given a provider whose calls are all that runs, then what it releases queues like new work;
    once others have most of the workers, its entries go to the front, to keep its slots filled."""
    ledger = scenario.ledger
    ledger.limit_providers(lambda: {"api": ProviderLimits(concurrency=2)})
    calls = [start_call(ledger, "api", priority=5) for _ in range(2)]
    for _ in range(2):
        assert submit(scenario, labels={}, priority=5).publication is None
    stored = ledger.store_output(calls[0].lease, answer())
    assert not isinstance(stored, ClaimRefused)
    assert [each.priority for each in stored] == [5]
    for _ in range(4):
        start_call(ledger, "other")
    stored = ledger.store_output(calls[1].lease, answer())
    assert not isinstance(stored, ClaimRefused)
    assert [each.priority for each in stored] == [0]
