"""How deeply JSON is nested. Parsers' own limits depend on Python, so they are not relied upon."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: Deeper JSON is refused: all that walks through a value afterwards is recursive.
MAX_DEPTH = 200
#: Strings (closed or not, so that no quote is read twice) and brackets.
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)


def too_deep(text: str, most: int = MAX_DEPTH) -> bool:
    """Return whether a JSON text has more levels than ``most``."""
    depth = 0
    for match in TOKEN.finditer(text):
        piece = match.group()
        if piece in "{[":
            depth += 1
            if depth > most:
                return True
        elif piece in "}]":
            depth -= 1
    return False


def nested_too_deeply(value: Any) -> bool:
    """Return whether a value has more than MAX_DEPTH levels."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return False
    return True


def _inside(value: Any) -> list[Any]:
    """Return the lists and mappings directly inside a value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list | tuple):
        return []
    return [each for each in value if isinstance(each, list | tuple | Mapping)]
