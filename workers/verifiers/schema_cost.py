"""Whether a JSON Schema is cheap by construction: small, also with every reference written out.

Each part of such a schema looks at each part of a value at most once. A recursive schema has no
such size: with alternatives, it may look at a part as often as its depth doubles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mulligan.workers.verifiers.pattern_cost import pattern_states

#: A larger schema is not counted further.
MOST_PARTS = 10_000
_DEEPEST = 100
#: A compiled pattern takes as much memory as this many other parts.
_PATTERN = 50
_FOREIGN = frozenset({"$dynamicRef", "$recursiveRef", "$id", "id", "$anchor", "$dynamicAnchor"})
#: They evaluate the other keywords beside them once more.
_REPEATING = frozenset({"unevaluatedProperties", "unevaluatedItems"})


class _NotCheap(Exception):
    """The schema is recursive, large, or has something that cannot be counted."""


def schema_parts(schema: Any) -> int | None:
    """Return the number of values in a schema whose references are written out.

    None if it is not cheap. What a keyword means does not matter: all that is in the schema counts.
    """
    try:
        return _Counter(schema).parts(schema, 0)
    except _NotCheap:
        return None


class _Counter:
    def __init__(self, root: Any) -> None:
        self._root = root
        #: The parts of what a reference points to; None while it is being counted.
        self._targets: dict[str, int | None] = {}

    def parts(self, value: Any, depth: int) -> int:
        if depth > _DEEPEST:
            raise _NotCheap
        total = 1
        for part in self._inside(value):
            total += part if isinstance(part, int) else self.parts(part[0], depth + 1)
            if total > MOST_PARTS:
                raise _NotCheap
        return total

    def _inside(self, value: Any) -> Iterator[int | tuple[Any]]:
        """Yield the numbers of parts that are known, and in tuples the values to count."""
        if isinstance(value, list):
            yield from ((item,) for item in value)
        if not isinstance(value, dict):
            return
        for name, item in value.items():
            yield (item,)
            if isinstance(item, str):
                yield self._extra(name, item)
            elif name in _REPEATING:
                raise _NotCheap
            elif name == "patternProperties" and isinstance(item, dict):
                yield from map(_states, item)

    def _extra(self, name: str, text: str) -> int:
        """Return what a keyword with a text costs beside itself."""
        if name in _FOREIGN or (name == "format" and text == "regex"):
            raise _NotCheap
        if name == "pattern":
            return _states(text)
        return self._target(text) if name == "$ref" else 0

    def _target(self, reference: str) -> int:
        if reference not in self._targets:
            self._targets[reference] = None
            self._targets[reference] = self.parts(self._resolve(reference), 0)
        known = self._targets[reference]
        if known is None:  # it contains itself
            raise _NotCheap
        return known

    def _resolve(self, reference: str) -> Any:
        """Return what a reference inside the schema points to."""
        if reference != "#" and (not reference.startswith("#/") or "%" in reference):
            raise _NotCheap
        found = self._root
        for step in reference.split("/")[1:]:
            try:
                found = found[step.replace("~1", "/").replace("~0", "~")]
            except (LookupError, TypeError):
                raise _NotCheap from None
        return found


def _states(pattern: str) -> int:
    states = pattern_states(pattern)
    if states is None:
        raise _NotCheap
    return states + _PATTERN
