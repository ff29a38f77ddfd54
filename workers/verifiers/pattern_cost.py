"""Whether a pattern is cheap by construction: no backtracking, and few states."""

from __future__ import annotations

import re

#: What needs the engine that backtracks, or a large table: lookaround, atomic and conditional
#: groups, back-references, possessive repetition, classes of Unicode. Flags that allow spaces in a
#: pattern (x) would hide them from this look.
_COSTLY = re.compile(r"\(\?(?!:|[ims]{1,3}[:)])|\\[1-9kgGKpPX]|[*+?}]\+")
_REPEATED = re.compile(r"\{(\d+)(?:,(\d*))?\}")
#: A pattern of more states is not worth counting.
_MOST_STATES = 100_000


def pattern_states(pattern: str) -> int | None:
    """Return about how many states a plain pattern has; None if it is not cheap.

    A plain pattern is searched for in at most this many steps per character.
    """
    if _COSTLY.search(pattern):
        return None
    states = len(pattern) + 1
    for match in _REPEATED.finditer(pattern):
        low, high = match.groups()
        # Repetitions may be inside each other, so they multiply.
        states *= max(int(low[:6]), int((high or "0")[:6])) + 1
        if states > _MOST_STATES:
            return None
    return states
