"""Exempt task types: the ones without a mandatory retry."""

from __future__ import annotations

import re
from collections.abc import Iterable

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_BREAK = re.compile(r"[\W_]+")


def is_exempt(task_type: str, exempt: Iterable[str]) -> bool:
    """Whether a task type is listed; ``read-aloud``, ``readAloud``, ``read_aloud`` are one name."""
    return _words(task_type) in map(_words, exempt)


def _words(name: str) -> str:
    return _BREAK.sub("_", _HUMP.sub("_", name)).strip("_").casefold()
