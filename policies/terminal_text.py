"""Text of others on a terminal or in a log: what would command the terminal is shown instead.

Prompts, answers, names and errors come from others. An escape sequence in them could rewrite the
screen, set its title or fill the clipboard, and a change of direction could hide what is said.
"""

from __future__ import annotations

import re

#: All control characters except tab and newline, those that change the direction of a text or
#: separate its lines, and halves of surrogate pairs, which cannot be written at all.
_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def terminal_text(text: str) -> str:
    """Return a text that a terminal only shows."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text)


def terminal_json(text: str) -> str:
    """Return a JSON document with the same values that a terminal only shows."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
