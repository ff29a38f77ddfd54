"""Scripted traces of ids that are used again and bodies of another release."""

from __future__ import annotations

import json

from simulation.simulation import Simulation


def test_a_body_that_cannot_be_read_burns_no_claims() -> None:
    """A later release wrote the job; this release leaves it alone, and says why if it must."""
    with Simulation(workers=2) as simulation:
        job = simulation.submit(90)
        simulation.fault("slow", "claim", seconds=0.1)
        simulation.world.scheduler.run(seconds=5, until=lambda: simulation.calls("accept") > 0)
        simulation.run(0.001)
        client, key = simulation.world.server.client, f"mulligan:{{p00}}:job:{job}"
        body = json.loads(client.hget(key, "body"))
        client.hset(key, "body", json.dumps({**body, "a_new_field": 1}))
        simulation.run(120)
        view_reason = client.hget(key, "reason")
        assert view_reason != "worker_lost"
        assert simulation.world.scheduler.errors == []


def test_a_key_used_again_after_retention_records_its_escalation() -> None:
    with Simulation(retention=200, cycle_retention=100_000) as simulation:
        for _ in range(2):
            simulation.submit(10, name="again", idempotency_key="again", budget={"tokens": 10})
            simulation.run(100)
            simulation.run(400)
        escalations = simulation.world.outside_ledger().escalations(only_open=False)
        assert len(escalations) == 2
        cycles = simulation.world.outside_ledger().cycles(since=0, limit=10)
        assert len(cycles) == 2


def test_a_refuted_answer_is_not_the_best_after_a_requeue() -> None:
    """Attempt 2 passes, its reformulated verification fails; attempt 3 is the person's requeue."""
    with Simulation() as simulation:
        delayed = {"after": 1, "mode": "reformulate", "prompt": "Once more."}
        job = simulation.submit(40, 90, 30, 80, delayed_verification=delayed)
        simulation.run(20)
        simulation.requeue(job)
        simulation.run(60)
        assert simulation.view(job).best_attempt != 2
        simulation.check()
