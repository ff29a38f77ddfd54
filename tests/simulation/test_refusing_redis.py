"""Scripted traces of a Redis that refuses, is away or loses its last second."""

from __future__ import annotations

import pytest

from simulation.faults import REFUSALS, Refusal
from simulation.simulation import Simulation


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("version", [6, 7])
@pytest.mark.parametrize("call", ["store_output", "store_result", "settle"])
def test_an_answer_survives_a_redis_that_refuses(refusal: Refusal, version: int, call: str) -> None:
    with Simulation(workers=3, redis_version=version) as simulation:
        jobs = [simulation.submit(40, 90, slow=1, seconds=2) for _ in range(3)]
        simulation.fault("redis_refuses", call, 2, seconds=30, refusal=refusal)
        simulation.run(90)
        simulation.check()
        for job in jobs:
            assert simulation.view(job).state == "succeeded"
        assert set(simulation.world.providers.calls.values()) == {1}


@pytest.mark.parametrize("call", ["store_cycle_output", "settle_cycle"])
def test_a_delayed_verification_survives_a_redis_that_refuses(call: str) -> None:
    with Simulation(workers=2) as simulation:
        delayed = {"after": 1, "mode": "reformulate", "prompt": "Once more."}
        simulation.submit(40, 90, 90, delayed_verification=delayed)
        simulation.fault("redis_refuses", call, seconds=30, refusal="OOM")
        simulation.run(90)
        simulation.check()
        assert simulation.calls(call) > 1
        assert set(simulation.world.providers.calls.values()) == {1}


@pytest.mark.parametrize("refusal", ["READONLY", "BUSY", "LOADING"])
def test_a_claim_is_not_used_after_a_refusal_that_outlived_its_lease(refusal: Refusal) -> None:
    """The first worker has its claim and then waits for the state of its provider."""
    with Simulation(workers=3) as simulation:
        simulation.run(2)  # a sweep has run before
        for _ in range(3):
            simulation.submit(90, seconds=2)
        simulation.fault("redis_refuses", "claim", 2, seconds=30, refusal=refusal)
        simulation.run(90)
        simulation.check()
        assert set(simulation.world.providers.calls.values()) == {1}


@pytest.mark.parametrize("seconds", [5, 15, 40])
def test_what_runs_while_redis_is_away_is_not_bought_twice(seconds: float) -> None:
    with Simulation(workers=4, sweeps=2) as simulation:
        for _ in range(4):
            simulation.submit(90, seconds=6)
        simulation.fault("redis_away", "renew", 2, seconds=seconds)
        simulation.run(90)
        simulation.check()
        assert set(simulation.world.providers.calls.values()) == {1}


@pytest.mark.parametrize("call", ["claim", "claim_cycle"])
def test_a_worker_that_wakes_after_its_lease_asks_nobody(call: str) -> None:
    with Simulation(workers=3) as simulation:
        delayed = {"after": 1, "mode": "reformulate", "prompt": "Once more."}
        simulation.submit(40, 90, delayed_verification=delayed)
        simulation.fault("freeze_after", call, seconds=25)
        simulation.run(90)
        simulation.check()
        assert set(simulation.world.providers.calls.values()) == {1}


@pytest.mark.parametrize("call", ["accept", "claim", "store_output", "settle", "claim_cycle"])
def test_a_restart_that_loses_a_second_loses_no_older_job(call: str) -> None:
    with Simulation(workers=3) as simulation:
        first = simulation.submit(40, 90, slow=1, seconds=0.3)
        simulation.run(1)
        simulation.submit(40, 90, seconds=0.3)
        simulation.fault("redis_restart", call, seconds=3)
        simulation.run(90)
        simulation.check()
        assert simulation.view(first).state == "succeeded"


def test_a_lease_that_is_nearly_over_is_renewed_before_the_model_is_asked() -> None:
    """Redis is away right after the claim; the answer takes longer than what is left then."""
    with Simulation(workers=1) as simulation:
        simulation.submit(90, seconds=0.5)
        simulation.run(2)  # the thread that renews leases has its own rhythm
        simulation.submit(90, seconds=5)
        simulation.fault("slow", "claim", seconds=8.5)
        simulation.run(60)
        simulation.check()
        assert set(simulation.world.providers.calls.values()) == {1}


def test_a_renewal_that_hangs_costs_no_answer() -> None:
    """The connection of one renewal hangs for longer than a lease; the next one is in time."""
    with Simulation(workers=1) as simulation:
        simulation.submit(90, seconds=20)
        simulation.fault("slow", "renew", seconds=12)
        simulation.run(60)
        simulation.check()
        assert set(simulation.world.providers.calls.values()) == {1}
