"""What a job may not contain although its form is right: long names, impossible numbers.

These are rules for accepting a job, not part of its form: a job that was stored before stays
readable.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from mulligan.policies.jobs.job import Job
from mulligan.policies.problem import FieldPath, Problem

#: Characters of a name, and of a label's value.
LONGEST_NAME = 200
LONGEST_VALUE = 1000
#: Patterns of `workspace.protect`, and characters of a path or a pattern.
MOST_PATTERNS = 200
LONGEST_PATH = 1000
#: Seconds of ten years. Later moments have no date on the page, and nobody waits for them.
MOST_SECONDS = 10 * 365 * 86_400.0
#: Tokens or units of money of a budget. The ledger's numbers are exact far beyond that.
MOST_SPENT = 1e12


def limit_problems(job: Job) -> list[Problem]:
    """Find everything that is too long, and every number that cannot be stored."""
    return [*_labels(job), *_names(job), *_workspace(job), *_numbers(job), *_amounts(job)]


def _labels(job: Job) -> Iterator[Problem]:
    for name, value in job.labels.items():
        if len(name) > LONGEST_NAME:
            message = (
                f"the name '{name[:20]}…' has {len(name):,} characters; the limit is {LONGEST_NAME}"
            )
            yield Problem(message, ("labels",), "too_long")
        else:
            yield from _long(value, ("labels", name), LONGEST_VALUE)


def _names(job: Job) -> Iterator[Problem]:
    for index, spec in enumerate(job.verifiers):
        yield from _long(spec.name or "", ("verifiers", index, "name"), LONGEST_NAME)


def _workspace(job: Job) -> Iterator[Problem]:
    workspace = job.workspace
    if workspace is None:
        return
    for field in ("path", "output_file"):
        yield from _long(getattr(workspace, field) or "", ("workspace", field), LONGEST_PATH)
    if len(workspace.protect) > MOST_PATTERNS:
        message = f"has {len(workspace.protect):,} patterns; the limit is {MOST_PATTERNS}"
        yield Problem(message, ("workspace", "protect"), "too_long")
        return
    for index, pattern in enumerate(workspace.protect):
        yield from _long(pattern, ("workspace", "protect", index), LONGEST_PATH)


def _long(text: str, path: FieldPath, most: int) -> Iterator[Problem]:
    if len(text) > most:
        yield Problem(f"has {len(text):,} characters; the limit is {most:,}", path, "too_long")


def _numbers(job: Job) -> Iterator[Problem]:
    """Find NaN and infinity in options: JSON has no such numbers and would store null."""
    yield from _not_finite(job.runner.options, ("runner",))
    for index, spec in enumerate(job.verifiers):
        yield from _not_finite(spec.options, ("verifiers", index))


def _amounts(job: Job) -> Iterator[Problem]:
    """Find times and budgets that nobody can mean."""
    budget, after = job.budget, job.delayed_verification.after
    yield from _more(budget.tokens, ("budget", "tokens"), MOST_SPENT)
    yield from _more(budget.money, ("budget", "money"), MOST_SPENT)
    yield from _more(budget.seconds, ("budget", "seconds"), MOST_SECONDS)
    yield from _more(after, ("delayed_verification", "after"), MOST_SECONDS)
    yield from _more(job.deadline, ("deadline",), MOST_SECONDS)


def _more(number: float | None, path: FieldPath, most: float) -> Iterator[Problem]:
    if number is not None and number > most:
        yield Problem(f"is more than {most:,.0f}", path, "too_long")


def _not_finite(value: Any, path: FieldPath) -> Iterator[Problem]:
    if isinstance(value, float) and not math.isfinite(value):
        yield Problem("must be a finite number: JSON has neither NaN nor infinity", path)
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _not_finite(each, (*path, str(name)))
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _not_finite(each, (*path, index))
