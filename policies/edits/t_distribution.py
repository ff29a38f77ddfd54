"""Student's t distribution for whole degrees of freedom, in closed form."""

from __future__ import annotations

import math

#: Halvings of the interval; each gives a bit, and a double has 53.
_STEPS = 60


def t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t-distribution for a probability 0 < p < 1."""
    if not 0 < probability < 1:
        raise ValueError(f"probability: {probability} is not between 0 and 1")
    if freedom < 1:
        raise ValueError(f"freedom: {freedom} is less than 1")
    if probability < 0.5:
        return -t_quantile(1 - probability, freedom)
    low, high = 0.0, math.pi / 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if (1 + _within(middle, freedom)) / 2 < probability:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """The probability of staying within ±t, where t is sqrt(freedom) * tan(angle).

    Abramowitz and Stegun, 26.7.3 (odd) and 26.7.4 (even).
    """
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2 == 1
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for k in range(2 if odd else 1, freedom, 2):
        total += term
        term *= cosine * cosine * k / (k + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
