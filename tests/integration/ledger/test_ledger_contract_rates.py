"""The ledger's contract: tokens a minute of a provider, configured and from its headers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.ledger_scenario import Scenario, ScenarioMaker
from support.provider_calls import ask, fail_call, start_call, submit_for

from mulligan.policies.jobs.breaker import Breaker
from mulligan.policies.jobs.job import Output, Usage
from mulligan.policies.jobs.provider_limits import Allowance, ProviderLimits, RateLimits
from mulligan.tasks.ports.ledger import Claim, ClaimRefused
from mulligan.workers.ledger.redis_ledger import RedisLedger

BUSY = ClaimRefused("provider_busy", "provider:api")
#: Longer than any of these tests: no sweep finds an expired one.
LEASE = 9000.0


@pytest.fixture
def scenario(new_scenario: ScenarioMaker) -> Scenario:
    return new_scenario(lease=LEASE)


def limited(scenario: Scenario, tokens: int, concurrency: int | None = None) -> Scenario:
    limits = ProviderLimits(tokens_per_minute=tokens, concurrency=concurrency)
    scenario.ledger.limit_providers(lambda: {"api": limits})
    return scenario


def answer(ledger: RedisLedger, claim: Claim, tokens: int | None, **more: Any) -> None:
    output = Output(text="31", usage=Usage(total_tokens=tokens), **more)
    stored = ledger.store_output(claim.lease, output)
    assert not isinstance(stored, ClaimRefused), stored


def start(ledger: RedisLedger) -> Claim | ClaimRefused:
    return ask(ledger, submit_for(ledger, "of-api"), "api")


def start_all(ledger: RedisLedger, most: int = 20) -> list[Claim]:
    """Start as many calls as may run now; the next job is parked."""
    found: list[Claim] = []
    while len(found) < most and isinstance(claim := start(ledger), Claim):
        found.append(claim)
    return found


def gate(ledger: RedisLedger) -> Breaker:
    return ledger.breakers.all()["api"]


# -- configured tokens a minute --------------------------------------------------------------------


def test_calls_wait_when_the_tokens_of_the_minute_are_used_up(scenario: Scenario) -> None:
    limited(scenario, 1000)
    ledger = scenario.ledger
    answer(ledger, start_call(ledger, "api"), 900)
    waiting = submit_for(ledger, "of-api")
    assert ask(ledger, waiting, "api") == BUSY
    view = scenario.view(waiting)
    assert (view.state, view.waiting_for) == ("waiting", "provider")
    assert view.waiting_behind == "provider:api"
    assert (gate(ledger).tokens_per_minute, gate(ledger).tokens_used) == (1000, 900)
    assert gate(ledger).used_up
    scenario.advance(59)
    assert scenario.swept_entries() == set()
    scenario.advance(2)
    assert scenario.swept_entries() == {f"a:{waiting}/1"}
    assert isinstance(ask(ledger, waiting, "api"), Claim)


def test_the_first_call_runs_alone_and_then_the_mean_counts(scenario: Scenario) -> None:
    """Given 1000 tokens a minute: nobody knows what an answer takes before the first one."""
    ledger = limited(scenario, 1000, concurrency=50).ledger
    (first,) = start_all(ledger)
    answer(ledger, first, 100)
    start_all(ledger)
    assert gate(ledger).in_flight == 9  # 900 are left, and each call counts as 100


@pytest.mark.parametrize("partitions", [1, 3])
def test_no_minute_takes_more_than_the_limit(new_scenario: ScenarioMaker, partitions: int) -> None:
    """Given 70 jobs of 10 tokens each, and 300 tokens a minute."""
    scenario = limited(new_scenario(partitions=partitions, lease=LEASE), 300, concurrency=100)
    ledger, spent = scenario.ledger, list[float]()
    todo = {submit_for(ledger, "of-api") for _ in range(70)}
    assert partitions == len({job_id[:3] for job_id in todo})
    while todo:
        ledger.stamp([each.entry for each in scenario.sweep()])
        for job_id in sorted(todo):
            taken = ask(ledger, job_id, "api")
            if isinstance(taken, Claim):
                answer(ledger, taken, 10)
                spent.append(ledger.now())
                todo.remove(job_id)
        scenario.advance(9)
    assert max(sum(at <= each < at + 60 for each in spent) for at in spent) == 30
    assert spent[-1] - spent[0] < 3 * 75  # it uses what it may


@pytest.mark.parametrize("partitions", [1, 3])
def test_claims_at_once_do_not_exceed_the_tokens(
    new_redis_scenario: ScenarioMaker, partitions: int
) -> None:
    """Given an answer of 100 tokens, and 64 claims by 16 threads for the other 900."""
    scenario = limited(new_redis_scenario(partitions=partitions, lease=LEASE), 1000, concurrency=64)
    ledger = scenario.ledger
    answer(ledger, start_call(ledger, "api"), 100)
    jobs = [submit_for(ledger, "of-api") for _ in range(64)]
    with ThreadPoolExecutor(16) as threads:
        taken = list(threads.map(lambda job_id: ask(ledger, job_id, "api"), jobs))
    assert sum(isinstance(each, Claim) for each in taken) == 9
    assert gate(ledger).in_flight == 9


def test_an_answer_above_the_limit_gets_its_turn(scenario: Scenario) -> None:
    """Given answers that take more than a minute's tokens, then one runs each minute."""
    limited(scenario, 100)
    ledger = scenario.ledger
    running: Claim | ClaimRefused = start(ledger)
    for _ in range(3):
        assert isinstance(running, Claim)
        answer(ledger, running, 5000)
        waiting = submit_for(ledger, "of-api")
        assert ask(ledger, waiting, "api") == BUSY
        scenario.advance(61)
        assert scenario.swept_entries() == {f"a:{waiting}/1"}
        running = ask(ledger, waiting, "api")


@pytest.mark.parametrize(
    ("cap", "counted"),
    [(150, 100 + 150), (None, 100 + 100)],  # the request's cap, else the mean
)
def test_unknown_usage_is_not_0(scenario: Scenario, cap: int | None, counted: int) -> None:
    ledger = limited(scenario, 1000).ledger
    answer(ledger, start_call(ledger, "api"), 100)
    answer(ledger, start_call(ledger, "api"), None, token_cap=cap)
    assert gate(ledger).tokens_used == counted


def test_usage_that_is_never_known_counts_as_a_whole_minute(scenario: Scenario) -> None:
    """Given a program that does not report its tokens."""
    ledger = limited(scenario, 1000).ledger
    answer(ledger, start_call(ledger, "api"), None)
    assert gate(ledger).tokens_used == 1000
    assert start(ledger) == BUSY


@pytest.mark.parametrize(
    "end", ["timed out", "lost worker", "shut down", "refused", "answered 503"]
)
def test_a_call_without_an_answer_counts_with_the_mean_unless_it_was_refused(
    new_scenario: ScenarioMaker, end: str
) -> None:
    scenario = limited(new_scenario(lease=10), 10_000)
    ledger = scenario.ledger
    answer(ledger, start_call(ledger, "api"), 100)
    claim = start_call(ledger, "api")
    match end:
        case "timed out":
            fail_call(ledger, claim, status=None)
        case "lost worker":
            scenario.expire_leases()
        case "shut down":
            ledger.requeue(claim.lease, delay=1, detail="shut down")
        case _:
            fail_call(ledger, claim, status=429 if end == "refused" else 503)
    costs = end in ("timed out", "lost worker", "shut down")
    assert gate(ledger).tokens_used == (200 if costs else 100)


def test_the_record_of_a_minute_stays_small_and_expires(scenario: Scenario) -> None:
    limited(scenario, 10**9)
    ledger = scenario.ledger
    for _ in range(80):
        answer(ledger, start_call(ledger, "api"), 10)
        scenario.advance(1.5)
    key = "mulligan:{p00}:minute:api"
    assert ledger.calls.run("HLEN", key) <= 61 + 1
    assert 0 < ledger.calls.run("TTL", key) <= 7 * 86400
    assert gate(ledger).tokens_used == pytest.approx(400, abs=20)


def test_a_provider_without_a_limit_keeps_no_record(scenario: Scenario) -> None:
    ledger = scenario.ledger
    answer(ledger, start_call(ledger, "api"), 10)
    assert ledger.calls.run("EXISTS", "mulligan:{p00}:minute:api") == 0
    assert gate(ledger).tokens_per_minute is None


# -- what headers say ------------------------------------------------------------------------------


def tokens_left(remaining: float, *, limit: float | None = 1000, reset: float = 60) -> RateLimits:
    return RateLimits(tokens=Allowance(remaining=remaining, reset=reset, limit=limit))


@pytest.mark.parametrize(
    ("configured", "told", "limit"), [(None, 1000, 1000), (300, 1000, 300), (5000, 1000, 1000)]
)
def test_the_lower_of_the_configured_and_the_told_limit_counts(
    scenario: Scenario, configured: int | None, told: int, limit: int
) -> None:
    if configured:
        limited(scenario, configured)
    ledger = scenario.ledger
    headers = tokens_left(told - 10, limit=told, reset=1)
    answer(ledger, start_call(ledger, "api"), 10, rate_limits=headers)
    assert gate(ledger).tokens_per_minute == limit
    scenario.advance(3601)
    assert gate(ledger).tokens_per_minute == configured  # a word of an hour ago


def test_remaining_tokens_hold_back_what_running_calls_need(scenario: Scenario) -> None:
    """Given answers of 100 tokens, of which 350 are left, then only three calls run."""
    ledger = scenario.ledger
    headers = tokens_left(350, limit=10_000, reset=3600)
    answer(ledger, start_call(ledger, "api"), 100, rate_limits=headers)
    assert len(start_all(ledger)) == 3
    assert gate(ledger).used_up


def test_an_allowance_fills_up_until_its_reset(scenario: Scenario) -> None:
    """Given 0 of 1000 left and a reset in 100 s, then a call of 100 tokens may start after 10 s."""
    ledger = scenario.ledger
    first = tokens_left(0, limit=1000, reset=100)
    answer(ledger, start_call(ledger, "api"), 100, rate_limits=first)
    assert start(ledger) == BUSY
    scenario.advance(8)
    assert scenario.swept_entries() == set()
    scenario.advance(3)
    assert len(scenario.swept_entries()) == 1


def test_remaining_requests_hold_back_more_calls_than_that(scenario: Scenario) -> None:
    ledger = scenario.ledger
    headers = RateLimits(requests=Allowance(remaining=2, reset=30))
    answer(ledger, start_call(ledger, "api"), None, rate_limits=headers)
    assert len(start_all(ledger)) == 2
    scenario.advance(31)
    assert len(scenario.swept_entries()) == 1  # the one that was parked


def test_a_record_of_another_type_counts_as_none(scenario: Scenario) -> None:
    ledger = limited(scenario, 1000).ledger
    ledger.calls.run("SET", "mulligan:{p00}:minute:api", "of another program")
    answer(ledger, start_call(ledger, "api"), 100)
    assert gate(ledger).tokens_used == 100
