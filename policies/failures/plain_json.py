"""Plain JSON of bounded size: what a failure record stores of any Python value."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mulligan.policies.failures.failure import Finding
from mulligan.policies.value import Json, shortened

#: Limits in characters: a record is stored with every attempt.
MAX_MESSAGE = 2000
MAX_TEXT = 8192
MAX_VALUE = 500
#: Deeper evidence is stored as text.
MAX_DEPTH = 20
#: Larger numbers are stored as text: not every JSON reader accepts them, nor does ``str``.
MAX_BITS = 64


def plain_dict(value: Mapping[str, Json], depth: int = 0) -> dict[str, Json]:
    """Return evidence with cut texts and plain values, whatever their classes are."""
    return {storable(text_of(key), 200): _plain(item, depth) for key, item in value.items()}


def plain_finding(finding: Finding) -> Finding:
    """Return a finding with cut texts and brief values."""
    return finding.model_copy(
        update={
            "message": storable(finding.message, MAX_MESSAGE),
            "path": finding.path and storable(finding.path, MAX_MESSAGE),
            "expected": _brief(finding.expected),
            "actual": _brief(finding.actual),
            "example": _brief(finding.example),
        }
    )


def _brief(value: Json) -> Json:
    return shortened(_plain(value), MAX_VALUE)


def _plain(value: Json, depth: int = 0) -> Json:
    """Turn a value into plain JSON values, so that a record reads back as it was written."""
    match value:
        case None | bool():
            return value
        case int():
            return value if value.bit_length() <= MAX_BITS else text_of(value)
        case str():
            return storable(value, MAX_TEXT)
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping() if depth < MAX_DEPTH:
            return plain_dict(value, depth + 1)
        case list() | tuple() | set() | frozenset() if depth < MAX_DEPTH:
            return [_plain(item, depth + 1) for item in value]
    return storable(text_of(value), MAX_TEXT)


def text_of(value: object) -> str:
    """Return a value as text; empty if its ``__str__`` raises."""
    try:
        return str(value)
    except Exception:  # any class may raise anything here
        return ""


def storable(text: str, limit: int) -> str:
    """Cut a text and replace lone surrogates, which UTF-8 cannot encode, by question marks."""
    return text[:limit].encode("utf-8", "replace").decode("utf-8")
