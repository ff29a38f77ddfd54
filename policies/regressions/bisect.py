"""Bisect: which commit broke an item, in ceil(log2 n) checks of n commits."""

from __future__ import annotations

from collections.abc import Sequence


def next_probe(commits: Sequence[str], good: str, bad: str) -> str | None:
    """Return the commit to check next; None if ``bad`` is the culprit.

    ``commits``: of the branch, the oldest first, with ``good`` and ``bad``. Raises ValueError if
    they are not on it in this order.
    """
    first, last = commits.index(good), commits.index(bad)
    if first >= last:
        raise ValueError("the good commit is not before the bad one")
    return commits[(first + last) // 2] if last - first > 1 else None


def suspects(commits: Sequence[str], good: str, bad: str) -> int:
    """Return among how many commits the culprit is. Raises ValueError as next_probe does."""
    next_probe(commits, good, bad)
    return commits.index(bad) - commits.index(good)


def most_steps(commits: int) -> int:
    """Return how many checks find one of so many commits: ceil(log2 n)."""
    return max(0, commits - 1).bit_length()
