"""Show the invisible characters of a text that reorder or hide what a reader sees."""

from __future__ import annotations

import re
from typing import Any

#: Control characters but for tab and line ends, which a terminal obeys when the page is copied;
#: directions, isolates and overrides; zero width without a joiner; tags, which spell hidden text.
_INVISIBLE = (
    *range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), *range(0x7F, 0xA0),
    0x061C, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF,
    *range(0xE0000, 0xE0080),
)  # fmt: skip
_VISIBLE = {code: f"⟨U+{code:04X}⟩" for code in _INVISIBLE}
_ANY = re.compile(f"[{''.join(map(chr, _INVISIBLE))}]")


def with_visible_controls(value: Any) -> Any:
    """Return a text with each of them as its code, and any other value as it is."""
    return value.translate(_VISIBLE) if isinstance(value, str) and _ANY.search(value) else value
