"""Trends: outcomes of jobs, waiting times and shares over the steps of a window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mulligan.policies.figures.facts import BEYOND, OTHER, Figure


@dataclass(frozen=True)
class Outcomes:
    """Counts of jobs by how they ended, in one step or in all of them."""

    first_try: int = 0
    repaired: int = 0
    escalated: int = 0
    cancelled: int = 0
    accepted: int = 0

    @property
    def ended(self) -> int:
        """Jobs that succeeded or were escalated; cancelling says nothing about a job."""
        return self.first_try + self.repaired + self.escalated

    def __add__(self, other: Outcomes) -> Outcomes:
        return Outcomes(
            self.first_try + other.first_try,
            self.repaired + other.repaired,
            self.escalated + other.escalated,
            self.cancelled + other.cancelled,
            self.accepted + other.accepted,
        )


def outcomes(rows: Mapping[Figure, int], *, tenant: str | None = None) -> Outcomes:
    """Count how the jobs of one step ended."""
    counts: Counter[str] = Counter()
    for figure, n in rows.items():
        if figure.family != "job" or figure.measure != "n" or tenant not in (None, figure.dims[1]):
            continue
        _, _, state, first = figure.dims
        if state == "succeeded":
            state = "first_try" if first == "1" else "repaired"
        counts[state] += n
    known = ("first_try", "repaired", "escalated", "cancelled", "accepted")
    return Outcomes(*(counts[name] for name in known))


def task_types(rows: Iterable[Mapping[Figure, int]], *, tenant: str | None = None) -> set[str]:
    """Return the task types of the jobs that were accepted or ended."""
    found = {
        figure.dims[0]
        for step in rows
        for figure in step
        if figure.family == "job" and tenant in (None, figure.dims[1])
    }
    return found - {"", OTHER}


def share(part: int, whole: int) -> float | None:
    """Return part / whole; None for an empty whole."""
    return part / whole if whole else None


def histogram(
    rows: Iterable[Mapping[Figure, int]], family: str, *, tenant: str | None = None
) -> dict[float, int]:
    """Return upper bound → count, in order; the last bound is infinity."""
    counts: Counter[float] = Counter()
    for step in rows:
        for figure, n in step.items():
            if figure.family != family or figure.measure != "n":
                continue
            if tenant is None or figure.dims[1:] == (tenant,):
                counts[float(figure.dims[0])] += n
    return dict(sorted(counts.items()))


def sum_of(rows: Iterable[Mapping[Figure, int]], family: str) -> int:
    return sum(step.get(Figure(family, (), "sum"), 0) for step in rows)


def percentile(counts: Mapping[float, int], share: float, bounds: Sequence[float]) -> float | None:
    """Return a percentile of a histogram, linear within its bucket; None for an empty histogram.

    Values beyond the last bound are only known to be larger: then return that bound.
    """
    whole = sum(counts.values())
    if not whole:
        return None
    target = share * whole
    below = 0
    for place, upper in enumerate([*bounds, float(BEYOND)]):
        here = counts.get(upper, 0)
        if here and below + here >= target:
            lower = bounds[place - 1] if place else 0.0
            if upper == float(BEYOND):
                return float(bounds[-1])
            return lower + (upper - lower) * max(0.0, target - below) / here
        below += here
    return float(bounds[-1])
