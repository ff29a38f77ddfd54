"""Suggestions for unknown names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

#: How similar a name must be to be suggested, from 0 to 1.
_CUTOFF = 0.65
#: A longer name is no typing mistake, and comparing it is slow.
_LONGEST = 200
_LISTED = 12


def nearest_name(name: str, known: Iterable[str], *, cutoff: float = _CUTOFF) -> str | None:
    """Return the known name that ``name`` probably misspells, or is the last part of."""
    if len(name) > _LONGEST:
        return None
    names = list(known)
    near = get_close_matches(name, names, n=1, cutoff=cutoff)
    longer = sorted((full for full in names if full.endswith(f".{name}")), key=len)
    return next(iter(near + longer), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: ``; did you mean 'x'?`` or nothing."""
    near = nearest_name(name, known)
    return f"; did you mean {near!r}?" if near else ""


def name_hint(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the nearest name, or else the known ones."""
    names = list(dict.fromkeys(known))
    if not names:
        return "; there are none"
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return did_you_mean(name, names) or f"; there are: {', '.join(names[:_LISTED])}{more}"
