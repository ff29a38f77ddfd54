"""The ledger's contract: the limits of jobs whose attempts take hours."""

from __future__ import annotations

from typing import Any

import pytest
from support.jobs import answer, passed
from support.ledger_scenario import Scenario, ScenarioMaker
from support.provider_calls import ask, open_breaker
from support.releases import NEXT, of_release
from support.settlements import retries_immediately, succeeds

from mulligan.tasks.ports.ledger import Claim, ClaimRefused, Entry

LIMIT = 3 * 3600
CODER: dict[str, Any] = {"runner": {"profile": "coder"}}


@pytest.fixture
def scenario(new_scenario: ScenarioMaker) -> Scenario:
    """A scenario whose profile `coder` is an agent with 3 h for an attempt."""
    coder = {"kind": "scripted", "answers": ["{}"], "pool": "agent", "hard_limit": LIMIT}
    return new_scenario(runners={"coder": coder})


def keep(scenario: Scenario, claim: Claim, seconds: float) -> set[Entry]:
    """Renew a lease for so long, as its worker does, and return what is lost at the end."""
    step = scenario.settings.lease - 1
    for _ in range(int(seconds // step)):
        scenario.advance(step)
        assert scenario.ledger.renew([claim.lease]) == set()
        assert scenario.sweep() == []
    scenario.advance(seconds % step)
    return scenario.ledger.renew([claim.lease])


def queues(scenario: Scenario) -> list[str]:
    return [publication.queue for publication in scenario.sweep()]


# -- the hard limit --------------------------------------------------------------------------------


def test_the_lease_of_an_agent_is_renewed_until_the_limit_of_its_profile(
    new_fake_scenario: ScenarioMaker,
) -> None:
    """Given an agent with an hour, then it keeps its claim for that hour, not for the hard limit
    of others, and a repeated delivery of its message starts nothing."""
    hour = {"kind": "scripted", "answers": ["{}"], "pool": "agent", "hard_limit": "1h"}
    scenario = new_fake_scenario(runners={"coder": hour})
    job_id = scenario.submit(**CODER)
    claim = scenario.claim(job_id)
    assert keep(scenario, claim, 3000) == set()
    assert scenario.refusal(job_id) == ClaimRefused("held")
    assert scenario.view(job_id).attempts[0].claims == 1
    assert keep(scenario, claim, 601) == {claim.lease.entry}


def test_the_limit_holds_for_retries_and_for_a_renewal_that_comes_late(scenario: Scenario) -> None:
    first = scenario.claim(scenario.submit(**CODER))
    scenario.settle(first, retries_immediately(first))
    second = scenario.claim(first.job_id, 2)
    scenario.advance(LIMIT - 1)
    assert scenario.ledger.renew([second.lease]) == set()
    scenario.advance(2)
    assert scenario.ledger.renew([second.lease]) == {second.lease.entry}


def test_a_raised_limit_counts_for_jobs_that_were_accepted_before(
    new_scenario: ScenarioMaker,
) -> None:
    """Given a job that was escalated because an hour was too short, when it is requeued with three,
    then it has three: the limit is that of the worker that claims it."""
    coder = {"kind": "scripted", "answers": ["{}"], "pool": "agent"}
    before = new_scenario(runners={"coder": coder})
    job_id = before.escalated_job(**CODER)
    after = new_scenario(runners={"coder": {**coder, "hard_limit": LIMIT}})
    after.end(f"{job_id}:1", "requeued")
    claim = after.claim(job_id, 2)
    after.advance(LIMIT - 1)
    assert after.ledger.renew([claim.lease]) == set()


@pytest.mark.parametrize(("place", "kept"), [("attempt", True), ("verify", False)])
def test_to_ask_an_agent_again_has_its_limit_and_to_check_again_has_that_of_others(
    scenario: Scenario, place: Any, kept: bool
) -> None:
    first = scenario.claim(scenario.submit(**CODER))
    scenario.settle(first, retries_immediately(first))
    second = scenario.claim(first.job_id, 2)
    scenario.settle(second, succeeds(second, verify_after=0, verify_on=place))
    claim = scenario.claim_recheck(Entry("cycle", first.job_id, 1, 1))
    scenario.advance(scenario.settings.hard_limit + 1)
    assert (scenario.ledger.renew([claim.lease]) == set()) is kept


def test_other_claims_keep_their_limit(scenario: Scenario) -> None:
    other = scenario.claim(scenario.submit())
    job_id = scenario.submit(**CODER)
    scenario.hand_over(job_id)
    verification = scenario.claim_verification(job_id, 0)
    scenario.advance(scenario.settings.hard_limit + 1)
    leases = [other.lease, verification.lease]
    assert scenario.ledger.renew(leases) == {lease.entry for lease in leases}


# -- crash loops and deadlines ---------------------------------------------------------------------


def test_an_agent_that_loses_its_workers_is_escalated(scenario: Scenario) -> None:
    """Given an attempt whose workers die again and again, then each loss queues it once more in
    its own pool, and after `max_claims` a person has to look; a requeue starts anew."""
    job_id = scenario.submit(**CODER)
    for _ in range(scenario.settings.max_claims):
        scenario.claim(job_id)
        scenario.advance(scenario.settings.lease + 1)
        assert queues(scenario) == ["agent"]
    assert scenario.refusal(job_id) == ClaimRefused("escalated", "worker_lost")
    assert scenario.view(job_id).reason == "worker_lost"
    published = scenario.end(f"{job_id}:1", "requeued").publication
    assert published is not None
    assert published.queue == "agent"
    assert scenario.claim(job_id, 2)


def test_a_parked_agent_ends_at_its_deadline(scenario: Scenario) -> None:
    scenario.ledger.pause("queue:agent")
    job_id = scenario.submit(deadline=3600, **CODER)
    scenario.advance(3599)
    assert scenario.sweep() == []
    assert (scenario.view(job_id).state, scenario.view(job_id).waiting_for) == ("waiting", "pause")
    scenario.advance(2)
    scenario.sweep()
    assert (scenario.view(job_id).state, scenario.view(job_id).reason) == ("escalated", "deadline")
    scenario.ledger.resume("queue:agent")
    assert scenario.sweep() == []


def test_an_agent_may_finish_after_its_deadline_and_is_not_retried(scenario: Scenario) -> None:
    job_id = scenario.submit(deadline=3600, **CODER)
    claim = scenario.claim(job_id)
    scenario.advance(3601)
    assert scenario.ledger.renew([claim.lease]) == set()
    scenario.settle(claim, retries_immediately(claim))
    assert scenario.refusal(job_id, 2) == ClaimRefused("escalated", "deadline")


# -- steps that choose a queue again ---------------------------------------------------------------


def test_an_agent_that_waits_for_its_provider_returns_to_its_own_queue(scenario: Scenario) -> None:
    """Given a claimed attempt that learns that its provider takes no calls, then it is parked
    without an entry in the outbox, and released to its own queue."""
    open_breaker(scenario.ledger, "api", retry_after=60)
    job_id = scenario.submit(**CODER)
    assert ask(scenario.ledger, job_id, "api") == ClaimRefused("provider_busy", "provider:api")
    scenario.advance(301)
    assert queues(scenario) == ["agent"]


@pytest.mark.parametrize(("number", "queue"), [(1, "agent"), (2, "agent.repair")])
def test_a_quarantined_attempt_of_an_agent_is_sent_to_its_own_queue(
    scenario: Scenario, number: int, queue: str
) -> None:
    job_id = scenario.submit(**CODER)
    if number == 2:
        first = scenario.claim(job_id)
        scenario.settle(first, retries_immediately(first))
    entry = Entry("attempt", job_id, number)
    for _ in range(scenario.settings.publish_tries):
        scenario.ledger.fail({entry: "WRONGTYPE"})
    assert scenario.ledger.quarantine.retry(None, by="ada") == [str(entry)]
    assert queues(scenario) == [queue]


def test_an_agent_that_needs_a_newer_worker_waits_in_its_own_queue(scenario: Scenario) -> None:
    newer = of_release(scenario, NEXT)
    job_id = newer.submit(labels={"a": "b"}, **CODER)
    assert scenario.refusal(job_id).reason == "newer"
    scenario.advance(2)
    assert queues(scenario) == ["agent"]


def test_an_agent_whose_results_need_a_newer_worker_settles_in_its_own_queue(
    scenario: Scenario,
) -> None:
    newer = of_release(scenario, NEXT)
    job_id = scenario.submit(**CODER)
    scenario.hand_over(job_id)
    mine, theirs = scenario.claim_verification(job_id, 0), newer.claim_verification(job_id, 1)
    summary = passed().model_copy(update={"summary": "new"})
    newer.ledger.store_result(theirs.lease, summary, elapsed=1)
    assert scenario.ledger.store_result(mine.lease, passed(), elapsed=1) == ClaimRefused("stored")
    assert queues(scenario) == ["agent"]


def test_an_answered_agent_that_loses_its_worker_settles_in_its_own_queue(
    scenario: Scenario,
) -> None:
    job_id = scenario.submit(**CODER)
    claim = scenario.claim(job_id)
    scenario.ledger.store_output(claim.lease, answer())
    scenario.advance(scenario.settings.lease + 1)
    assert queues(scenario) == ["agent"]
