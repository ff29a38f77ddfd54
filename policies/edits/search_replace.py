"""Search and replace in a text: nothing is replaced unless the search text has exactly one place.

The tolerances are those of ``fit``: all of them for blocks of whole lines, Unicode punctuation only
inside a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from mulligan.policies.edits.fit import (
    RESPELLED,
    TOLERANCE_NAMES,
    FittedHunks,
    LinePlace,
    MisfitHunk,
    Tolerance,
    find_block,
    line_numbers,
    nearest_lines,
    quote_line,
    shift_line,
    split_lines,
    tolerances_used,
)
from mulligan.policies.edits.unicode_punctuation import (
    AmbiguousCharacter,
    punctuation_map,
    respell,
    to_ascii,
)

Count = int | Literal["all"]
LINE_ENDINGS = "line endings"
#: A shorter replacement may be in the text by coincidence.
_MIN_EVIDENCE = 20
_MAX_LISTED = 8
#: Beyond this, occurrences are neither counted nor listed.
_MAX_HITS = 1_000


def replace_text(text: str, search: str, replace: str, count: Count | None = None) -> FittedHunks:
    """Replace ``search`` where it occurs: once, or ``count`` times. Raises MisfitHunk."""
    if search == replace:
        return FittedHunks(text=text, applied=True)
    crlf = "\r\n" in text and "\r" not in search and "\n" not in text.replace("\r\n", "")
    if crlf and "\n" in search + replace:
        done = _replace(text, _with_crlf(search), _with_crlf(replace), count)
        return FittedHunks(
            text=done.text, tolerances=(LINE_ENDINGS, *done.tolerances), applied=done.applied
        )
    return _replace(text, search, replace, count)


def _with_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _replace(text: str, search: str, replace: str, count: Count | None) -> FittedHunks:
    hits = _hits(text, search)
    if count is not None:
        return _replace_many(text, search, replace, hits, count)
    if len(hits) == 1:
        if _is_replaced(text, search, replace, hits[0]):
            return FittedHunks(text=text, applied=True)
        start = hits[0]
        return FittedHunks(text=text[:start] + replace + text[start + len(search) :])
    if hits:
        raise _ambiguous(len(hits), _numbers(text, hits))
    return _replace_tolerantly(text, search, replace)


def _hits(text: str, search: str) -> list[int]:
    """Return where the search text occurs, including overlapping places, up to a limit."""
    found: list[int] = []
    start = text.find(search)
    while start >= 0 and len(found) < _MAX_HITS:
        found.append(start)
        start = text.find(search, start + 1)
    return found


def _replace_many(
    text: str, search: str, replace: str, hits: Sequence[int], count: Count
) -> FittedHunks:
    times = text.count(search)
    if not hits:
        raise _not_found(text, search)
    if count not in ("all", times):
        where = _numbers(text, hits)
        raise MisfitHunk(f"the search text occurs {times} times (lines {where}), not {count}")
    return FittedHunks(text=text.replace(search, replace))


def _is_replaced(text: str, search: str, replace: str, hit: int) -> bool:
    """Return whether this hit is part of the replacement, which contains the search text."""
    starts = (hit - offset for offset in _hits(replace, search))
    return any(start >= 0 and text.startswith(replace, start) for start in starts)


def _replace_tolerantly(text: str, search: str, replace: str) -> FittedHunks:
    """Without an exact occurrence, try whole lines, then punctuation inside a line."""
    if _is_present(text, replace):
        return FittedHunks(text=text, applied=True)
    lines, block = split_lines(text), split_lines(search)
    for tolerance in (Tolerance.TRAILING, Tolerance.INDENTATION, Tolerance.PUNCTUATION):
        places = [
            place
            for place in find_block(lines, block, tolerance)
            if all(shift_line(line, place.shift) is not None for line in split_lines(replace))
        ]
        if len(places) > 1:
            raise _ambiguous(len(places), line_numbers(places))
        if places:
            return _replace_block(lines, block, replace, places[0])
    hits = _hits(to_ascii(text), to_ascii(search))
    if len(hits) > 1:
        raise _ambiguous(len(hits), _numbers(text, hits))
    if not hits:
        raise _not_found(text, search)
    start, end = hits[0], hits[0] + len(search)
    new = _respell([text[start:end]], [search], replace)
    used = (TOLERANCE_NAMES[Tolerance.PUNCTUATION], *((RESPELLED,) if new != replace else ()))
    return FittedHunks(text=text[:start] + new + text[end:], tolerances=used)


def _respell(actual: Sequence[str], block: Sequence[str], replace: str) -> str:
    """Return the replacement with the punctuation of the text found. Raises MisfitHunk."""
    try:
        return respell(replace, punctuation_map(actual, block))
    except AmbiguousCharacter as error:
        raise MisfitHunk(f"the replacement {error}") from None


def _is_present(text: str, replace: str) -> bool:
    """Return whether the replacement occurs once, and is too long for a coincidence."""
    whole = bool(replace.strip()) and find_block(
        split_lines(text), split_lines(replace), Tolerance.EXACT
    )
    return len(_hits(text, replace)) == 1 and (
        len(replace.strip()) >= _MIN_EVIDENCE or bool(whole and replace.endswith("\n"))
    )


def _replace_block(
    lines: Sequence[str], block: Sequence[str], replace: str, place: LinePlace
) -> FittedHunks:
    actual = lines[place.start : place.start + len(block)]
    fuzzy = place.tolerance is Tolerance.PUNCTUATION
    respelled = _respell(actual, block, replace) if fuzzy else replace
    new = [shift_line(line, place.shift) or "" for line in split_lines(respelled)]
    last = actual[-1]
    if new and not block[-1].endswith("\n") and not new[-1].endswith("\n"):
        # The search ended inside the last line, so that line's ending stays.
        new[-1] += last[len(last.rstrip("\r\n")) :]
    # A missing ending of the file's last line counts as no tolerance.
    used = tolerances_used(
        [line.rstrip("\r\n") for line in actual],
        [line.rstrip("\r\n") for line in block],
        place.shift,
    )
    after = [*lines[: place.start], *new, *lines[place.start + len(block) :]]
    return FittedHunks(
        text="".join(after), tolerances=(*used, *((RESPELLED,) if respelled != replace else ()))
    )


def _numbers(text: str, hits: Sequence[int]) -> str:
    numbers: list[int] = []
    line, at = 1, 0
    for hit in hits:
        line, at = line + text.count("\n", at, hit), hit
        if line not in numbers:
            numbers.append(line)
        if len(numbers) == _MAX_LISTED:
            break
    return ", ".join(map(str, numbers))


def _ambiguous(times: int, where: str) -> MisfitHunk:
    often = f"at least {times}" if times >= _MAX_HITS else f"{times}"
    return MisfitHunk(
        f"the search text occurs {often} times (lines {where}): give more of the lines around it,"
        " or count"
    )


def _not_found(text: str, search: str) -> MisfitHunk:
    block = split_lines(search)
    near = nearest_lines(split_lines(text), block)
    end = f". Nearest lines: {near}" if near else ": the file is empty"
    return MisfitHunk(f"the search text {quote_line(block[0])} does not occur{end}")
