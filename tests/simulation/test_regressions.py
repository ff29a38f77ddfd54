"""Scripted traces of regressions: found, blamed and repaired, wherever a process dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from simulation.loop_scenario import make_change, make_loop
from simulation.simulation import Simulation

#: Longer than a lease, which lasts 10 seconds.
_LONG = 25.0
#: From the first decision about a merge to the end of its check.
_STEPS = (
    ("regression_decided", "before"),
    ("accept", "after"),
    ("write_loop", "after"),
    ("regression_written", "before"),
    ("verify", "before"),
    ("commit_checked", "before"),
    ("settle", "after"),
)


@contextmanager
def _broken(**rules: Any) -> Iterator[Simulation]:
    """Create a loop in which BREAK spoils what A has made, with items merged before and after."""
    # A drain waits for the checks of the schedule, too.
    rules = {"every": 60, **rules}
    with Simulation(planners=1, repositories=2, workers=3, loop_slots=12) as simulation:
        items = [
            make_change("A"),
            make_change("B", "A"),
            make_change("BREAK", "B", breaks=["A"]),
            make_change("C", "BREAK"),
            make_change("D", "C"),
        ]
        loop = make_loop("alpha", *items, repo="repo", concurrency=10, regressions=rules)
        simulation.fleet.loops.create(loop)
        yield simulation


def _check_repaired(simulation: Simulation, repairs: str) -> None:
    (found,) = simulation.world.checker.loops.regressions("alpha").found
    assert (found.item, found.culprit_item, found.status) == ("A", "BREAK", "repaired")
    assert found.repairs == repairs
    assert set(simulation.world.checker.loops.states("alpha").values()) == {"passed"}
    simulation.check()


def test_a_regression_is_found_blamed_and_repaired() -> None:
    with _broken() as simulation:
        simulation.run(240)
        _check_repaired(simulation, "A")


def test_the_culprit_is_rolled_back_by_policy() -> None:
    with _broken(roll_back=True) as simulation:
        simulation.run(240)
        _check_repaired(simulation, "BREAK")


@pytest.mark.parametrize(("kind", "nth"), [("crash", 1), ("freeze", 3)])
@pytest.mark.parametrize(("call", "when"), _STEPS)
def test_a_process_may_die_or_sleep_at_every_step(
    call: str, when: str, kind: str, nth: int
) -> None:
    with _broken() as simulation:
        simulation.run(4.5)  # BREAK is merged
        simulation.fault(f"{kind}_{when}", call, nth, seconds=_LONG)
        simulation.run(300)
        assert f"** {kind}_{when}" in "".join(each.what for each in simulation.world.trace)
        _check_repaired(simulation, "A")


def test_a_checker_of_regressions_that_finds_nothing_would_be_useless() -> None:
    with _broken() as simulation:
        simulation.run(60)
        loops = simulation.world.checker.loops
        log = loops.regressions("alpha")
        (found,) = log.found
        for culprit in (found.good, found.seen):
            wrong = found.changed(culprit=culprit, steps=9)
            text = log.with_found(wrong).to_text()
            simulation.world.server.client.hset("mulligan:{p00}:loop:alpha", "regressions", text)
            simulation.world.checker.repositories.check_rest()
    with _broken(after_merge=False, every=3600) as unnoticed:
        unnoticed.run(60)
        unnoticed.world.checker.repositories.check_rest()
    texts = [*simulation.world.checker.violations, *unnoticed.world.checker.violations]
    for text in ("with which it is good", "before which it was broken", "took 9 checks",
                 "passed and is broken, which nobody noticed"):  # fmt: skip
        assert any(text in each for each in texts), text
