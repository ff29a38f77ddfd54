"""Guardrails: when no further repair loop is allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.policies.cycles.guardrail import (
    LOOP_CAP,
    TIME_SHARE_CAP,
    Guardrail,
    LoadStep,
    RepairLoad,
    repair_load,
)

seconds = st.floats(min_value=0, max_value=1e6, allow_nan=False)


@pytest.mark.parametrize(
    ("loops_of_skill", "loops", "repair", "total", "expected"),
    [
        # No loop yet: the first low score is always repaired,
        # however small the session and however large the share.
        (0, 0, 0, 0, None),
        (0, 0, 0, 60, None),
        (0, 0, 60, 60, None),
        # One skill: at most two loops.
        (1, 1, 10, 100, None),
        (2, 2, 0, 100, LOOP_CAP),
        (3, 3, 0, 100, LOOP_CAP),
        (2, 2, 99, 100, LOOP_CAP),  # the first limit that is exceeded is reported
        # All skills: at most a quarter of the time.
        (0, 1, 25, 100, None),
        (0, 1, 26, 100, TIME_SHARE_CAP),
        (1, 1, 26, 100, TIME_SHARE_CAP),
        (0, 9, 25, 100, None),  # loops of other skills count only by their time
        # Without durations there is no share.
        (0, 1, 0, 0, None),
    ],
)
def test_which_limit_forbids_another_loop(
    loops_of_skill: int, loops: int, repair: float, total: float, expected: str | None
) -> None:
    session = RepairLoad(
        loops_of_skill=loops_of_skill, loops=loops, repair_seconds=repair, seconds=total
    )
    assert Guardrail().exhausted(session) == expected


@given(seconds, seconds)
def test_the_first_loop_of_a_session_is_never_stopped_by_its_time(a: float, b: float) -> None:
    session = RepairLoad(repair_seconds=max(a, b), seconds=min(a, b))
    assert Guardrail(share=0.01).exhausted(session) is None


@given(st.integers(1, 9), st.integers(0, 20))
def test_the_loops_of_a_skill_are_limited(cap: int, done: int) -> None:
    session = RepairLoad(loops_of_skill=done, loops=done, repair_seconds=0, seconds=1)
    assert (Guardrail(loops=cap).exhausted(session) == LOOP_CAP) is (done >= cap)


def test_the_load_of_a_session_is_computed_for_one_skill() -> None:
    steps = [
        LoadStep(skill="read", seconds=10, repair=False, loop=True),
        LoadStep(skill="read", seconds=5, repair=True, loop=False),
        LoadStep(skill="write", seconds=20, repair=False, loop=True),
        LoadStep(skill="write", seconds=15, repair=True, loop=False),
        LoadStep(skill="read", seconds=30, repair=False, loop=False),
    ]
    assert repair_load(steps, skill="read") == RepairLoad(
        loops_of_skill=1, loops=2, repair_seconds=20, seconds=80
    )
    assert repair_load(iter(steps), skill="count").loops_of_skill == 0
    assert repair_load([], skill="read") == RepairLoad()
