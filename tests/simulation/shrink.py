"""Shrinking: remove parts of a failing scenario as long as it still fails in the same way."""

from __future__ import annotations

import re

from simulation.scenario import Scenario, run

#: Names and numbers, which differ between two runs that fail in the same way.
_DETAIL = re.compile(r"\b(?:p\d\d-)?job\d+\S*|\b\d+(?:\.\d+)?\b|\b(?:worker|sweep)\d+\b|\S+:\S+")


def shape(violation: str) -> str:
    """Return a violation without names and numbers."""
    return _DETAIL.sub("…", violation.splitlines()[-1] if "Traceback" in violation else violation)


def shrink(scenario: Scenario, violations: list[str]) -> tuple[Scenario, list[str]]:
    """Return the smallest scenario found that fails alike, and its violations."""
    wanted = {shape(each) for each in violations}
    best, found = scenario, violations
    size = max(1, len(best.parts) // 2)
    while True:
        smaller = None
        names = list(best.parts)
        for start in range(0, len(names), size):
            trial = best.only([*names[:start], *names[start + size :]])
            result = run(trial).violations
            if wanted & {shape(each) for each in result}:
                smaller = trial
                best, found = trial, result
                break
        if smaller is None:
            if size == 1:
                return best, found
            size = max(1, size // 2)
