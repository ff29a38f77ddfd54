"""Whether a loop is alive, from its newest sign of life."""

from __future__ import annotations

import pytest

from mulligan.policies.loops.health import LoopHealth, loop_health
from mulligan.policies.loops.loop import LOOP_STATES, LoopRecord, LoopState
from mulligan.policies.loops.spec import LoopConfig

NOW = 10_000.0


def loop(state: LoopState = "running", *, since: float = 0.0) -> LoopRecord:
    return LoopRecord(name="alpha", config=LoopConfig(name="alpha"), state=state, since=since)


@pytest.mark.parametrize(
    ("silent", "health"),
    [(0.0, "healthy"), (59.9, "healthy"), (60.0, "degraded"), (299.9, "degraded"), (300.0, "dead")],
)
def test_silence_decides_the_health(silent: float, health: LoopHealth) -> None:
    assert loop_health(loop(), NOW - silent, NOW) == health


def test_a_loop_that_was_just_started_is_healthy() -> None:
    assert loop_health(loop(since=NOW - 10), None, NOW) == "healthy"
    assert loop_health(loop(since=NOW - 10), NOW - 5000, NOW) == "healthy"
    assert loop_health(loop(since=NOW - 5000), None, NOW) == "dead"


@pytest.mark.parametrize("state", [each for each in LOOP_STATES if each != "running"])
def test_nothing_is_expected_of_a_loop_that_does_not_run(state: LoopState) -> None:
    assert loop_health(loop(state), NOW - 5000, NOW) == "idle"
