"""Scripted traces of outbox entries: each has its own fate."""

from __future__ import annotations

from simulation.simulation import Simulation


def test_an_entry_that_cannot_be_sent_hurts_nobody_else() -> None:
    with Simulation(workers=1) as simulation:
        simulation.world.broker.unsendable.add("theirs")
        bad = simulation.submit(90, on_done={"task": "their.task", "queue": "theirs"})
        simulation.run(5)
        # Lost messages: only the sweep can publish these.
        for nth in range(1, 4):
            simulation.fault("lose_message", "publish", nth)
        good = [simulation.submit(90) for _ in range(3)]
        simulation.run(120)
        assert [simulation.view(job).state for job in good] == ["succeeded"] * 3
        simulation.run(300)
        escalations = simulation.world.outside_ledger().escalations()
        assert [each.job_id for each in escalations] == [bad]
        assert simulation.world.scheduler.errors == []


def test_cancelling_one_job_publishes_nothing_again() -> None:
    with Simulation(workers=1) as simulation:
        backlog = [simulation.submit(90, seconds=8) for _ in range(30)]
        simulation.run(25)  # longer than republish_after
        newest = simulation.submit(90)
        simulation.run(3)
        sent = simulation.world.broker.sent["attempt"]
        assert sent == len(backlog) + 1
        simulation.cancel(newest)
        simulation.run(25)
        assert simulation.world.broker.sent["attempt"] == sent
        simulation.check()


def test_a_lost_urgent_retry_does_not_wait_for_the_backlog() -> None:
    """A policy retry is the most urgent message on its queue; its loss shows soon."""
    with Simulation(workers=2) as simulation:
        first = simulation.submit(40, 50, 90, seconds=0.5)
        simulation.run(0.9)
        for _ in range(60):
            simulation.submit(90, seconds=8)
        simulation.fault("lose_message", "publish", 61)  # the policy retry, after 60 jobs
        simulation.run(75)
        assert len(simulation.view(first).attempts) == 3
        assert simulation.view(first).state == "succeeded"
        simulation.check()
