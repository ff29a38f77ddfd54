"""Where the lines of a diff belong in a file: exactly, or within one of a few named tolerances.

Each hunk is tried with four tolerances in order: exact, trailing whitespace, a uniform shift of
indentation, Unicode punctuation. Each one includes those before it. Every context and removed line
is compared, the place must be unique, hunks keep their order, and context lines keep the bytes of
the file. A hunk that does not fit is refused. Added lines get the shift and the punctuation that
the matched lines needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from rapidfuzz import fuzz, process

from mulligan.policies.edits.patch import Hunk
from mulligan.policies.edits.unicode_punctuation import (
    AmbiguousCharacter,
    punctuation_map,
    respell,
    to_ascii,
)

_BLANKS = " \t\r\n"
_MAX_QUOTED = 100
_MAX_LISTED = 8
#: Hunks whose nearest lines are looked up for a message; that compares each line of the file.
_MAX_EXPLAINED = 10


class Tolerance(IntEnum):
    """How much a place in a file may differ from a diff."""

    EXACT = 0
    TRAILING = 1
    INDENTATION = 2
    PUNCTUATION = 3


#: The names of the tolerances in outcomes.
TOLERANCE_NAMES = {
    Tolerance.TRAILING: "trailing whitespace",
    Tolerance.INDENTATION: "indentation",
    Tolerance.PUNCTUATION: "Unicode punctuation",
}

#: In outcomes: added lines got the punctuation of the file, because their context differed in it.
RESPELLED = "Unicode punctuation of added lines, written as the file has it"


def _trimmed(line: str) -> str:
    return line.rstrip(_BLANKS)


def _bare(line: str) -> str:
    return line.strip(_BLANKS)


def _ascii_bare(line: str) -> str:
    return to_ascii(line).strip(_BLANKS)


_KEYS: dict[Tolerance, Callable[[str], str]] = {
    Tolerance.EXACT: str,
    Tolerance.TRAILING: _trimmed,
    Tolerance.INDENTATION: _bare,
    Tolerance.PUNCTUATION: _ascii_bare,
}


class FileLines(list[str]):
    """The lines of a file. How each tolerance reads them is computed once, not for every hunk."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        super().__init__(lines)
        self._keys: dict[Tolerance, list[str]] = {}
        self._starts: dict[Tolerance, dict[str, list[int]]] = {}

    def keys(self, tolerance: Tolerance) -> list[str]:
        """Return each line as this tolerance reads it."""
        if tolerance not in self._keys:
            self._keys[tolerance] = [_KEYS[tolerance](line) for line in self]
        return self._keys[tolerance]

    def places_of(self, key: str, tolerance: Tolerance) -> Sequence[int]:
        """Return the indexes of the lines that this tolerance reads as ``key``."""
        if tolerance not in self._starts:
            found: dict[str, list[int]] = {}
            for at, each in enumerate(self.keys(tolerance)):
                found.setdefault(each, []).append(at)
            self._starts[tolerance] = found
        return self._starts[tolerance].get(key, ())


@dataclass(frozen=True, kw_only=True)
class Shift:
    """The file's indentation relative to the diff's: more (``adds``) or less (``drops``)."""

    adds: str = ""
    drops: str = ""


@dataclass(frozen=True, kw_only=True)
class LinePlace:
    """Where a block fits: the index of its first line, and the tolerance that it needed."""

    start: int
    tolerance: Tolerance
    shift: Shift = Shift()


@dataclass(frozen=True, kw_only=True)
class FittedHunks:
    """The text with the hunks in it. ``applied``: it already had them, and nothing changes."""

    text: str
    tolerances: tuple[str, ...] = ()
    applied: bool = False


class MisfitHunk(ValueError):
    """The hunks do not fit. ``problems`` has one line for each."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


def split_lines(text: str) -> FileLines:
    """Split at line feeds only; lines keep their endings."""
    lines = text.split("\n")
    kept = [line + "\n" for line in lines[:-1]]
    return FileLines(kept + lines[-1:] if lines[-1] else kept)


def apply_hunks(text: str, hunks: Sequence[Hunk]) -> FittedHunks:
    """Return the text with every hunk applied, unchanged if it has them all. Raises MisfitHunk."""
    lines = split_lines(text)
    if _all_applied(lines, hunks):
        return FittedHunks(text=text, applied=True)
    found = [_fits(lines, hunk) for hunk in hunks]
    misfits = [hunk for hunk, places in zip(hunks, found, strict=True) if not places]
    if misfits:
        explained = [_misfit_message(lines, hunk) for hunk in misfits[:_MAX_EXPLAINED]]
        more = [f"{_name(hunk)} does not fit" for hunk in misfits[_MAX_EXPLAINED:]]
        raise MisfitHunk(*explained, *more)
    chosen = _place_in_order(hunks, found)
    respelled = [_respell_added(lines, *pair) for pair in zip(hunks, chosen, strict=True)]
    used = _tolerances(lines, hunks, chosen) + ((RESPELLED,) if respelled != list(hunks) else ())
    return FittedHunks(text=_rebuild(lines, respelled, chosen), tolerances=used)


def find_block(lines: FileLines, block: Sequence[str], tolerance: Tolerance) -> list[LinePlace]:
    """Return every place where a block of whole lines fits with exactly this tolerance."""
    if not block or len(block) > len(lines):
        return []
    key = _KEYS[tolerance]
    block_keys = [key(line) for line in block]
    if not any(block_keys) and tolerance is not Tolerance.EXACT:
        return []  # blank lines alone identify no place
    keys = lines.keys(tolerance)
    starts = [
        start
        for start in lines.places_of(block_keys[0], tolerance)
        if keys[start : start + len(block)] == block_keys
    ]
    if tolerance < Tolerance.INDENTATION:
        return [LinePlace(start=start, tolerance=tolerance) for start in starts]
    shifts = [(s, _common_shift(lines[s : s + len(block)], block, tolerance)) for s in starts]
    return [
        LinePlace(start=start, tolerance=tolerance, shift=shift)
        for start, shift in shifts
        if shift is not None
    ]


def shift_line(line: str, shift: Shift) -> str | None:
    """Return a diff's line with the file's indentation; None if it has too little to drop."""
    if not _bare(line):
        return line
    if shift.drops and not line.startswith(shift.drops):
        return None
    return shift.adds + line[len(shift.drops) :]


def tolerances_used(actual: Sequence[str], block: Sequence[str], shift: Shift) -> tuple[str, ...]:
    """Return the names of the tolerances that a match needed."""
    pairs = list(zip(actual, block, strict=True))
    used = []
    if any(_tail(is_) != _tail(was) for is_, was in pairs):
        used.append(TOLERANCE_NAMES[Tolerance.TRAILING])
    if shift != Shift():
        used.append(TOLERANCE_NAMES[Tolerance.INDENTATION])
    if any(_bare(is_) != _bare(was) for is_, was in pairs):
        used.append(TOLERANCE_NAMES[Tolerance.PUNCTUATION])
    return tuple(used)


def nearest_lines(lines: Sequence[str], block: Sequence[str]) -> str:
    """Return the lines of a file that look most like a block, with their numbers, for a message."""
    start = _nearest_start(lines, block)
    return "" if start is None else _quote_lines(lines, block, start)


def _quote_lines(lines: Sequence[str], block: Sequence[str], start: int) -> str:
    end = min(start + min(max(len(block), 3), _MAX_LISTED), len(lines))
    return "; ".join(f"{at + 1}: {quote_line(lines[at])}" for at in range(start, end))


def quote_line(line: str) -> str:
    """Return a line for a message: quoted, and cut if long."""
    text = line.rstrip("\r\n")
    return repr(text if len(text) <= _MAX_QUOTED else text[: _MAX_QUOTED - 1] + "…")


def line_numbers(places: Sequence[LinePlace]) -> str:
    """Return the first line numbers of places, for a message."""
    return ", ".join(str(place.start + 1) for place in places[:_MAX_LISTED])


def _tail(line: str) -> str:
    return line[len(_trimmed(line)) :]


def _common_shift(
    actual: Sequence[str], block: Sequence[str], tolerance: Tolerance
) -> Shift | None:
    """Return the one shift that gives every line the file's indentation; None if there is none."""
    read = to_ascii if tolerance is Tolerance.PUNCTUATION else str
    found: set[Shift] = set()
    for is_, was in zip(actual, block, strict=True):
        if not _ascii_bare(was):
            continue
        ours, theirs = _indent(read(is_)), _indent(read(was))
        if ours.endswith(theirs):
            found.add(Shift(adds=ours[: len(ours) - len(theirs)]))
        elif theirs.endswith(ours):
            found.add(Shift(drops=theirs[: len(theirs) - len(ours)]))
        else:
            return None
    return found.pop() if len(found) == 1 else None


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _fits(lines: FileLines, hunk: Hunk) -> list[LinePlace]:
    """Return the places of a hunk with the strictest tolerance that finds any."""
    if not hunk.old:
        # Without context, the place is unambiguous only in an empty file.
        return [] if lines else [LinePlace(start=0, tolerance=Tolerance.EXACT)]
    for tolerance in Tolerance:
        places = [
            place for place in find_block(lines, hunk.old, tolerance) if _usable(lines, hunk, place)
        ]
        if places:
            return places
    return []


def _usable(lines: Sequence[str], hunk: Hunk, place: LinePlace) -> bool:
    """Return whether the added lines can be shifted, and "no newline" is at the file's end."""
    if any(shift_line(line.text, place.shift) is None for line in hunk.lines if line.mark == "+"):
        return False
    at_end = place.start + len(hunk.old) == len(lines)
    return at_end or all(line.text.endswith("\n") for line in hunk.lines)


def _place_in_order(hunks: Sequence[Hunk], found: Sequence[Sequence[LinePlace]]) -> list[LinePlace]:
    """Return the only way to place every hunk after the one before it. Raises MisfitHunk."""
    first: list[LinePlace] = []
    end = 0
    for hunk, places in zip(hunks, found, strict=True):
        later = [place for place in places if place.start >= end]
        if not later:
            raise MisfitHunk(
                f"{_name(hunk)} fits only at line {line_numbers(places)}, before or inside the"
                " hunk above it: give the hunks in the order of the file"
            )
        first.append(later[0])
        end = later[0].start + len(hunk.old)
    _check_unique(hunks, found, first)
    return first


def _check_unique(
    hunks: Sequence[Hunk], found: Sequence[Sequence[LinePlace]], first: Sequence[LinePlace]
) -> None:
    """Raise MisfitHunk if the hunks also fit further down."""
    limit: int | None = None
    for hunk, places, chosen in reversed(list(zip(hunks, found, first, strict=True))):
        fitting = [p for p in places if limit is None or p.start + len(hunk.old) <= limit]
        if fitting[-1] != chosen:
            raise MisfitHunk(
                f"{_name(hunk)} fits in {len(places)} places (lines {line_numbers(places)}): give"
                " more context lines"
            )
        limit = chosen.start


def _respell_added(lines: Sequence[str], hunk: Hunk, place: LinePlace) -> Hunk:
    """Return the hunk with the file's punctuation in its added lines. Raises MisfitHunk if that
    is ambiguous."""
    if place.tolerance is not Tolerance.PUNCTUATION:
        return hunk
    known = punctuation_map(lines[place.start : place.start + len(hunk.old)], hunk.old)
    try:
        body = tuple(
            replace(line, text=respell(line.text, known)) if line.mark == "+" else line
            for line in hunk.lines
        )
    except AmbiguousCharacter as error:
        raise MisfitHunk(f"{_name(hunk)} {error}") from None
    return replace(hunk, lines=body)


def _name(hunk: Hunk) -> str:
    return f"hunk {hunk.number} ({hunk.header})"


def _rebuild(lines: Sequence[str], hunks: Sequence[Hunk], places: Sequence[LinePlace]) -> str:
    out: list[str] = []
    at = 0
    for hunk, place in zip(hunks, places, strict=True):
        out.extend(lines[at : place.start])
        at = place.start + len(hunk.old)
        out.extend(_hunk_lines(lines, hunk, place))
    out.extend(lines[at:])
    ending = "\r\n" if _crlf(lines) else "\n"
    ended = [line if line.endswith("\n") else line + ending for line in out[:-1]]
    return "".join(ended + out[-1:])


def _hunk_lines(lines: Sequence[str], hunk: Hunk, place: LinePlace) -> list[str]:
    """Return the file's context lines and the hunk's added ones, in the hunk's order."""
    actual = lines[place.start : place.start + len(hunk.old)]
    crlf = _crlf(actual)
    adapt = place.tolerance is not Tolerance.EXACT and crlf is not None and crlf != _crlf(hunk.old)
    out: list[str] = []
    at = 0
    for line in hunk.lines:
        if line.mark == "+":
            text = shift_line(line.text, place.shift) or ""
            out.append(_with_ending(text, crlf=crlf is True) if adapt else text)
        else:
            if line.mark == " ":
                out.append(actual[at])
            at += 1
    return _keep_file_end(lines, hunk, place, out)


def _keep_file_end(lines: Sequence[str], hunk: Hunk, place: LinePlace, out: list[str]) -> list[str]:
    """At the end of the file, keep its line ending unless the diff changes that."""
    at_end = bool(lines) and place.start + len(hunk.old) == len(lines)
    kept = [line.mark for line in hunk.lines if line.mark != "-"]
    if not at_end or place.tolerance is Tolerance.EXACT or not hunk.old or kept[-1:] != ["+"]:
        return out
    if hunk.old[-1].endswith("\n") != hunk.new[-1].endswith("\n"):
        return out
    last = lines[-1]
    ending = "" if not last.endswith("\n") else "\r\n" if last.endswith("\r\n") else "\n"
    return [*out[:-1], out[-1].removesuffix("\n").removesuffix("\r") + ending]


def _crlf(lines: Sequence[str]) -> bool | None:
    """Return whether lines end in CR LF; None if only some do, or none has an ending."""
    kinds = {line.endswith("\r\n") for line in lines if line.endswith("\n")}
    return kinds.pop() if len(kinds) == 1 else None


def _with_ending(line: str, *, crlf: bool) -> str:
    if not line.endswith("\n"):
        return line
    return line.removesuffix("\n").removesuffix("\r") + ("\r\n" if crlf else "\n")


def _tolerances(
    lines: Sequence[str], hunks: Sequence[Hunk], places: Sequence[LinePlace]
) -> tuple[str, ...]:
    """Return the names of all tolerances used, the strictest first."""
    used = {
        name
        for hunk, place in zip(hunks, places, strict=True)
        for name in tolerances_used(
            lines[place.start : place.start + len(hunk.old)], hunk.old, place.shift
        )
    }
    return tuple(name for name in TOLERANCE_NAMES.values() if name in used)


def _all_applied(lines: FileLines, hunks: Sequence[Hunk]) -> bool:
    """Return whether the file has the result of every hunk, in order."""
    end = 0
    for hunk in hunks:
        later = [start for start in _applied_at(lines, hunk) if start >= end]
        if not later:
            return False
        end = later[0] + len(hunk.new)
    return True


def _applied_at(lines: FileLines, hunk: Hunk) -> list[int]:
    """Return where the file has the result of a hunk. Return nothing if the hunk may still have to
    be applied: the file has the lines that it removes, or its context also occurs elsewhere."""
    unapplied = [place.start for place in _fits(lines, hunk)]
    if hunk.removes and unapplied:
        return []
    size = len(hunk.new)
    for tolerance in (Tolerance.EXACT, Tolerance.TRAILING):
        starts = [place.start for place in find_block(lines, hunk.new, tolerance)]
        if starts and all(any(s <= at < s + size for s in starts) for at in unapplied):
            return starts
    return []


def _misfit_message(lines: FileLines, hunk: Hunk) -> str:
    """Say why a hunk does not fit: the line it expects, the line found, and the nearest lines."""
    name = _name(hunk)
    if not hunk.old:
        return f"{name} has no context lines, so its place cannot be checked: give some"
    applied = _applied_at(lines, hunk)
    if applied:
        return f"{name} is already applied at line {applied[0] + 1}, but other hunks are not"
    start = _nearest_start(lines, hunk.old)
    if start is None:
        return f"{name} does not fit: expected {quote_line(hunk.old[0])}, but the file is empty"
    expected, number = _first_difference(lines, hunk.old, start)
    actual = quote_line(lines[number]) if number < len(lines) else "the end of the file"
    return (
        f"{name} does not fit: expected {quote_line(expected)}, but line {number + 1} is {actual}."
        f" Nearest lines: {_quote_lines(lines, hunk.old, start)}"
    )


def _first_difference(lines: Sequence[str], block: Sequence[str], start: int) -> tuple[str, int]:
    for at, line in enumerate(block, start):
        if at >= len(lines) or _ascii_bare(lines[at]) != _ascii_bare(line):
            return line, at
    return block[0], start


def _nearest_start(lines: Sequence[str], block: Sequence[str]) -> int | None:
    """Return where the lines that look most like a block start."""
    if not lines or not block:
        return None
    anchor = max(range(len(block)), key=lambda index: len(_bare(block[index])))
    hits = process.extract(block[anchor], lines, scorer=fuzz.ratio, limit=10)
    starts = [max(0, min(index - anchor, len(lines) - 1)) for _, _, index in hits]
    return max(starts, key=lambda start: (_likeness(lines, block, start), -start), default=None)


def _likeness(lines: Sequence[str], block: Sequence[str], start: int) -> float:
    actual = lines[start : start + len(block)]
    return sum(fuzz.ratio(is_, was) for is_, was in zip(actual, block, strict=False))
