"""Circuit breakers shared by the fleet, in a real Redis."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.doubles import ManualClock

from mulligan.policies.jobs.breaker import BreakerPolicy
from mulligan.tasks.jobs.context import ProviderHold
from mulligan.tasks.ports.errors import TransportFault
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stores import breakers as breakers_module
from mulligan.workers.ledger.stores.breakers import RedisBreakers

POLICY = BreakerPolicy(threshold=3, window=60, open_seconds=10, open_cap=300, probe_seconds=100)
FAULT = TransportFault("503", "provider")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def worker(
    ledger: RedisLedger, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], RedisBreakers]:
    """A worker of the fleet, with a fresh picture of the breakers that does not age by itself."""
    monkeypatch.setattr(breakers_module, "_REFRESH", 3600.0)
    return lambda: RedisBreakers(ledger.calls, prefix="mulligan", now=clock, policy=POLICY)


def test_faults_of_many_workers_open_one_breaker(worker: Callable[[], RedisBreakers]) -> None:
    """Given a threshold of three, when three workers meet one fault each, then all stay away."""
    for _ in range(2):
        worker().fault(FAULT)
        assert worker().wait("provider") is None
    worker().fault(FAULT)
    assert worker().wait("provider") == ProviderHold(seconds=10)
    assert worker().wait("another provider") is None
    assert worker().all()["provider"].state == "open"


def test_faults_met_at_the_same_time_are_all_counted(worker: Callable[[], RedisBreakers]) -> None:
    fleet = [worker() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda each: each.fault(FAULT), fleet))
    assert worker().all()["provider"].faults == 3
    assert worker().wait("provider") == ProviderHold(seconds=10)


def test_one_probe_is_let_through_however_many_ask(
    worker: Callable[[], RedisBreakers], clock: ManualClock
) -> None:
    for _ in range(3):
        worker().fault(FAULT)
    clock.now += 11
    fleet = [worker() for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        waits = list(pool.map(lambda each: each.wait("provider"), fleet))
    assert waits.count(None) == 1
    # Until the probe is given up.
    assert all(wait == ProviderHold(seconds=100) for wait in waits if wait is not None)


def test_a_probe_that_succeeds_closes_the_breaker(
    worker: Callable[[], RedisBreakers], clock: ManualClock
) -> None:
    for _ in range(3):
        worker().fault(FAULT)
    clock.now += 11
    prober = worker()
    assert prober.wait("provider") is None
    prober.success("provider")
    assert prober.all() == {}
    assert [worker().wait("provider") for _ in range(3)] == [None] * 3


def test_a_probe_that_fails_keeps_everybody_away_for_longer(
    worker: Callable[[], RedisBreakers], clock: ManualClock
) -> None:
    for _ in range(3):
        worker().fault(FAULT)
    clock.now += 11
    prober = worker()
    assert prober.wait("provider") is None
    prober.fault(FAULT)
    assert worker().wait("provider") == ProviderHold(seconds=20)  # doubled


def test_what_a_provider_asks_for_is_granted(worker: Callable[[], RedisBreakers]) -> None:
    asked = TransportFault("429", "provider", status=429, retry_after=77)
    for _ in range(3):
        worker().fault(asked)
    assert worker().wait("provider") == ProviderHold(seconds=77)


def test_a_closed_breaker_costs_no_round_trip_per_attempt(
    worker: Callable[[], RedisBreakers], ledger: RedisLedger
) -> None:
    calm = worker()
    calm.wait("provider")
    before = ledger.round_trips
    for _ in range(100):
        assert calm.wait("provider") is None
        calm.success("provider")
    assert ledger.round_trips == before


def test_a_worker_s_picture_of_the_breakers_does_not_stay_old(
    worker: Callable[[], RedisBreakers], monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = worker()
    assert calm.wait("provider") is None
    for _ in range(3):
        worker().fault(FAULT)
    assert calm.wait("provider") is None  # its picture is from before
    monkeypatch.setattr(breakers_module, "_REFRESH", 0.0)
    assert calm.wait("provider") == ProviderHold(seconds=10)


def told(ledger: RedisLedger) -> list[Any]:
    stream = ledger.calls.read_streams(["mulligan:{fleet}:events"], after="0", block=None)
    events = [json.loads(text) for _, text in stream]
    return [(event["type"], event["provider"], event["state"]) for event in events]


def test_every_change_of_state_is_an_event(
    worker: Callable[[], RedisBreakers], ledger: RedisLedger, clock: ManualClock
) -> None:
    for _ in range(3):
        worker().fault(FAULT)
    worker().fault(FAULT)  # open already
    clock.now += 11
    prober = worker()
    prober.wait("provider")
    prober.success("provider")
    worker().fault(FAULT)
    worker().success("provider")  # closed all the time
    assert told(ledger) == [
        ("breaker", "provider", "open"),
        ("breaker", "provider", "half_open"),
        ("breaker", "provider", "closed"),
    ]


def test_a_paused_provider_is_left_alone_until_it_is_resumed(
    worker: Callable[[], RedisBreakers], ledger: RedisLedger
) -> None:
    ledger.pause("provider:provider")
    assert worker().wait("provider") == ProviderHold(seconds=5, waiting_for="pause")
    assert worker().wait("another provider") is None
    for _ in range(3):
        worker().fault(FAULT)
    assert worker().wait("provider") == ProviderHold(seconds=5, waiting_for="pause")
    ledger.resume("provider:provider")
    assert worker().wait("provider") == ProviderHold(seconds=10)
