"""Read JSON that a program under test printed, without trusting any of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from mulligan.policies.jobs.job import MOST_TOKENS, joined_surrogates
from mulligan.policies.value import Json
from mulligan.workers.runners.sessions.session_parser import TextFilter

#: Characters of the text of an event, and of all its data.
LONGEST_TEXT = 16 << 10
#: Characters of one text within the data.
_LONGEST_VALUE = 4 << 10
#: Levels of nesting, and values in one list or mapping.
_DEEPEST = 8
_MOST_VALUES = 200
_LARGEST_NUMBER = 1 << 63
_LEFT_OUT = "…"


def parse_object(line: str) -> dict[str, Json] | None:
    """Return the JSON object in a line; None if there is none. Numbers are finite."""
    try:
        found = json.loads(line, parse_float=_finite, parse_constant=lambda _name: None)
    except (ValueError, RecursionError):  # also a number of too many digits
        return None
    return found if isinstance(found, dict) else None


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def text_in(value: Json) -> str:
    """Return a text as it can be stored; nothing for any other value."""
    return joined_surrogates(value) if isinstance(value, str) else ""


def mapping_in(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def list_in(value: Json) -> Sequence[Json]:
    return value if isinstance(value, list) else []


def tokens_in(value: Json) -> int | None:
    """Return a plausible number of tokens."""
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None


def amount_in(value: Json) -> float | None:
    """Return a number that is not negative."""
    if type(value) not in (int, float) or not 0 <= value <= _LARGEST_NUMBER:
        return None
    return float(value)


def shorten(text: str, longest: int) -> str:
    """Leave out the middle of a longer text: the end of an output says how it went."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


class BoundedCopy:
    """Copies JSON up to a limited size, with filtered texts.

    A text that is too long ends with its digest, so that different ones remain different.
    """

    def __init__(self, clean: TextFilter) -> None:
        self._clean = clean
        self._room = LONGEST_TEXT

    def of(self, value: Json, depth: int = _DEEPEST) -> Any:
        self._room -= 1
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, int) and not -_LARGEST_NUMBER < value < _LARGEST_NUMBER:
            return _LEFT_OUT
        if not isinstance(value, dict | list):
            return value
        if depth == 0 or self._room <= 0:
            return _LEFT_OUT
        if isinstance(value, list):
            return [self.of(each, depth - 1) for each in value[:_MOST_VALUES]]
        kept = list(value.items())[:_MOST_VALUES]
        return {self._text(key): self.of(each, depth - 1) for key, each in kept}

    def _text(self, value: str) -> str:
        text = self._clean(joined_surrogates(value))
        longest = max(0, min(_LONGEST_VALUE, self._room))
        self._room -= min(len(text), longest)
        if len(text) <= longest:
            return text
        digest = sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
        return f"{text[:longest]}{_LEFT_OUT} {len(text)} characters, sha256 {digest}"
