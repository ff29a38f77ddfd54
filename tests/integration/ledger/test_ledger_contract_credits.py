"""The ledger's contract: a provider whose credits or quota are used up."""

from __future__ import annotations

import pytest
from support.ledger_scenario import Scenario, ScenarioMaker
from support.provider_calls import answer_call, ask, fail_call, start_call, submit_for

from mulligan.policies.jobs.breaker import Breaker
from mulligan.tasks.ports.ledger import Claim, ClaimRefused, EntryRequeued
from mulligan.workers.ledger.redis_ledger import RedisLedger

BUSY = ClaimRefused("provider_busy", "provider:api")


def refuse(ledger: RedisLedger, claim: Claim) -> EntryRequeued:
    """Let a call be refused for lack of credits."""
    return fail_call(ledger, claim, status=402)


def start(ledger: RedisLedger) -> Claim | ClaimRefused:
    return ask(ledger, submit_for(ledger, "of-api"), "api")


def gate(ledger: RedisLedger) -> Breaker:
    return ledger.breakers.all()["api"]


def probe(scenario: Scenario) -> Claim:
    """Claim the only entry that the sweep releases."""
    (released,) = scenario.sweep()
    claim = ask(scenario.ledger, released.entry.job_id, "api")
    assert isinstance(claim, Claim)
    return claim


def test_the_whole_fleet_waits_and_no_attempt_is_lost(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario()
    ledger = scenario.ledger
    refused = start_call(ledger, "api")
    requeued = refuse(ledger, refused)
    assert requeued.provider_opens_in == pytest.approx(60, abs=0.1)
    other = submit_for(ledger, "of-api")
    assert ask(ledger, other, "api") == BUSY
    for job_id in (refused.job_id, other):
        view = scenario.view(job_id)
        assert (view.state, view.waiting_for) == ("waiting", "credits")
        assert view.waiting_behind == "provider:api"
        assert (view.attempts[0].claims, len(view.attempts)) == (0, 1)
    shown = gate(ledger)
    assert (shown.state, shown.faults, shown.limit) == ("out_of_credits", 0, 1)
    assert shown.last_fault == "answered 402: out of credits"


def test_one_call_tries_it_ever_later_and_the_first_answer_resumes_all(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = new_scenario()
    ledger = scenario.ledger
    refuse(ledger, start_call(ledger, "api"))
    since = gate(ledger).out_of_credits_at
    for _ in range(4):
        assert start(ledger) == BUSY
    waits = []
    for _ in range(7):
        waits.append(round(gate(ledger).until - ledger.now()))
        scenario.advance(waits[-1] + 1)
        refuse(ledger, probe(scenario))
    assert waits == [60, 120, 240, 480, 960, 1800, 1800]
    assert gate(ledger).out_of_credits_at == since
    scenario.advance(1801)
    paid = probe(scenario)
    assert scenario.swept_entries() == set()  # one at a time
    assert len(answer_call(ledger, paid)) == 4  # all the others, at once
    assert (gate(ledger).state, gate(ledger).limit) == ("closed", 8)


def test_a_fleet_with_many_calls_in_flight_is_refused_once(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario(lease=9000)
    ledger = scenario.ledger
    calls = [start_call(ledger, "api") for _ in range(6)]
    for claim in calls[:4]:
        refuse(ledger, claim)
    assert gate(ledger).until - ledger.now() <= 60
    answer_call(ledger, calls[4])  # it was paid for before
    assert gate(ledger).state == "out_of_credits"
    scenario.advance(61)
    paid = probe(scenario)  # although one call from before still runs
    assert len(answer_call(ledger, paid)) == 3
    refuse(ledger, calls[5])  # says nothing about now
    assert gate(ledger).state == "closed"
    assert f"a:{calls[5].job_id}/1" in scenario.swept_entries()


@pytest.mark.parametrize("status", [429, 503, None])
def test_another_refusal_or_fault_proves_no_payment(
    new_scenario: ScenarioMaker, status: int | None
) -> None:
    scenario = new_scenario()
    ledger = scenario.ledger
    refuse(ledger, start_call(ledger, "api"))
    scenario.advance(61)
    fail_call(ledger, probe(scenario), status=status, retry_after=1)
    assert gate(ledger).state == "out_of_credits"


def test_a_job_that_waits_for_credits_ends_at_its_deadline(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario()
    ledger = scenario.ledger
    claim = start_call(ledger, "api", deadline=600)
    refuse(ledger, claim)
    scenario.advance(601)
    scenario.sweep()
    view = scenario.view(claim.job_id)
    assert (view.state, view.reason) == ("escalated", "deadline")


def test_a_person_who_has_paid_lets_one_call_try_it_now(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario()
    ledger = scenario.ledger
    refuse(ledger, start_call(ledger, "api"))
    assert start(ledger) == BUSY
    assert ledger.resume("provider:api")
    answer_call(ledger, probe(scenario))
    assert gate(ledger).state == "closed"


def test_partitions_share_the_wait_and_the_probe(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario(partitions=3)
    ledger = scenario.ledger
    refuse(ledger, start_call(ledger, "api"))
    jobs = [submit_for(ledger, "of-api") for _ in range(12)]
    assert len({job_id[:3] for job_id in jobs}) > 1
    assert {ask(ledger, job_id, "api") for job_id in jobs} == {BUSY}
    scenario.advance(61)
    paid = probe(scenario)
    answer_call(ledger, paid)
    assert gate(ledger).state == "closed"
    scenario.sweep()
    assert gate(ledger).parked <= 12 - 7


def test_the_state_is_an_event(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario()
    ledger = scenario.ledger
    refuse(ledger, start_call(ledger, "api"))
    scenario.advance(61)
    answer_call(ledger, probe(scenario))
    events = [event.data for event in ledger.events() if event.type == "breaker"]
    assert [event["state"] for event in events] == ["out_of_credits", "closed"]
