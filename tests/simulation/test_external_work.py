"""Scripted traces of work that a person or another system does."""

from __future__ import annotations

import json

import pytest

from mulligan.tasks.external.lane import next_task, report_attempt
from mulligan.tasks.ports.errors import BadInput
from simulation.processes import attempt_context, report
from simulation.simulation import Simulation


@pytest.mark.parametrize("call", ["next_of_lane", "claim", "hold", "store_output", "settle"])
@pytest.mark.parametrize("kind", ["crash_before", "crash_after", "lose_reply"])
def test_a_report_may_fail_at_every_call(call: str, kind: str) -> None:
    with Simulation() as simulation:
        job = simulation.submit(40, 90, subject="mia")
        simulation.fault(kind, call)
        simulation.run(200)
        simulation.check()
        assert [each.score for each in simulation.view(job).attempts] == [40, 90]


@pytest.mark.parametrize("call", ["accept", "hold", "settle"])
@pytest.mark.parametrize("kind", ["crash_before", "crash_after", "lose_request", "lose_reply"])
def test_a_first_attempt_may_be_reported_by_a_console_that_dies(call: str, kind: str) -> None:
    with Simulation() as simulation:
        job = simulation.report(40)
        simulation.fault(kind, call, process="reporter-key-40")
        simulation.run(40)
        simulation.check()
        assert [each.score for each in simulation.view(job).attempts] == [40, 90]


@pytest.mark.parametrize("call", ["accept", "hold", "settle"])
@pytest.mark.parametrize("kind", ["crash_before", "crash_after", "freeze_after"])
def test_of_two_reports_with_one_key_the_first_counts(call: str, kind: str) -> None:
    with Simulation() as simulation:
        job = simulation.report(40, 80)
        simulation.fault(kind, call, seconds=20)
        simulation.run(40)
        simulation.check()
        attempts = simulation.view(job).attempts
        first = attempts[0].score
        assert attempts[0].output is not None
        assert attempts[0].output.text == f"{first:g}"
        answers = [s.what for s in simulation.world.trace if s.what.startswith("reported")]
        assert any("other_report" in answer for answer in answers)


def test_a_refused_verification_counts_once_although_its_reply_was_lost() -> None:
    with Simulation() as simulation:
        job = simulation.submit(40, 90, subject="mia", delayed_verification={"after": 60})
        simulation.run(30)
        world = simulation.world
        subject = next(each for each in world.processes if each.name == "subject-mia")
        simulation.fault("freeze_before", "next_of_lane", seconds=100, process=subject.name)
        simulation.run(60)
        hasty = world.process("hasty")

        def act() -> None:
            context = attempt_context(world, hasty, world.ledger(hasty))
            task = next_task(context, "mia")
            assert task is not None
            try:
                report_attempt(context, task.lease, report(90, prompt="Do it."))
            except BadInput:
                world.note(hasty, "refused")

        simulation.fault("lose_reply", "refuse_verification")
        world.scheduler.spawn(hasty, act)
        simulation.run(10)
        refused = world.server.client.hget(f"mulligan:{{p00}}:cycle:{job}:1:1", "delayed_invalid")
        assert list(json.loads(refused).values()) == [1]
        simulation.check()


def test_a_run_is_drained_until_a_subject_has_verified() -> None:
    """The subject's verification waits in its lane alone: its job has ended before."""
    with Simulation() as simulation:
        job = simulation.submit(40, 90, subject="mia", delayed_verification={"after": 60})
        simulation.run(20)
        assert simulation.view(job).state == "succeeded"
        simulation.check()
        assert [cycle.status for cycle in simulation.view(job).cycles] == ["completed"]
