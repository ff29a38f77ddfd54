"""Bisect: the culprit is always found, in ceil(log2 n) checks."""

from __future__ import annotations

from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.policies.regressions.bisect import most_steps, next_probe, suspects


def search(count: int, culprit: int) -> tuple[str, int]:
    """Search among ``count`` commits after a good one; return what is blamed, and the checks."""
    commits = [f"c{n}" for n in range(count + 1)]
    good, bad, steps = commits[0], commits[-1], 0
    while (probe := next_probe(commits, good, bad)) is not None:
        steps += 1
        if commits.index(probe) >= culprit:
            bad = probe
        else:
            good = probe
    return bad, steps


@given(st.data(), st.integers(1, 3000))
def test_the_culprit_is_found_wherever_it_is(data: st.DataObject, count: int) -> None:
    culprit = data.draw(st.integers(1, count))
    blamed, steps = search(count, culprit)
    assert blamed == f"c{culprit}"
    assert steps <= most_steps(count) == ceil(log2(count))


@pytest.mark.parametrize(
    ("commits", "steps"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (1024, 10)]
)
def test_how_many_checks_it_takes_at_most(commits: int, steps: int) -> None:
    assert most_steps(commits) == steps
    assert max(search(commits, each)[1] for each in range(1, commits + 1)) == steps


@pytest.mark.parametrize(("good", "bad"), [("c", "a"), ("a", "a"), ("x", "a"), ("a", "x")])
def test_commits_that_the_branch_does_not_have_in_this_order_are_refused(
    good: str, bad: str
) -> None:
    with pytest.raises(ValueError, match="not"):
        suspects(["a", "b", "c"], good, bad)
