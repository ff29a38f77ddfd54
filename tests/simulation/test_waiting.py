"""Scripted traces of waiting: pauses, providers that fail or limit, deadlines."""

from __future__ import annotations

import pytest

from simulation.simulation import Simulation


@pytest.mark.parametrize("away", [20, 35])
def test_no_deadline_ends_a_job_before_it_has_passed(away: float) -> None:
    """The next try would be after the deadline; the provider is back before it, or is not."""
    with Simulation(workers=2, backoff_cap=60) as simulation:
        job = simulation.submit(90, deadline=30)
        simulation.fault("provider_away", "answer", seconds=away)
        simulation.run(80)
        assert simulation.view(job).state == ("succeeded" if away < 30 else "escalated")
        simulation.check()


def test_a_provider_that_fails_for_a_second_costs_seconds() -> None:
    with Simulation(workers=8) as simulation:
        jobs = [simulation.submit(90, seconds=5) for _ in range(40)]
        simulation.fault("provider_away", "answer", 3, seconds=1)
        simulation.run(90)
        assert {simulation.view(job).state for job in jobs} == {"succeeded"}
        simulation.check()


@pytest.mark.parametrize("retry_after", [1.0, 5.0])
def test_a_rate_limit_costs_few_refusals_and_little_time(retry_after: float) -> None:
    with Simulation(workers=16) as simulation:
        provider = simulation.world.providers.provider("alpha")
        provider.limit, provider.retry_after = 5, retry_after
        jobs = [simulation.submit(90, seconds=1) for _ in range(100)]
        ideal = 100 / 5
        simulation.run(1.5 * ideal + retry_after)
        done = sum(simulation.view(job).state == "succeeded" for job in jobs)
        calls = sum(simulation.world.providers.calls.values())
        assert done == 100, f"{done} of 100, {calls - done} refusals"
        assert calls - done <= 15
        simulation.check()


def test_a_fleet_without_credits_asks_once_a_minute_and_resumes_by_itself() -> None:
    with Simulation(workers=4) as simulation:
        provider = simulation.world.providers.provider("alpha")
        provider.unpaid = True
        jobs = [simulation.submit(90) for _ in range(20)]
        simulation.run(50)
        refused = sum(simulation.world.providers.calls.values())
        assert refused <= 4  # those that were in flight at once
        simulation.run(60)
        assert sum(simulation.world.providers.calls.values()) == refused + 1
        provider.unpaid = False
        simulation.run(150)
        assert {simulation.view(job).state for job in jobs} == {"succeeded"}
        assert {len(simulation.view(job).attempts) for job in jobs} == {1}
        simulation.check()


def test_nothing_is_claimed_only_to_be_given_back() -> None:
    with Simulation() as simulation:
        simulation.pause("provider:alpha")
        simulation.run(2)
        job = simulation.submit(90)
        simulation.run(60)
        assert simulation.calls("requeue") == 0
        assert simulation.calls("claim") <= 2
        assert simulation.view(job).state == "waiting"
        simulation.resume("provider:alpha")
        simulation.run(5)
        assert simulation.view(job).state == "succeeded"
        simulation.check()


@pytest.mark.parametrize("fails", ["crash_before", "crash_after"])
@pytest.mark.parametrize(("at", "paused"), [(1, False), (2, True)])
def test_a_pause_that_fails_halfway_is_finished_or_has_not_begun(
    at: int, paused: bool, fails: str
) -> None:
    """The person's process dies at the command to the first or the second partition."""
    paused = paused or fails == "crash_after"
    with Simulation(partitions=2) as simulation:
        simulation.fault(fails, "hset", at, process="person")
        simulation.pause("task_type:work")
        simulation.run(5)
        ledger = simulation.world.outside_ledger()
        assert ledger.paused() == ["task_type:work"] * paused
        jobs = [simulation.submit(90) for _ in range(6)]
        simulation.run(20)
        states = {job[:3]: simulation.view(job).state for job in jobs}
        assert states == dict.fromkeys(("p00", "p01"), "waiting" if paused else "succeeded")
        simulation.check()


@pytest.mark.parametrize("at", [1, 2])
def test_a_resume_that_fails_halfway_is_finished_or_has_not_begun(at: int) -> None:
    with Simulation(partitions=2) as simulation:
        simulation.pause("task_type:work")
        simulation.run(5)
        jobs = [simulation.submit(90) for _ in range(6)]
        simulation.fault("crash_before", "hdel", at, process="person")
        simulation.resume("task_type:work")
        simulation.run(20)
        paused = at == 1
        assert simulation.world.outside_ledger().paused() == ["task_type:work"] * paused
        states = {job[:3]: simulation.view(job).state for job in jobs}
        assert states == dict.fromkeys(("p00", "p01"), "waiting" if paused else "succeeded")
        simulation.check()


def test_a_pause_and_a_resume_at_once_leave_all_partitions_alike() -> None:
    """The resume comes between the two commands of the pause."""
    with Simulation(partitions=2) as simulation:
        simulation.fault("slow", "hset", 1, process="person", seconds=1)
        simulation.pause("task_type:work")
        simulation.run(0.5)
        simulation.resume("task_type:work")
        simulation.run(5)
        assert simulation.world.outside_ledger().paused() == []
        jobs = [simulation.submit(90) for _ in range(6)]
        simulation.run(20)
        assert {simulation.view(job).state for job in jobs} == {"succeeded"}
        simulation.check()


def test_a_cancelled_job_leaves_its_parking_place() -> None:
    with Simulation() as simulation:
        simulation.pause("task_type:work")
        simulation.run(2)
        job = simulation.submit(90)
        simulation.run(5)
        simulation.cancel(job)
        simulation.run(5)
        client = simulation.world.server.client
        assert client.keys("mulligan:{p00}:parked:*") == []
        assert client.hlen("mulligan:{p00}:outbox:entries") == 0
        simulation.check()


def test_a_delayed_verification_counts_its_transport_faults() -> None:
    """The delay grows with each fault, as an attempt's does."""
    with Simulation() as simulation:
        delayed = {"after": 1, "mode": "reformulate", "prompt": "Once more."}
        job = simulation.submit(40, 90, delayed_verification=delayed)
        simulation.run(3)
        simulation.fault("provider_away", "answer", seconds=2)
        simulation.run(90)
        faults = simulation.world.server.client.hget(f"mulligan:{{p00}}:cycle:{job}:1:1", "faults")
        assert int(faults or 0) == simulation.world.providers.calls[job, 3] - 1 > 0
        simulation.check()
