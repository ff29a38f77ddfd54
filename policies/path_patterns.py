"""Patterns of files, as `protect` and `touches` name them: what matches, and which can meet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, product
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


def shared_file(first: Sequence[str], second: Sequence[str]) -> tuple[str, str] | None:
    """Return two patterns that can match the same file; None if there are none."""
    return _shared_file(tuple(first), tuple(second))


@lru_cache(maxsize=16384)
def _shared_file(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, str] | None:
    one, two = _sorted_out(first), _sorted_out(second)
    same = one.exact.keys() & two.exact.keys()
    if same:
        found = min(same)
        return one.exact[found], two.exact[found]
    pairs = chain(product(one.others, second), product(one.exact.values(), two.others))
    return next(((mine, theirs) for mine, theirs in pairs if can_meet(mine, theirs)), None)


def comparisons(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many pairs of patterns `shared_file` may have to compare."""
    one, two = _sorted_out(tuple(first)), _sorted_out(tuple(second))
    return len(one.others) * len(second) + len(one.exact) * len(two.others)


class _SortedOut(NamedTuple):
    #: What names one file, without the slash at its beginning → as it was written.
    exact: Mapping[str, str]
    others: Sequence[str]


@lru_cache(maxsize=4096)
def _sorted_out(patterns: tuple[str, ...]) -> _SortedOut:
    exact = {each.lstrip("/"): each for each in patterns if _names_one_file(each)}
    return _SortedOut(exact, [each for each in patterns if not _names_one_file(each)])


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
    ends = chain(
        zip(one.head, two.head, strict=False),
        zip(reversed(one.tail), reversed(two.tail), strict=False),
    )
    return all(_names_meet(mine, theirs) for mine, theirs in ends)


class _Shape(NamedTuple):
    """The names in a pattern before its first ``**`` and after its last one."""

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
        return _Shape(names, names, len(names), False)
    first, last = crossing[0], crossing[-1]
    if any(names[place] != "**" for place in crossing):  # `a**/b` matches `ab`
        return _Shape(names[:first], (), first + 1, True)
    fewest = len(names) - len(crossing) + (last == len(names) - 1)
    return _Shape(names[:first], names[last + 1 :], fewest, True)


def _names_meet(first: str, second: str) -> bool:
    """Whether there may be a name of a file or directory that both patterns of names match."""
    if not _WILDCARD.search(second):
        first, second = second, first
    if _WILDCARD.search(first):
        return all(
            mine.startswith(theirs) or theirs.startswith(mine)
            for mine, theirs in zip(_ends(first), _ends(second), strict=True)
        )
    return first == second or _name_pattern(second).match(first) is not None


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
