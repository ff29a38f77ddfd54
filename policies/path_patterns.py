"""Patterns of files, as `protect` and `touches` name them: what matches, and which can meet."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from math import inf
from typing import NamedTuple

#: The longest pattern, in characters, and the most wildcards in it: matching takes time by the
#: product of pattern and path.
LONGEST_PATTERN = 300
MOST_WILDCARDS = 8
_TOKENS = re.compile(r"\*\*/|\*\*|\*|\?", re.DOTALL)
_WILDCARD = re.compile(r"[*?]")
_MEANING = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


@lru_cache(maxsize=1024)
def path_pattern(pattern: str) -> re.Pattern[str]:
    """Translate a pattern: ``**`` crosses directories, ``*`` and ``?`` do not."""
    body = "".join(_MEANING.get(each, re.escape(each)) for each in _tokens(pattern))
    return re.compile(f"{body}\\Z", re.DOTALL)


@lru_cache(maxsize=4096)
def _tokens(pattern: str) -> tuple[str, ...]:
    """Return the wildcards of a pattern and the characters between them.

    A pattern without a slash matches in every directory; one that ends with it, all that is below.
    """
    body = pattern.lstrip("/") + ("**" if pattern.endswith("/") else "")
    found: list[str] = [] if "/" in pattern else ["**/"]
    place = 0
    for wildcard in _TOKENS.finditer(body):
        found += [*body[place : wildcard.start()], wildcard.group()]
        place = wildcard.end()
    return (*found, *body[place:])


def pattern_problem(pattern: str) -> str:
    """Return why a pattern of `touches` is not accepted; empty if it is."""
    if not 0 < len(pattern) <= LONGEST_PATTERN:
        return f"must have 1 to {LONGEST_PATTERN} characters"
    if len(_TOKENS.findall(pattern)) > MOST_WILDCARDS:
        return f"may have {MOST_WILDCARDS} wildcards"
    return ""


def matches(patterns: Iterable[str], path: str) -> bool:
    """Whether one of the patterns matches a file. It takes linear time, whatever they are."""
    return any(_accepts(_states(each), path) for each in patterns)


def _accepts(states: Sequence[str], path: str) -> bool:
    places = _without_characters(states, {0})
    for character in path:
        reached = {
            place + passed
            for place in places
            if place < len(states)
            for passed in _passed(states[place], character)
        }
        places = _without_characters(states, reached)
        if not places:
            return False
    return len(states) in places


def _without_characters(states: Sequence[str], places: set[int]) -> set[int]:
    """Add the places that are reached without another character."""
    found, reached = set(places), list(places)
    while reached:
        place = reached.pop()
        for skipped in _SKIPPED.get(states[place], ()) if place < len(states) else ():
            if place + skipped not in found:
                found.add(place + skipped)
                reached.append(place + skipped)
    return found


class FileSet(NamedTuple):
    """The patterns of an item, sorted out."""

    #: What names one file, without the slash at its beginning → as it was written.
    exact: Mapping[str, str]
    #: The same files in the order of their names.
    paths: Sequence[str]
    #: The other patterns, with what every path begins with that they match.
    others: Sequence[tuple[str, str]]
    #: The same for equal patterns, and short.
    digest: bytes


@lru_cache(maxsize=4096)
def file_set(patterns: tuple[str, ...]) -> FileSet:
    exact = {each.lstrip("/"): each for each in patterns if _names_one_file(each)}
    others = [(literal_start(each), each) for each in patterns if not _names_one_file(each)]
    text = "\0".join(patterns).encode(errors="surrogatepass")
    return FileSet(exact, sorted(exact), others, sha256(text).digest()[:16])


class Compared(NamedTuple):
    """How far the patterns of two items were compared."""

    #: Two that can match the same file; None if there are none so far.
    found: tuple[str, str] | None
    #: Where to go on; None at the end.
    place: int | None
    #: How many steps it took, and pairs that had to be compared.
    cost: int


def compare_files(one: FileSet, two: FileSet, *, place: int = 0, most: float = inf) -> Compared:
    """Compare two items from a place on, until two patterns meet or it has cost ``most``.

    It goes one step at least, which is one pattern with wildcards and all of the other item.
    """
    if place == 0 and (same := one.exact.keys() & two.exact.keys()):
        found = min(same)
        return Compared((one.exact[found], two.exact[found]), None, 0)
    cost, steps = 0, len(one.others) + (len(two.others) if one.paths else 0)
    for step in range(place, steps):
        if cost >= most:
            return Compared(None, step, cost)
        if step < len(one.others):
            start, pattern = one.others[step]
            near = [*_beginning_with(start, two), *_others_near(start, two)]
            pairs = [(pattern, each) for each in near]
        else:
            start, pattern = two.others[step - len(one.others)]
            pairs = [(each, pattern) for each in _beginning_with(start, one)]
        cost += 1 + len(pairs)
        if met := next((pair for pair in pairs if can_meet(*pair)), None):
            return Compared(met, None, cost)
    return Compared(None, None, cost)


def _beginning_with(start: str, files: FileSet) -> Iterator[str]:
    for place in range(bisect_left(files.paths, start), len(files.paths)):
        if not files.paths[place].startswith(start):
            return
        yield files.exact[files.paths[place]]


def _others_near(start: str, files: FileSet) -> Iterator[str]:
    for other, pattern in files.others:
        if other.startswith(start) or start.startswith(other):
            yield pattern


def shared_file(first: Sequence[str], second: Sequence[str]) -> tuple[str, str] | None:
    """Return two patterns that can match the same file; None if there are none."""
    return compare_files(file_set(tuple(first)), file_set(tuple(second))).found


def literal_start(pattern: str) -> str:
    """Return what every path begins with that a pattern matches."""
    return _WILDCARD.split(pattern.lstrip("/"), maxsplit=1)[0] if "/" in pattern else ""


def _names_one_file(pattern: str) -> bool:
    return "/" in pattern and not pattern.endswith("/") and not _WILDCARD.search(pattern)


def can_meet(first: str, second: str) -> bool:
    """Whether there may be a path that both patterns match.

    They are compared directory by directory from both ends, as far as no ``**`` stands between.
    Patterns that differ in nothing but what is between two wildcards count as if they met.
    """
    one, two = _shape(first), _shape(second)
    if one.is_open or two.is_open:
        for each, other in ((one, two), (two, one)):
            if not each.is_open and other.fewest > each.fewest:
                return False
    elif one.fewest != two.fewest:
        return False
    if not all(map(_names_meet, one.head, two.head)):
        return False
    return not (one.is_open or two.is_open) or all(map(_names_meet, one.tail, two.tail))


class _Shape(NamedTuple):
    """The names in a pattern before its first ``**``, and after its last one, backwards."""

    head: Sequence[str]
    tail: Sequence[str]
    #: How many names a path has at least that the pattern matches.
    fewest: int
    is_open: bool


@lru_cache(maxsize=16384)
def _shape(pattern: str) -> _Shape:
    body = pattern.lstrip("/") + ("**" if pattern.endswith("/") else "")
    names = (body if "/" in pattern else f"**/{body}").split("/")
    crossing = [place for place, each in enumerate(names) if "**" in each]
    if not crossing:
        return _Shape(names, names[::-1], len(names), False)
    first, last = crossing[0], crossing[-1]
    if any(names[place] != "**" for place in crossing):  # `a**/b` matches `ab`
        return _Shape(names[:first], (), first + 1, True)
    fewest = len(names) - len(crossing) + (last == len(names) - 1)
    return _Shape(names[:first], names[:last:-1], fewest, True)


def _names_meet(first: str, second: str) -> bool:
    """Whether there may be a name of a file or directory that both patterns of names match."""
    if first == second:
        return True
    match _WILDCARD.search(first), _WILDCARD.search(second):
        case None, None:
            return False
        case None, _:
            return _name_pattern(second).match(first) is not None
        case _, None:
            return _name_pattern(first).match(second) is not None
    return all(
        mine.startswith(theirs) or theirs.startswith(mine)
        for mine, theirs in zip(_ends(first), _ends(second), strict=True)
    )


def _ends(name: str) -> tuple[str, str]:
    """Return what is before the first wildcard, and what is after the last one, backwards."""
    return _WILDCARD.split(name, maxsplit=1)[0], _WILDCARD.split(name[::-1], maxsplit=1)[0]


@lru_cache(maxsize=4096)
def _name_pattern(name: str) -> re.Pattern[str]:
    """Translate a pattern of names so that it takes little time, whatever it is.

    What follows a ``*`` is looked for at its first place, which is as good as any later one.
    """
    first, *others = name.split("*")
    pieces = [f"(?>.*?{_piece(each)})" for each in others[:-1] if each]
    last = f".*{_piece(others[-1])}" if others else ""
    return re.compile(f"{_piece(first)}{''.join(pieces)}{last}\\Z", re.DOTALL)


def _piece(text: str) -> str:
    return "".join("." if each == "?" else re.escape(each) for each in text)


@lru_cache(maxsize=4096)
def _states(pattern: str) -> tuple[str, ...]:
    """Return the states of an automaton that reads paths. Those of ``**/`` are two."""
    pairs = ((_NONE_OR, each) if each == "**/" else (each,) for each in _tokens(pattern))
    return tuple(state for pair in pairs for state in pair)


#: Before the directories of ``**/``, which may be none.
_NONE_OR = "**/?"
#: By how many places a state is left without a character.
_SKIPPED = {"*": (1,), "**": (1,), _NONE_OR: (1, 2)}


def _passed(state: str, character: str) -> tuple[int, ...]:
    """Return by how many places a character passes a state; nothing if it is not accepted."""
    match state:
        case "**":
            return (0,)
        case "**/":  # whole directories
            return (0, 1) if character == "/" else (0,)
        case "*":
            return () if character == "/" else (0,)
        case "?":
            return () if character == "/" else (1,)
    return (1,) if state == character else ()
