"""Count errors that differ only in the index of an array.

Only the first few are separate findings, and the last of these counts the rest. So a wrong array
of 10,000 items costs little to check, to store and to read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable
from itertools import chain

from mulligan.policies.failures.failure import Finding

#: Separate findings of errors that differ only in an index.
PLACES = 5
_INDEX = re.compile(r"\[\d+\]")


def any_index(path: str) -> str:
    """Return ``$.items[*].id`` for ``$.items[0].id``."""
    return _INDEX.sub("[*]", path)


class Places:
    """Findings in their order, by keys that are equal except for an index."""

    def __init__(self) -> None:
        self._found: dict[Hashable, list[list[Finding]]] = defaultdict(list)
        self._left_out: dict[Hashable, int] = defaultdict(int)

    def add(self, key: Hashable, build: Callable[[], list[Finding]]) -> None:
        """Add the findings of one error. They are not built if the key has enough of them."""
        if len(self._found[key]) < PLACES:
            self._found[key].append(build())
        else:
            self._left_out[key] += 1

    @property
    def findings(self) -> list[Finding]:
        """Every finding; the last ones of a key count those that were left out."""
        found = {key: list(chain.from_iterable(errors)) for key, errors in self._found.items()}
        for key, left_out in self._left_out.items():
            several = len(self._found[key][-1])
            last = (f.model_copy(update={"count": 1 + left_out}) for f in found[key][-several:])
            found[key][-several:] = last
        return list(chain.from_iterable(found.values()))
