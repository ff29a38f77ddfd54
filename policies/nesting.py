"""How deeply a JSON text is nested. Read from the text: parsers' own limits depend on Python."""

from __future__ import annotations

import re

#: Deeper JSON is refused: all that walks through a value afterwards is recursive.
MAX_DEPTH = 200
#: Strings (closed or not, so that no quote is read twice) and brackets.
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)


def too_deep(text: str) -> bool:
    """Return whether a JSON text has more than MAX_DEPTH levels."""
    depth = 0
    for match in TOKEN.finditer(text):
        piece = match.group()
        if piece in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif piece in "}]":
            depth -= 1
    return False
