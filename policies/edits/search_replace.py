"""Search and replace in a text: the search has one place, or nothing is replaced.

The tolerances are those of ``fit``: for blocks of whole lines trailing whitespace, a uniform shift
of indentation and Unicode punctuation; inside a line punctuation only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from mulligan.policies.edits.fit import (
    RESPELLED,
    RUNG_NAMES,
    FittedHunks,
    LinePlace,
    MisfitHunk,
    Tolerance,
    find_block,
    forgiven,
    nearest,
    shifted,
    shown,
    split_lines,
)
from mulligan.policies.edits.unicode_punctuation import Ambiguous, plain, respelled, spelling

Count = int | Literal["all"]
LINE_ENDINGS = "line endings"
#: A shorter replacement that happens to be in the text proves nothing.
_TELLING = 20
_LISTED = 8


def replaced(text: str, search: str, replace: str, count: Count | None = None) -> FittedHunks:
    """The text with ``search`` replaced where it occurs: once, or ``count`` times. Raises Misfit.
    ``applied``: it already reads as it would afterwards."""
    if search == replace:
        return FittedHunks(text=text, applied=True)
    crlf = "\r\n" in text and "\r" not in search and "\n" not in text.replace("\r\n", "")
    if crlf and "\n" in search + replace:
        done = _replaced(text, _crlf(search), _crlf(replace), count)
        return FittedHunks(
            text=done.text, tolerances=(LINE_ENDINGS, *done.tolerances), applied=done.applied
        )
    return _replaced(text, search, replace, count)


def _crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _replaced(text: str, search: str, replace: str, count: Count | None) -> FittedHunks:
    hits = _hits(text, search)
    if count is not None:
        return _many(text, search, replace, hits, count)
    if len(hits) == 1:
        if _stands(text, search, replace, hits[0]):
            return FittedHunks(text=text, applied=True)
        start = hits[0]
        return FittedHunks(text=text[:start] + replace + text[start + len(search) :])
    if hits:
        raise MisfitHunk(_too_many(text, hits))
    return _tolerant(text, search, replace)


def _hits(text: str, search: str) -> list[int]:
    """Where it occurs, overlapping places too."""
    found = []
    start = text.find(search)
    while start >= 0:
        found.append(start)
        start = text.find(search, start + 1)
    return found


def _many(text: str, search: str, replace: str, hits: Sequence[int], count: Count) -> FittedHunks:
    times = text.count(search)
    if count == "all" and times:
        return FittedHunks(text=text.replace(search, replace))
    if not hits:
        raise MisfitHunk(_nothing(text, search))
    if times != count:
        where = _numbers(text, hits)
        raise MisfitHunk(f"the search text occurs {times} times (lines {where}), not {count}")
    return FittedHunks(text=text.replace(search, replace))


def _stands(text: str, search: str, replace: str, hit: int) -> bool:
    """Whether the replacement, which holds the search text, is what already stands there."""
    for offset in _hits(replace, search):
        start = hit - offset
        if start >= 0 and text[start : start + len(replace)] == replace:
            return True
    return False


def _tolerant(text: str, search: str, replace: str) -> FittedHunks:
    """No exact occurrence: whole lines by the ladder, then punctuation inside a line."""
    if _in_place(text, replace):
        return FittedHunks(text=text, applied=True)
    lines = split_lines(text)
    for rung in (Tolerance.TRAILING, Tolerance.INDENTATION, Tolerance.PUNCTUATION):
        wanted = split_lines(search)
        places = [
            place
            for place in find_block(lines, wanted, rung)
            if all(shifted(line, place.shift) is not None for line in split_lines(replace))
        ]
        if len(places) > 1:
            where = ", ".join(str(place.start + 1) for place in places[:_LISTED])
            raise MisfitHunk(_ambiguous(len(places), where))
        if places:
            return _block(lines, wanted, replace, places[0])
    hits = _hits(plain(text), plain(search))
    if len(hits) > 1:
        raise MisfitHunk(_too_many(text, hits))
    if not hits:
        raise MisfitHunk(_nothing(text, search))
    start, end = hits[0], hits[0] + len(search)
    new = _spelled([text[start:end]], [search], replace)
    used = (RUNG_NAMES[Tolerance.PUNCTUATION], *((RESPELLED,) if new != replace else ()))
    return FittedHunks(text=text[:start] + new + text[end:], tolerances=used)


def _spelled(there: Sequence[str], wanted: Sequence[str], replace: str) -> str:
    """The replacement, spelled as the file spells what was searched for. Raises Misfit."""
    try:
        return respelled(replace, spelling(there, wanted))
    except Ambiguous as error:
        raise MisfitHunk(f"the replacement {error}") from None


def _in_place(text: str, replace: str) -> bool:
    """Whether the replacement is there once, and long enough to be no accident."""
    whole = bool(replace.strip()) and find_block(
        split_lines(text), split_lines(replace), Tolerance.EXACT
    )
    return len(_hits(text, replace)) == 1 and (
        len(replace.strip()) >= _TELLING or bool(whole and replace.endswith("\n"))
    )


def _block(
    lines: Sequence[str], wanted: Sequence[str], replace: str, place: LinePlace
) -> FittedHunks:
    there = lines[place.start : place.start + len(wanted)]
    meant = _spelled(there, wanted, replace) if place.rung is Tolerance.PUNCTUATION else replace
    new = [shifted(line, place.shift) or "" for line in split_lines(meant)]
    last = there[-1]
    if new and not wanted[-1].endswith("\n") and not new[-1].endswith("\n"):
        # The search ended inside the last line, so that line's ending stays.
        new[-1] += last[len(last.rstrip("\r\n")) :]
    # Whether the file's last line has an ending is no business of a tolerance.
    used = forgiven(
        [line.rstrip("\r\n") for line in there],
        [line.rstrip("\r\n") for line in wanted],
        place.shift,
    )
    after = [*lines[: place.start], *new, *lines[place.start + len(wanted) :]]
    return FittedHunks(
        text="".join(after), tolerances=(*used, *((RESPELLED,) if meant != replace else ()))
    )


def _numbers(text: str, hits: Sequence[int]) -> str:
    numbers = dict.fromkeys(str(text.count("\n", 0, hit) + 1) for hit in hits)
    return ", ".join(list(numbers)[:_LISTED])


def _too_many(text: str, hits: Sequence[int]) -> str:
    return _ambiguous(len(hits), _numbers(text, hits))


def _ambiguous(times: int, where: str) -> str:
    return (
        f"the search text occurs {times} times (lines {where}): give more of the lines around it,"
        " or count"
    )


def _nothing(text: str, search: str) -> str:
    wanted = split_lines(search)
    near = "; ".join(
        f"{at}: {shown(line)}" for at, line in nearest(split_lines(text), wanted)[:_LISTED]
    )
    if not near:
        return f"the search text {shown(wanted[0])} does not occur: the file is empty"
    return f"the search text {shown(wanted[0])} does not occur. Nearest lines: {near}"
