"""Scripted traces of drafts: a goal becomes a loop that runs, wherever a process dies."""

from __future__ import annotations

import pytest

from simulation.drafts import defective_draft, good_draft
from simulation.simulation import Simulation

#: Longer than a lease, which lasts 10 seconds.
_LONG = 25.0
_DEFECTS = {"unknown_dependency", "cycle", "cannot_run", "passes_already"}
#: From the request to the loop's first plan.
_STEPS = (
    ("accept", "after"),
    ("claim", "after"),
    ("answer", "after"),
    ("store_output", "after"),
    ("claim_verification", "after"),
    ("verify", "before"),
    ("store_result", "after"),
    ("create_loop", "before"),
    ("create_loop", "after"),
    ("write_loop", "after"),
    ("settle", "before"),
    ("settle", "after"),
)


def _draft(simulation: Simulation) -> None:
    simulation.fleet.loops.draft("alpha", defective_draft("alpha"), good_draft("alpha"))


def _check_done(simulation: Simulation) -> None:
    """Every defect was found at once and repaired, and the loop that came of it is done."""
    job = simulation.view(simulation.fleet.loops.drafts["alpha"])
    assert job.state == "succeeded"
    first, second = (each.verdict for each in job.attempts)
    assert first is not None
    assert second is not None
    assert {error.code for each in first.results for error in each.errors} == _DEFECTS
    assert second.success
    states = simulation.world.checker.loops.states("alpha")
    assert states == dict.fromkeys("abcde", "passed")
    simulation.check()


def test_a_goal_becomes_a_loop_that_runs_to_its_end() -> None:
    with Simulation(planners=1, repositories=1, workers=3, loop_slots=4) as simulation:
        _draft(simulation)
        simulation.run(60)
        _check_done(simulation)


@pytest.mark.parametrize(("kind", "nth"), [("crash", 1), ("freeze", 2)])
@pytest.mark.parametrize(("call", "when"), _STEPS)
def test_a_process_may_die_or_sleep_at_every_step(
    call: str, when: str, kind: str, nth: int
) -> None:
    with Simulation(planners=1, repositories=1, workers=3, loop_slots=4) as simulation:
        _draft(simulation)
        simulation.fault(f"{kind}_{when}", call, nth, seconds=_LONG)
        simulation.run(5)
        _draft(simulation)  # the one who asked may have got no answer: it is the same draft
        simulation.run(150)
        _check_done(simulation)
