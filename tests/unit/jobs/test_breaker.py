"""The circuit breaker as a value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.policies.jobs.breaker import (
    AllowCall,
    Breaker,
    BreakerPolicy,
    ProbeCall,
    WaitForProvider,
)

POLICY = BreakerPolicy(threshold=3, window=60, open_seconds=5, open_cap=15, probe_seconds=100)


def after_faults(*times: float, breaker: Breaker | None = None) -> Breaker:
    breaker = breaker or Breaker()
    for now in times:
        breaker = breaker.record_fault(now, POLICY)
    return breaker


def probing(breaker: Breaker, now: float) -> Breaker:
    decision = breaker.allow(now, POLICY)
    assert isinstance(decision, ProbeCall)
    return decision.breaker


def test_a_new_breaker_allows_calls() -> None:
    assert Breaker().allow(0, POLICY) == AllowCall()


def test_faults_below_the_threshold_leave_it_closed() -> None:
    assert after_faults(1, 2).allow(3, POLICY) == AllowCall()


def test_the_last_fault_in_a_row_opens_it() -> None:
    breaker = after_faults(1, 2, 3)
    assert breaker.state == "open"
    assert breaker.allow(3, POLICY) == WaitForProvider(5)
    assert breaker.allow(7, POLICY) == WaitForProvider(1)  # 3 + 5 - 7


def test_a_success_in_between_starts_the_count_again() -> None:
    breaker = after_faults(1, 2).record_success()
    assert after_faults(3, 4, breaker=breaker).allow(5, POLICY) == AllowCall()


def test_faults_spread_wider_than_the_window_do_not_open_it() -> None:
    assert after_faults(0, 40, 80, 120, 160).state == "closed"


def test_one_probe_goes_through_and_the_others_wait() -> None:
    # Given an open breaker whose time is up
    breaker = after_faults(1, 2, 3)
    # When the first caller takes the probe
    half_open = probing(breaker, 8)
    # Then the others wait for its result, or until it is given up
    assert half_open.state == "half_open"
    assert half_open.allow(9, POLICY) == WaitForProvider(99)  # 8 + 100 - 9
    assert isinstance(half_open.allow(108, POLICY), ProbeCall)


def test_a_probe_that_succeeds_closes_it() -> None:
    assert probing(after_faults(1, 2, 3), 8).record_success() == Breaker()


def test_each_failed_probe_doubles_the_wait_up_to_the_cap() -> None:
    breaker = after_faults(0, 0, 0)
    waits = []
    for _ in range(4):
        waits.append(breaker.until)
        now = breaker.until
        breaker = probing(breaker, now).record_fault(now, POLICY)
        waits[-1] = breaker.until - now
    assert waits == [10, 15, 15, 15]  # 5 · 2, then 20 and more are over the cap of 15


def test_faults_of_running_calls_do_not_prolong_an_open_breaker() -> None:
    breaker = after_faults(1, 2, 3)
    assert after_faults(4, 5, breaker=breaker) == breaker


@pytest.mark.parametrize(
    ("retry_after", "until"),
    [
        (None, 8),
        (2.0, 8),
        (60.0, 63),
        (1e9, 3603),
    ],  # 3 + max(5, retry_after), which is at most 3600
)
def test_retry_after_is_the_minimum(retry_after: float | None, until: float) -> None:
    breaker = after_faults(1, 2).record_fault(3, POLICY, retry_after=retry_after)
    assert breaker.until == until


def test_a_breaker_survives_json() -> None:
    breaker = after_faults(1, 2, 3)
    assert Breaker.model_validate_json(breaker.model_dump_json()) == breaker


steps = st.lists(st.sampled_from(["fault", "success", "ask"]), max_size=200)


@given(steps)
def test_waits_are_bounded_and_only_one_probe_runs(script: list[str]) -> None:
    breaker, probes = Breaker(), 0
    for now, step in enumerate(script):
        if step == "ask":
            decision = breaker.allow(now, POLICY)
            if isinstance(decision, WaitForProvider):
                assert 0 < decision.seconds <= max(POLICY.open_cap, POLICY.probe_seconds)
            if isinstance(decision, ProbeCall):
                breaker, probes = decision.breaker, probes + 1
        else:
            breaker = (
                breaker.record_success() if step == "success" else breaker.record_fault(now, POLICY)
            )
            probes = 0 if breaker.state != "half_open" else probes
        assert probes <= 1 or now >= POLICY.probe_seconds
