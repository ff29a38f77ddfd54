"""When a sweep is late and when it is down."""

from __future__ import annotations

import pytest

from mulligan.policies.jobs.sweep_health import sweep_health


@pytest.mark.parametrize(
    ("age", "interval", "expected"),
    [
        (0, 1, "ok"),
        (30, 1, "ok"),
        (31, 1, "late"),
        (300, 1, "late"),  # 10 * 30
        (301, 1, "down"),
        (None, 1, "down"),
        (31, 60, "ok"),
        (300, 60, "ok"),  # 5 * 60
        (301, 60, "late"),
        (3000, 60, "late"),
        (3001, 60, "down"),
        (None, 60, "down"),
    ],
)
def test_health_follows_from_the_age_and_the_interval(
    age: float | None, interval: float, expected: str
) -> None:
    assert sweep_health(age, interval=interval) == expected
