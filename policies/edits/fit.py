"""Where the lines of a diff belong in a file: exactly, or by one of a few named tolerances.

The ladder has four rungs, tried in order for each hunk: as it is, trailing whitespace, a uniform
shift of indentation, Unicode punctuation. A looser rung forgives what the stricter ones do. Every
context and removed line is compared on every rung, the place has to be the only one, hunks keep
their order, and context lines keep the bytes that the file has. What does not fit is refused.
Added lines get the shift and the punctuation that the matched lines turned out to need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from rapidfuzz import fuzz, process

from mulligan.policies.edits.patch import Hunk
from mulligan.policies.edits.unicode_punctuation import Ambiguous, plain, respelled, spelling

_BLANKS = " \t\r\n"
_SHOWN = 100
_LISTED = 8


class Tolerance(IntEnum):
    """How much is forgiven."""

    EXACT = 0
    TRAILING = 1
    INDENTATION = 2
    PUNCTUATION = 3


#: How each tolerance is called in outcomes.
RUNG_NAMES = {
    Tolerance.TRAILING: "trailing whitespace",
    Tolerance.INDENTATION: "indentation",
    Tolerance.PUNCTUATION: "Unicode punctuation",
}

#: Added lines follow the file where the lines around them were forgiven their punctuation.
RESPELLED = "Unicode punctuation of added lines, written as the file has it"


def _trimmed(line: str) -> str:
    return line.rstrip(_BLANKS)


def _bare(line: str) -> str:
    return line.strip(_BLANKS)


def _plain_bare(line: str) -> str:
    return plain(line).strip(_BLANKS)


_KEYS: dict[Tolerance, Callable[[str], str]] = {
    Tolerance.EXACT: str,
    Tolerance.TRAILING: _trimmed,
    Tolerance.INDENTATION: _bare,
    Tolerance.PUNCTUATION: _plain_bare,
}


@dataclass(frozen=True, kw_only=True)
class Shift:
    """By how much the file is indented more (``adds``) or less (``drops``) than the diff."""

    adds: str = ""
    drops: str = ""


@dataclass(frozen=True, kw_only=True)
class LinePlace:
    """Where a block fits: the index of its first line, and what had to be forgiven."""

    start: int
    rung: Tolerance
    shift: Shift = Shift()


@dataclass(frozen=True, kw_only=True)
class FittedHunks:
    """The text with the hunks in it; ``applied``: they already were, and nothing changes."""

    text: str
    tolerances: tuple[str, ...] = ()
    applied: bool = False


class MisfitHunk(ValueError):
    """The hunks do not fit. ``problems`` has one line for each."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


def split_lines(text: str) -> list[str]:
    """Lines with their endings; only a line feed ends one."""
    lines = text.split("\n")
    kept = [line + "\n" for line in lines[:-1]]
    return kept + lines[-1:] if lines[-1] else kept


def apply_hunks(text: str, hunks: Sequence[Hunk]) -> FittedHunks:
    """The text with every hunk applied, or as it is if all of them are in it. Raises Misfit."""
    lines = split_lines(text)
    if _all_applied(lines, hunks):
        return FittedHunks(text=text, applied=True)
    found = [_fits(lines, hunk) for hunk in hunks]
    problems = [
        _unfit(lines, hunk) for hunk, places in zip(hunks, found, strict=True) if not places
    ]
    if problems:
        raise MisfitHunk(*problems)
    chosen = _in_order(hunks, found)
    spelled = [_spelled(lines, hunk, place) for hunk, place in zip(hunks, chosen, strict=True)]
    used = _tolerances(lines, hunks, chosen) + ((RESPELLED,) if spelled != list(hunks) else ())
    return FittedHunks(text=_rebuilt(lines, spelled, chosen), tolerances=used)


def find_block(lines: Sequence[str], block: Sequence[str], rung: Tolerance) -> list[LinePlace]:
    """Every place where a block of whole lines fits on exactly this rung."""
    if not block or len(block) > len(lines):
        return []
    key = _KEYS[rung]
    wanted = [key(line) for line in block]
    if not any(wanted) and rung is not Tolerance.EXACT:
        return []  # blank lines alone say nothing
    there = [key(line) for line in lines]
    starts = [
        start
        for start in range(len(lines) - len(block) + 1)
        if there[start] == wanted[0] and there[start : start + len(block)] == wanted
    ]
    if rung < Tolerance.INDENTATION:
        return [LinePlace(start=start, rung=rung) for start in starts]
    shifts = [(start, _shift(lines[start : start + len(block)], block, rung)) for start in starts]
    return [LinePlace(start=s, rung=rung, shift=shift) for s, shift in shifts if shift is not None]


def shifted(line: str, shift: Shift) -> str | None:
    """A line of the diff with the file's indentation; None if it has less than has to go."""
    if not _bare(line):
        return line
    if shift.drops and not line.startswith(shift.drops):
        return None
    return shift.adds + line[len(shift.drops) :]


def forgiven(there: Sequence[str], wanted: Sequence[str], shift: Shift) -> tuple[str, ...]:
    """The names of the tolerances that a match really made use of."""
    pairs = list(zip(there, wanted, strict=True))
    used = []
    if any(_tail(is_) != _tail(was) for is_, was in pairs):
        used.append(RUNG_NAMES[Tolerance.TRAILING])
    if shift != Shift():
        used.append(RUNG_NAMES[Tolerance.INDENTATION])
    if any(_bare(is_) != _bare(was) for is_, was in pairs):
        used.append(RUNG_NAMES[Tolerance.PUNCTUATION])
    return tuple(used)


def nearest(lines: Sequence[str], wanted: Sequence[str], limit: int = 3) -> list[tuple[int, str]]:
    """The lines of a file that look most like a block, with their numbers from 1."""
    start = _nearest_start(lines, wanted)
    if start is None:
        return []
    seen = range(start, min(start + max(len(wanted), limit), len(lines)))
    return [(number + 1, lines[number].rstrip("\r\n")) for number in seen]


def shown(line: str) -> str:
    """A line for an error text: quoted, cut if long."""
    text = line.rstrip("\n")
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def _tail(line: str) -> str:
    return line[len(_trimmed(line)) :]


def _shift(there: Sequence[str], block: Sequence[str], rung: Tolerance) -> Shift | None:
    """The one shift that makes every line's indentation the file's; None if there is none."""
    read = plain if rung is Tolerance.PUNCTUATION else str
    found: set[Shift] = set()
    for is_, wanted in zip(there, block, strict=True):
        if not _plain_bare(wanted):
            continue
        has, says = _indent(read(is_)), _indent(read(wanted))
        if has.endswith(says):
            found.add(Shift(adds=has[: len(has) - len(says)]))
        elif says.endswith(has):
            found.add(Shift(drops=says[: len(says) - len(has)]))
        else:
            return None
    return found.pop() if len(found) == 1 else None


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _fits(lines: Sequence[str], hunk: Hunk) -> list[LinePlace]:
    """The places of a hunk on the strictest rung that has any."""
    if not hunk.old:
        # Without context only an empty file leaves no choice.
        return [] if lines else [LinePlace(start=0, rung=Tolerance.EXACT)]
    for rung in Tolerance:
        places = [
            place for place in find_block(lines, hunk.old, rung) if _usable(lines, hunk, place)
        ]
        if places:
            return places
    return []


def _usable(lines: Sequence[str], hunk: Hunk, place: LinePlace) -> bool:
    """Whether the added lines can follow the shift, and "no newline" stands at the file's end."""
    if any(shifted(line.text, place.shift) is None for line in hunk.lines if line.mark == "+"):
        return False
    at_end = place.start + len(hunk.old) == len(lines)
    return at_end or all(line.text.endswith("\n") for line in hunk.lines)


def _in_order(hunks: Sequence[Hunk], found: Sequence[Sequence[LinePlace]]) -> list[LinePlace]:
    """The only way to place every hunk after the one before it."""
    first: list[LinePlace] = []
    end = 0
    for hunk, places in zip(hunks, found, strict=True):
        later = [place for place in places if place.start >= end]
        if not later:
            where = ", ".join(str(place.start + 1) for place in places[:_LISTED])
            raise MisfitHunk(
                f"hunk {hunk.number} ({hunk.header}) fits only at line {where}, before or inside"
                " the hunk above it: give the hunks in the order of the file"
            )
        first.append(later[0])
        end = later[0].start + len(hunk.old)
    _only(hunks, found, first)
    return first


def _only(
    hunks: Sequence[Hunk], found: Sequence[Sequence[LinePlace]], first: Sequence[LinePlace]
) -> None:
    """Raises Misfit if the hunks could as well stand further down."""
    limit: int | None = None
    for hunk, places, chosen in reversed(list(zip(hunks, found, first, strict=True))):
        fitting = [p for p in places if limit is None or p.start + len(hunk.old) <= limit]
        if fitting[-1] != chosen:
            where = ", ".join(str(place.start + 1) for place in places[:_LISTED])
            raise MisfitHunk(
                f"hunk {hunk.number} ({hunk.header}) fits in {len(places)} places (lines {where}):"
                " give more context lines"
            )
        limit = chosen.start


def _spelled(lines: Sequence[str], hunk: Hunk, place: LinePlace) -> Hunk:
    """The hunk with its added lines spelled as the file is. Raises Misfit where that is open."""
    if place.rung is not Tolerance.PUNCTUATION:
        return hunk
    known = spelling(lines[place.start : place.start + len(hunk.old)], hunk.old)
    try:
        body = tuple(
            replace(line, text=respelled(line.text, known)) if line.mark == "+" else line
            for line in hunk.lines
        )
    except Ambiguous as error:
        raise MisfitHunk(f"hunk {hunk.number} ({hunk.header}) {error}") from None
    return replace(hunk, lines=body)


def _rebuilt(lines: Sequence[str], hunks: Sequence[Hunk], places: Sequence[LinePlace]) -> str:
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
    """The file's own context lines and the hunk's added ones, in the hunk's order."""
    there = lines[place.start : place.start + len(hunk.old)]
    crlf = _crlf(there)
    adapt = place.rung is not Tolerance.EXACT and crlf is not None and crlf != _crlf(hunk.old)
    out: list[str] = []
    at = 0
    for line in hunk.lines:
        if line.mark == "+":
            text = shifted(line.text, place.shift) or ""
            out.append(_with_ending(text, crlf=crlf is True) if adapt else text)
        else:
            if line.mark == " ":
                out.append(there[at])
            at += 1
    return _with_end_of(lines, hunk, place, out)


def _with_end_of(lines: Sequence[str], hunk: Hunk, place: LinePlace, out: list[str]) -> list[str]:
    """At the end of the file: its own ending stays, unless the diff says that it changes."""
    at_end = bool(lines) and place.start + len(hunk.old) == len(lines)
    kept = [line.mark for line in hunk.lines if line.mark != "-"]
    if not at_end or place.rung is Tolerance.EXACT or not hunk.old or kept[-1:] != ["+"]:
        return out
    if hunk.old[-1].endswith("\n") != hunk.new[-1].endswith("\n"):
        return out
    last = lines[-1]
    ending = "" if not last.endswith("\n") else "\r\n" if last.endswith("\r\n") else "\n"
    return [*out[:-1], out[-1].removesuffix("\n").removesuffix("\r") + ending]


def _crlf(lines: Sequence[str]) -> bool | None:
    """Whether lines end in CR LF; None if some do, or none has an ending."""
    kinds = {line.endswith("\r\n") for line in lines if line.endswith("\n")}
    return kinds.pop() if len(kinds) == 1 else None


def _with_ending(line: str, *, crlf: bool) -> str:
    if not line.endswith("\n"):
        return line
    return line.removesuffix("\n").removesuffix("\r") + ("\r\n" if crlf else "\n")


def _tolerances(
    lines: Sequence[str], hunks: Sequence[Hunk], places: Sequence[LinePlace]
) -> tuple[str, ...]:
    """The names of all tolerances used, in the order of the ladder."""
    used = {
        name
        for hunk, place in zip(hunks, places, strict=True)
        for name in forgiven(
            lines[place.start : place.start + len(hunk.old)], hunk.old, place.shift
        )
    }
    return tuple(name for name in RUNG_NAMES.values() if name in used)


def _all_applied(lines: Sequence[str], hunks: Sequence[Hunk]) -> bool:
    """Whether the file holds the result of every hunk, in order."""
    end = 0
    for hunk in hunks:
        later = [start for start in _applied_at(lines, hunk) if start >= end]
        if not later:
            return False
        end = later[0] + len(hunk.new)
    return True


def _applied_at(lines: Sequence[str], hunk: Hunk) -> list[int]:
    """Where the result of a hunk stands. Not where the hunk may as well be waiting to be applied:
    what it removes is there, or its context stands somewhere else too."""
    waiting = [place.start for place in _fits(lines, hunk)]
    if hunk.removes and waiting:
        return []
    for rung in (Tolerance.EXACT, Tolerance.TRAILING):
        starts = [place.start for place in find_block(lines, hunk.new, rung)]
        size = len(hunk.new)
        inside = all(any(s <= at < s + size for s in starts) for at in waiting)
        if starts and inside:
            return starts
    return []


def _unfit(lines: Sequence[str], hunk: Hunk) -> str:
    """Why a hunk has no place: what was expected, what is there, and what looks most like it."""
    name = f"hunk {hunk.number} ({hunk.header})"
    if not hunk.old:
        return f"{name} has no context lines, so its place cannot be checked: give some"
    applied = _applied_at(lines, hunk)
    if applied:
        return f"{name} is already applied at line {applied[0] + 1}, but other hunks are not"
    start = _nearest_start(lines, hunk.old)
    if start is None:
        return f"{name} does not fit: expected {shown(hunk.old[0])}, but the file is empty"
    expected, number = _first_difference(lines, hunk.old, start)
    is_ = shown(lines[number]) if number < len(lines) else "the end of the file"
    near = "; ".join(f"{at}: {shown(text)}" for at, text in nearest(lines, hunk.old)[:_LISTED])
    return (
        f"{name} does not fit: expected {shown(expected)}, but line {number + 1} is {is_}."
        f" Nearest lines: {near}"
    )


def _first_difference(lines: Sequence[str], wanted: Sequence[str], start: int) -> tuple[str, int]:
    for offset, line in enumerate(wanted):
        at = start + offset
        if at >= len(lines) or _plain_bare(lines[at]) != _plain_bare(line):
            return line, at
    return wanted[0], start


def _nearest_start(lines: Sequence[str], wanted: Sequence[str]) -> int | None:
    """Where a block would start that looks most like the wanted one."""
    if not lines or not wanted:
        return None
    anchor = max(range(len(wanted)), key=lambda index: len(_bare(wanted[index])))
    hits = process.extract(wanted[anchor], lines, scorer=fuzz.ratio, limit=10)
    starts = [max(0, min(index - anchor, len(lines) - 1)) for _, _, index in hits]
    return max(starts, key=lambda start: (_likeness(lines, wanted, start), -start), default=None)


def _likeness(lines: Sequence[str], wanted: Sequence[str], start: int) -> float:
    there = lines[start : start + len(wanted)]
    return sum(fuzz.ratio(is_, was) for is_, was in zip(there, wanted, strict=False))
