"""The configured calls at once to a provider, and what headers ask for, enforced by claims."""

from __future__ import annotations

import pytest
from support.jobs import answer
from support.ledger_scenario import Scenario, ScenarioMaker
from support.provider_calls import answer_call, ask, fail_call, start_call, submit_for

from mulligan.policies.jobs.job import Output
from mulligan.policies.jobs.provider_limits import ProviderLimits
from mulligan.tasks.ports.ledger import Claim, ClaimRefused


def limited(scenario: Scenario, **ceilings: int) -> Scenario:
    limits = {name: ProviderLimits(concurrency=most) for name, most in ceilings.items()}
    scenario.ledger.limit_providers(lambda: limits)
    return scenario


def test_no_more_calls_than_configured_run_at_once(new_scenario: ScenarioMaker) -> None:
    ledger = limited(new_scenario(), api=2).ledger
    running = [start_call(ledger, "api") for _ in range(2)]
    waiting = submit_for(ledger, "of-api")
    assert isinstance(ask(ledger, waiting, "api"), ClaimRefused)
    assert isinstance(start_call(ledger, "other"), Claim)  # another provider is not limited
    released = answer_call(ledger, running[0])
    assert released == [f"a:{waiting}/1"]
    assert isinstance(ask(ledger, waiting, "api"), Claim)


def test_a_call_whose_job_is_no_longer_kept_is_not_in_flight(new_scenario: ScenarioMaker) -> None:
    """Given a job that was cancelled during its call, and a fleet that was away for long."""
    scenario = new_scenario()
    call = start_call(scenario.ledger, "api")
    scenario.ledger.cancel(call.job_id)
    scenario.advance(scenario.settings.retention + 1, away=True)
    scenario.sweep()
    assert scenario.ledger.breakers.all()["api"].in_flight == 1
    scenario.expire_leases()
    assert scenario.ledger.breakers.all()["api"].in_flight == 0


def test_the_limit_never_grows_above_what_is_configured(new_scenario: ScenarioMaker) -> None:
    ledger = limited(new_scenario(), api=3).ledger
    for _ in range(5):
        for claim in [start_call(ledger, "api") for _ in range(3)]:
            answer_call(ledger, claim)
    assert ledger.breakers.all()["api"].limit == 3


def test_a_new_provider_starts_with_what_is_configured(new_scenario: ScenarioMaker) -> None:
    ledger = limited(new_scenario(), api=40).ledger
    running = [start_call(ledger, "api") for _ in range(40)]
    assert isinstance(ask(ledger, submit_for(ledger, "of-api"), "api"), ClaimRefused)
    fail_call(ledger, running[0], status=503)
    assert ledger.breakers.all()["api"].limit == 40


def test_a_configured_number_that_is_too_high_is_corrected(new_scenario: ScenarioMaker) -> None:
    """Given a provider that takes half of what is configured."""
    ledger = limited(new_scenario(), api=40).ledger
    running = [start_call(ledger, "api") for _ in range(40)]
    for claim in running[20:]:
        fail_call(ledger, claim, status=429, retry_after=1)
    assert ledger.breakers.all()["api"].limit == 20


def test_partitions_share_a_limit(new_scenario: ScenarioMaker) -> None:
    """Given a limit below the number of partitions, then it is never exceeded and everything gets
    its turn, in order."""
    scenario = limited(new_scenario(partitions=4), api=2)
    ledger = scenario.ledger
    running = [start_call(ledger, "api") for _ in range(2)]
    waiting = []
    for _ in range(12):
        scenario.advance(0.01)
        waiting.append(submit_for(ledger, "of-api"))
        assert isinstance(ask(ledger, waiting[-1], "api"), ClaimRefused)
    assert len({job_id[:3] for job_id in waiting}) > 2
    assert (ledger.breakers.all()["api"].in_flight, ledger.breakers.all()["api"].parked) == (2, 12)
    for job_id in waiting:
        claim = running.pop(0)
        stored = ledger.store_output(claim.lease, answer())
        assert not isinstance(stored, ClaimRefused)
        assert [str(each.entry) for each in stored] == [f"a:{job_id}/1"]
        running.append(scenario.claim(job_id))
        assert ledger.breakers.all()["api"].in_flight == 2


def test_a_limit_that_is_no_longer_configured_ends(new_scenario: ScenarioMaker) -> None:
    """Given a fleet that restarts without the limit."""
    scenario = limited(new_scenario(), api=1)
    start_call(scenario.ledger, "api")
    waiting = submit_for(scenario.ledger, "of-api")
    assert isinstance(ask(scenario.ledger, waiting, "api"), ClaimRefused)
    assert limited(scenario).swept_entries() == {f"a:{waiting}/1"}


def test_an_answer_that_uses_up_an_allowance_pauses_its_provider(
    new_scenario: ScenarioMaker,
) -> None:
    """Given an answer with `x-ratelimit-remaining-requests: 0` and a reset in 20 s."""
    scenario = new_scenario()
    claim = start_call(scenario.ledger, "api")
    scenario.ledger.store_output(claim.lease, Output(text="31", provider_wait=20.0))
    waiting = submit_for(scenario.ledger, "of-api")
    assert isinstance(ask(scenario.ledger, waiting, "api"), ClaimRefused)
    breaker = scenario.ledger.breakers.all()["api"]
    assert (breaker.state, breaker.faults) == ("limited", 0)
    assert scenario.view(waiting).waiting_behind == "provider:api"
    scenario.advance(21)
    assert f"a:{waiting}/1" in scenario.swept_entries()


def test_an_absurd_wait_is_capped(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario()
    claim = start_call(scenario.ledger, "api")
    scenario.ledger.store_output(claim.lease, Output(text="31", provider_wait=1e12))
    now = scenario.ledger.now()
    assert scenario.ledger.breakers.all()["api"].until <= now + 3601


def test_an_answer_between_two_refusals_of_a_burst_changes_nothing_for_the_second(
    new_scenario: ScenarioMaker,
) -> None:
    """Given three calls at once, and refusals without Retry-After."""
    scenario = new_scenario()
    first, second, third = (start_call(scenario.ledger, "api") for _ in range(3))
    fail_call(scenario.ledger, first, status=429)
    answer_call(scenario.ledger, third)
    requeued = fail_call(scenario.ledger, second, status=429)
    assert requeued.provider_opens_in == pytest.approx(1.0, abs=0.1)
    assert scenario.view(second.job_id).waiting_behind == "provider:api"


def test_a_call_from_before_a_forgotten_ceiling_may_be_refused(
    new_scenario: ScenarioMaker,
) -> None:
    """Given a slow call, and a limit that was refused, tried again and accepted meanwhile."""
    scenario = new_scenario()
    ledger = scenario.ledger
    slow, refused, *others = (start_call(ledger, "api") for _ in range(8))
    fail_call(ledger, refused, status=429, retry_after=1)
    ledger.cancel(refused.job_id)
    scenario.advance(60)
    for _ in range(30):
        answer_call(ledger, others.pop(0))
        for job_id in (submit_for(ledger, "of-api") for _ in range(2)):
            claim = ask(ledger, job_id, "api")
            if isinstance(claim, Claim):
                others.append(claim)
            else:
                ledger.cancel(job_id)
    assert ledger.breakers.all()["api"].limit > 8
    fail_call(ledger, slow, status=429, retry_after=1)
    assert scenario.view(slow.job_id).waiting_behind == "provider:api"


def test_parked_entries_are_counted_by_reason_with_the_age_of_the_first(
    new_scenario: ScenarioMaker,
) -> None:
    """Given a busy provider and two jobs behind it, the less urgent of which is older."""
    scenario = limited(new_scenario(), api=1)
    ledger = scenario.ledger
    assert ledger.parked() == []
    first = start_call(ledger, "api")
    jobs = []
    for priority in (7, 3):
        jobs.append(submit_for(ledger, "of-api", priority=priority))
        assert isinstance(ask(ledger, jobs[-1], "api"), ClaimRefused)
        scenario.advance(5)
    (parked,) = ledger.parked()
    assert (parked.reason, parked.count) == ("provider:api", 2)
    assert parked.age(ledger.now()) >= 10
    ledger.cancel(jobs[0])
    (parked,) = ledger.parked()
    assert parked.count == 1
    assert parked.age(ledger.now()) < 10
    answer_call(ledger, first)
    assert ledger.parked() == []
