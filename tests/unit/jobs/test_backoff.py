"""The delay before a provider is called again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.policies.jobs.backoff import backoff

ALMOST_ONE = 1 - 2**-53


@pytest.mark.parametrize(
    ("tries", "randomness", "expected"),
    [
        (1, 0.0, 0.0),
        (1, 0.5, 1.0),  # 2 · 0.5
        (2, 0.5, 2.0),  # 2 · 2 · 0.5
        (4, 0.25, 4.0),  # 2 · 8 · 0.25
        (5, 0.5, 10.0),  # 2 · 16 is over the cap: 20 · 0.5
        (10_000, 0.5, 10.0),  # no overflow
    ],
)
def test_the_delay_has_full_jitter_below_a_doubling_cap(
    tries: int, randomness: float, expected: float
) -> None:
    assert backoff(tries, base=2, cap=20, randomness=randomness) == expected


@pytest.mark.parametrize(
    ("retry_after", "expected"),
    [(30.0, 30.5), (0.0, 0.5), (-3.0, 0.5), (None, 0.5)],
)
def test_retry_after_is_the_minimum(retry_after: float | None, expected: float) -> None:
    assert backoff(1, base=1, cap=20, randomness=0.5, retry_after=retry_after) == expected


@given(
    tries=st.integers(1, 5000),
    randomness=st.floats(0, ALMOST_ONE),
    retry_after=st.none() | st.floats(0, 1e6),
)
def test_the_delay_is_never_below_retry_after_nor_far_above(
    tries: int, randomness: float, retry_after: float | None
) -> None:
    floor = retry_after or 0.0
    waited = backoff(tries, base=1, cap=60, randomness=randomness, retry_after=retry_after)
    assert floor <= waited <= floor + 60


@pytest.mark.parametrize(("tries", "randomness"), [(0, 0.5), (-1, 0.5), (1, 1.0), (1, -0.1)])
def test_impossible_arguments_are_refused(tries: int, randomness: float) -> None:
    with pytest.raises(ValueError, match=r"tries|randomness"):
        backoff(tries, randomness=randomness)
