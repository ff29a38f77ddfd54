"""Batches of merges: how many at once, and which of them fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

#: Merges in the first batch of a loop, and the most in any.
START_WINDOW = 2
MOST_WINDOW = 20
_Member = TypeVar("_Member")


def next_window(window: int, *, good: bool) -> int:
    """Return how many merges the next batch may have: one more after a success, else half."""
    return max(1, min(MOST_WINDOW, window + 1 if good else window // 2))


def land_good(
    members: Sequence[_Member],
    land: Callable[[Sequence[_Member]], bool],
    *,
    known_bad: bool = False,
) -> list[_Member]:
    """Land the members that are good together, and return those that are not.

    ``land`` lands some of them if they are good with what was landed before, and says whether they
    are. What fails is halved. If one half is good, the other one fails: nobody tries it again.
    """
    if not known_bad and land(members):
        return []
    if len(members) == 1:
        return list(members)
    half = (len(members) + 1) // 2
    first = land_good(members[:half], land)
    return first + land_good(members[half:], land, known_bad=not first)
