"""Patterns of files, as `protect` and `touches` name them: what matches, and which can meet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

#: The longest pattern, in characters, and the most wildcards in it: comparing two takes time by the
#: product of both.
LONGEST_PATTERN = 300
MOST_WILDCARDS = 8
#: Steps of one comparison. Two patterns for which that is not enough count as if they met.
_MOST_STEPS = 2000
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


def shared_file(first: Iterable[str], second: Sequence[str]) -> tuple[str, str] | None:
    """Return the first two patterns that can match the same file; None if there are none."""
    return next(((one, two) for one in first for two in second if can_meet(one, two)), None)


@lru_cache(maxsize=4096)
def plain_start(pattern: str) -> str:
    """Return how every path that the pattern matches begins, as far as it is known."""
    if "/" not in pattern:
        return ""
    wildcard = _WILDCARD.search(pattern)
    return (pattern[: wildcard.start()] if wildcard else pattern).lstrip("/")


def can_meet(first: str, second: str) -> bool:
    """Whether there is a path that both patterns match."""
    one, two = plain_start(first), plain_start(second)
    # Most patterns of a code base differ there, which costs a hundredth of comparing them.
    return (one.startswith(two) or two.startswith(one)) and _can_meet(first, second)


@lru_cache(maxsize=65536)
def _can_meet(first: str, second: str) -> bool:
    if first == second:
        return True
    one, two = _states(first), _states(second)
    seen = {(0, 0)}
    reached = [(0, 0)]
    while reached:
        i, j = reached.pop()
        if (i == len(one) and j == len(two)) or len(seen) > _MOST_STEPS:
            return True
        for place in _next_places(one, two, i, j):
            if place not in seen:
                seen.add(place)
                reached.append(place)
    return False


#: Before the directories of ``**/``, which may be none.
_NONE_OR = "**/?"


@lru_cache(maxsize=4096)
def _states(pattern: str) -> tuple[str, ...]:
    """Return the states of an automaton that reads paths. Those of ``**/`` are two."""
    pairs = ((_NONE_OR, each) if each == "**/" else (each,) for each in _tokens(pattern))
    return tuple(state for pair in pairs for state in pair)


def _next_places(one: Sequence[str], two: Sequence[str], i: int, j: int) -> list[tuple[int, int]]:
    """Return where two automatons may be without a character, or after one that both accept."""
    found = [(i + skipped, j) for skipped in _SKIPPED.get(one[i], ())] if i < len(one) else []
    found += [(i, j + skipped) for skipped in _SKIPPED.get(two[j], ())] if j < len(two) else []
    if i < len(one) and j < len(two):
        found += [
            (i + left, j + right)
            for character in _characters(one[i], two[j])
            for left in _passed(one[i], character)
            for right in _passed(two[j], character)
        ]
    return found


#: By how many places a state is left without a character.
_SKIPPED = {"*": (1,), "**": (1,), _NONE_OR: (1, 2)}


def _characters(first: str, second: str) -> set[str]:
    """Return one character of each kind that two states may tell apart."""
    return {"/", "\0", *(each for each in (first, second) if len(each) == 1 and each not in "*?")}


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
