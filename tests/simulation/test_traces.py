"""Scripted traces: what one fault at one place does to one job."""

from __future__ import annotations

import pytest

from simulation.simulation import Simulation

#: Every script of an ordinary job with one slow verifier, a retry and its delayed verification.
_STEPS = (
    "accept",
    "claim",
    "store_output",
    "claim_verification",
    "store_result",
    "settle",
    "stamp",
    "sweep",
    "claim_cycle",
    "settle_cycle",
    "publish",
    "answer",
    "verify",
)


@pytest.mark.parametrize("call", _STEPS)
@pytest.mark.parametrize("kind", ["crash_before", "crash_after"])
def test_a_process_may_die_at_every_call(call: str, kind: str) -> None:
    with Simulation() as simulation:
        job = simulation.submit(40, 90, slow=1, idempotency_key="k", tries=2)
        simulation.fault(kind, call)
        simulation.run(60)
        simulation.check()
        if call != "accept":  # its producer died
            assert [each.score for each in simulation.view(job).attempts] == [40, 90]


@pytest.mark.parametrize("call", [step for step in _STEPS if step not in _STEPS[-3:]])
@pytest.mark.parametrize("kind", ["lose_request", "lose_reply"])
def test_every_call_may_be_repeated(call: str, kind: str) -> None:
    with Simulation() as simulation:
        job = simulation.submit(40, 90, slow=1)
        simulation.fault(kind, call)
        simulation.run(60)
        simulation.check()
        assert [each.score for each in simulation.view(job).attempts] == [40, 90]
        assert simulation.world.providers.calls == {(job, 1): 1, (job, 2): 1}


@pytest.mark.parametrize("kind", ["lose_message", "duplicate", "delay", "purge"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_messages_are_only_hints(kind: str, nth: int) -> None:
    with Simulation() as simulation:
        job = simulation.submit(40, 90, slow=1)
        simulation.fault(kind, "publish", nth, seconds=15)
        simulation.run(100)
        simulation.check()
        assert simulation.world.providers.calls == {(job, 1): 1, (job, 2): 1}


def test_two_sweeps_at_once_are_harmless() -> None:
    with Simulation(sweeps=3) as simulation:
        job = simulation.submit(40, 90, slow=2)
        simulation.fault("crash_after", "claim")
        simulation.run(60)
        simulation.check()
        assert len(simulation.view(job).attempts) == 2


def test_a_checker_that_finds_nothing_would_be_useless() -> None:
    """A ledger that forgets a retry, a count and a lease is noticed."""
    with Simulation() as simulation:
        job = simulation.submit(40, 90)
        simulation.run(20)
        client = simulation.world.server.client
        prefix = "mulligan:{p00}:"
        client.hset(f"{prefix}job:{job}", "state", "queued")
        client.hincrby(f"{prefix}memory:job:{job}", "a failure that did not happen", 1)
        client.zadd(f"{prefix}leases", {f"a:{job}/9": 9e15})
        found = "\n".join(simulation.violations())
        assert "not in an end state" in found
        assert "leases still has" in found
        client.hset(f"{prefix}job:{job}", "state", "succeeded")
        assert "counts 2 failures, but 1 happened" in "\n".join(simulation.violations())
