"""Bisect: which commit broke an item last, in ceil(log2 n) checks of n commits.

A rollback mends what it undoes, so that each one in between takes a check of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


def next_probe(
    commits: Sequence[str], good: str, bad: str, rollbacks: Collection[str] = ()
) -> str | None:
    """Return the commit to check next; None if ``bad`` is the culprit.

    ``commits``: of the branch, the oldest first, with ``good`` and ``bad``. ``rollbacks``: those
    that undo others. Raises ValueError if ``good`` and ``bad`` are not on it in this order.
    """
    first, last = commits.index(good), commits.index(bad)
    if first >= last:
        raise ValueError("the good commit is not before the bad one")
    mended = [each for each in commits[first + 1 : last] if each in rollbacks]
    if mended:
        return mended[-1]
    return commits[(first + last) // 2] if last - first > 1 else None


def suspects(commits: Sequence[str], good: str, bad: str) -> int:
    """Return among how many commits the culprit is. Raises ValueError as next_probe does."""
    next_probe(commits, good, bad)
    return commits.index(bad) - commits.index(good)


def most_steps(commits: int) -> int:
    """Return how many checks find one of so many commits: ceil(log2 n)."""
    return max(0, commits - 1).bit_length()
