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
    """Build a worker whose copy of the breakers is fresh and never expires."""
    monkeypatch.setattr(breakers_module, "_REFRESH", 3600.0)
    return lambda: RedisBreakers(ledger.calls, prefix="mulligan", now=clock, policy=POLICY)


def test_faults_of_many_workers_open_one_breaker(worker: Callable[[], RedisBreakers]) -> None:
    """Given a threshold of three, when three workers report one fault each, then all wait."""
    for _ in range(2):
        worker().fault(FAULT)
        assert worker().wait("provider") is None
    worker().fault(FAULT)
    assert worker().wait("provider") == ProviderHold(seconds=10)
    assert worker().wait("another provider") is None
    assert worker().all()["provider"].state == "open"


def test_simultaneous_faults_are_all_counted(worker: Callable[[], RedisBreakers]) -> None:
    fleet = [worker() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda each: each.fault(FAULT), fleet))
    assert worker().all()["provider"].faults == 3
    assert worker().wait("provider") == ProviderHold(seconds=10)


def test_only_one_probe_is_let_through(
    worker: Callable[[], RedisBreakers], clock: ManualClock
) -> None:
    for _ in range(3):
        worker().fault(FAULT)
    clock.now += 11
    fleet = [worker() for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        waits = list(pool.map(lambda each: each.wait("provider"), fleet))
    assert waits.count(None) == 1
    # The others wait until the probe times out.
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


def test_a_failed_probe_doubles_the_wait(
    worker: Callable[[], RedisBreakers], clock: ManualClock
) -> None:
    for _ in range(3):
        worker().fault(FAULT)
    clock.now += 11
    prober = worker()
    assert prober.wait("provider") is None
    prober.fault(FAULT)
    assert worker().wait("provider") == ProviderHold(seconds=20)  # doubled


def test_retry_after_sets_the_wait(worker: Callable[[], RedisBreakers]) -> None:
    fault = TransportFault("429", "provider", status=429, retry_after=77)
    for _ in range(3):
        worker().fault(fault)
    assert worker().wait("provider") == ProviderHold(seconds=77)


def test_a_closed_breaker_costs_no_round_trip_per_attempt(
    worker: Callable[[], RedisBreakers], ledger: RedisLedger
) -> None:
    idle = worker()
    idle.wait("provider")
    before = ledger.round_trips
    for _ in range(100):
        assert idle.wait("provider") is None
        idle.success("provider")
    assert ledger.round_trips == before


def test_a_worker_s_copy_of_the_breakers_is_refreshed(
    worker: Callable[[], RedisBreakers], monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = worker()
    assert idle.wait("provider") is None
    for _ in range(3):
        worker().fault(FAULT)
    assert idle.wait("provider") is None  # its copy is older
    monkeypatch.setattr(breakers_module, "_REFRESH", 0.0)
    assert idle.wait("provider") == ProviderHold(seconds=10)


def state_events(ledger: RedisLedger) -> list[Any]:
    stream = ledger.calls.read_streams(["mulligan:{fleet}:events"], after="0", block=None)
    events = [json.loads(text) for _, text in stream]
    return [(event["type"], event["provider"], event["state"]) for event in events]


def test_every_change_of_state_is_an_event(
    worker: Callable[[], RedisBreakers], ledger: RedisLedger, clock: ManualClock
) -> None:
    for _ in range(3):
        worker().fault(FAULT)
    worker().fault(FAULT)  # already open
    clock.now += 11
    prober = worker()
    prober.wait("provider")
    prober.success("provider")
    worker().fault(FAULT)
    worker().success("provider")  # never opened
    assert state_events(ledger) == [
        ("breaker", "provider", "open"),
        ("breaker", "provider", "half_open"),
        ("breaker", "provider", "closed"),
    ]


def test_a_paused_provider_is_not_called_until_resumed(
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
