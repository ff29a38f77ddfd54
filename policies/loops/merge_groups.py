"""Groups of items whose merges may meet. Merges of different groups never wait for each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from mulligan.policies.loops.spec import ItemSpec
from mulligan.policies.path_patterns import can_meet, literal_start

#: Comparisons of patterns for one loop. With more, all its items are one group.
_MOST_COMPARED = 100_000


def merge_group(specs: Sequence[ItemSpec], item: str) -> str:
    """Return the group of an item's merge, named by its first item; empty: there is one group.

    Items are in one group if their ``touches`` can name the same file, or if both meet a third one.
    An item without ``touches`` may change every file.
    """
    return _groups(tuple((spec.id, spec.touches) for spec in specs)).get(item, "")


@lru_cache(maxsize=16)
def _groups(touches: tuple[tuple[str, tuple[str, ...]], ...]) -> Mapping[str, str]:
    """Return the groups of a loop's items; nothing if all of them are one."""
    if not all(patterns for _, patterns in touches):
        return {}
    groups = _DisjointSets({pattern for _, patterns in touches for pattern in patterns})
    for _, patterns in touches:
        for one, other in pairwise(patterns):
            groups.join(one, other)
    for count, (one, other) in enumerate(_neighbours(groups.members)):
        if count >= _MOST_COMPARED:
            return {}
        if groups.find(one) != groups.find(other) and can_meet(one, other):
            groups.join(one, other)
    first: dict[str, str] = {}
    found = {item: first.setdefault(groups.find(patterns[0]), item) for item, patterns in touches}
    return found if len(first) > 1 else {}


class _DisjointSets:
    """Sets of patterns, which only grow together."""

    def __init__(self, members: Iterable[str]) -> None:
        self.members = sorted(members)
        self._above = {each: each for each in self.members}

    def find(self, member: str) -> str:
        """Return the member that stands for a set."""
        while self._above[member] != member:
            self._above[member] = self._above[self._above[member]]
            member = self._above[member]
        return member

    def join(self, one: str, other: str) -> None:
        self._above[self.find(one)] = self.find(other)


def _neighbours(patterns: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of patterns whose texts before the first wildcard do not exclude a file."""
    known = sorted((literal_start(each), each) for each in patterns)
    for place, (start, one) in enumerate(known):
        following = place + 1
        while following < len(known) and known[following][0].startswith(start):
            yield one, known[following][1]
            following += 1
