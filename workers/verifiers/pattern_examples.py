"""What a pattern means to a reader: the few texts that it accepts, or an example that matches.

Patterns are parsed by Python's ``re``, whose syntax is close to their dialect, and never matched
by it: every text is checked with the engine that verifies answers. A pattern that ``re`` cannot
parse has no example.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from itertools import islice
from typing import Any, NamedTuple

from mulligan.tasks.ports.errors import BadInput, VerifierError
from mulligan.workers.verifiers.bounded_regex import PATTERN_CHARACTERS, BoundedRegex

#: A pattern that accepts more texts than this is not a choice.
_MAX_TEXTS = 12
_MAX_LENGTH = 200
#: Parts of a pattern to write for one example; repetitions of nothing add no length.
_MAX_STEPS = 2_000
#: What to write for "any character"; mixed characters satisfy rules for passwords.
_LETTERS, _MIXED = "abcdefgh", "aA1-"
#: Tried in this order for a class of characters, before those that the class itself names.
_PREFERRED = "aA1 -_.,:/@#"
#: Classes inside classes, which ``re`` reads as plain characters.
_NESTED_CLASS = re.compile(r"\[\^?\[|\[[^\]]{0,2000}(?:&&|--|~~|\|\|)")
#: The place of ``^`` and ``$`` in an enumerated text.
_START, _END = "\x02", "\x03"
_CATEGORIES: dict[str, Callable[[str], bool]] = {
    "CATEGORY_DIGIT": str.isdigit,
    "CATEGORY_NOT_DIGIT": lambda each: not each.isdigit(),
    "CATEGORY_SPACE": str.isspace,
    "CATEGORY_NOT_SPACE": lambda each: not each.isspace(),
    "CATEGORY_WORD": lambda each: each.isalnum() or each == "_",
    "CATEGORY_NOT_WORD": lambda each: not (each.isalnum() or each == "_"),
}

#: A parsed pattern: pairs of an operation and its argument.
Tree = Sequence[tuple[Any, Any]]


class FixedTexts(NamedTuple):
    """The only texts that a pattern accepts: as the whole answer, or anywhere in it."""

    texts: tuple[str, ...]
    whole: bool


class _NoText(Exception):
    """A pattern accepts too many texts to list, or none that is short."""


@lru_cache(maxsize=512)
def fixed_texts(pattern: str) -> FixedTexts | None:
    """Return the texts of ``^(bug|feature)$`` or ``hello``; None for any other pattern."""
    tree = _parse(pattern, without=re.MULTILINE)
    try:
        marked = tuple(dict.fromkeys(_texts(_without_outer_space(tree))))
    except _NoText:
        return None
    texts = tuple(text.removeprefix(_START).removesuffix(_END) for text in marked)
    whole = all(text.startswith(_START) and text.endswith(_END) for text in marked)
    if not all(texts) or (not whole and texts != marked):
        return None
    return FixedTexts(texts, whole) if all(_matches(pattern, text) for text in texts) else None


@lru_cache(maxsize=512)
def examples_of(pattern: str) -> tuple[str, ...]:
    """Return a few short texts that match, the simplest first; none if that is not cheap."""
    tree = _parse(pattern)
    texts = (
        _Sampler(anything, extra).text_of(tree)
        for anything in (_LETTERS, _MIXED)
        for extra in (0, 1)
    )
    found = dict.fromkeys(text for text in texts if text and not text.isspace())
    return tuple(text for text in found if _matches(pattern, text))


def _matches(pattern: str, text: str) -> bool:
    try:
        return BoundedRegex(pattern).found_in(text)
    except (BadInput, VerifierError):
        return False


def _parse(pattern: str, *, without: int = 0) -> Tree:
    """Return the pattern's tree; empty if it cannot be parsed or has one of these flags."""
    if len(pattern) > PATTERN_CHARACTERS or _NESTED_CLASS.search(pattern):
        return ()
    try:
        # ``re`` writes the name of a group as (?P<name>…), JSON Schema as (?<name>…).
        found = import_module("re._parser").parse(re.sub(r"\(\?<(?=\w)", "(?P<", pattern))
    except (re.error, ValueError, OverflowError, RecursionError, ImportError):
        return ()
    return () if found.state.flags & without else tuple(found)


# -- the few texts that a pattern accepts ---------------------------------------------------------


def _without_outer_space(tree: Tree) -> Tree:
    """Drop ``\\s*`` after an anchor at the start and before one at the end."""
    start = 1 if _is_anchor(tree[:1]) and _is_optional_space(tree[1:2]) else 0
    end = 1 if _is_anchor(tree[-1:]) and _is_optional_space(tree[-2:-1]) else 0
    inner = tree[2 * start : len(tree) - 2 * end]
    return (*tree[:start], *inner, *tree[len(tree) - end :])


def _is_anchor(part: Tree) -> bool:
    return [str(operation) for operation, _ in part] == ["AT"]


def _is_optional_space(part: Tree) -> bool:
    """Return whether this is ``\\s*``, and not ``\\S*`` or a class with more in it."""
    for operation, argument in part:
        if str(operation) in ("MAX_REPEAT", "MIN_REPEAT"):
            low, _, inner = argument
            return low == 0 and str(list(inner)) == "[(IN, [(CATEGORY, CATEGORY_SPACE)])]"
    return False


def _texts(tree: Tree) -> list[str]:
    """Return every text that a tree accepts, or raise _NoText if they are many."""
    found = [""]
    for operation, argument in tree:
        ends = _texts_of(str(operation), argument)
        if len(found) * len(ends) > _MAX_TEXTS:
            raise _NoText
        found = [start + end for start in found for end in ends]
    return found


def _texts_of(operation: str, argument: Any) -> list[str]:
    match operation, argument:
        case "LITERAL", code:
            return [chr(code)]
        case "AT", where if str(where) in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
            return [_START]
        case "AT", where if str(where) in ("AT_END", "AT_END_STRING"):
            return [_END]
        case "IN", items:
            return list(_members(items))
        case "BRANCH", (_, branches):
            return [text for branch in branches for text in _texts(branch)]
        case "SUBPATTERN", (_, _, _, inner):
            return _texts(inner)
        case "MAX_REPEAT", (0, 1, inner):
            return [*_texts(inner), ""]
    raise _NoText


def _members(items: Iterable[tuple[Any, Any]]) -> Iterator[str]:
    """Yield the characters of a small class."""
    for operation, argument in items:
        match str(operation), argument:
            case "LITERAL", code:
                yield chr(code)
            case "RANGE", (low, high) if high - low < _MAX_TEXTS:
                yield from map(chr, range(low, high + 1))
            case _:
                raise _NoText


# -- an example -----------------------------------------------------------------------------------


class _Sampler:
    """Writes one text for a tree: the first alternatives and the fewest repetitions."""

    def __init__(self, anything: str, extra: int) -> None:
        """``anything`` is written for any character, ``extra`` times more than required."""
        self._anything, self._extra = anything, extra
        self._groups: dict[int, str] = {}
        self._length = self._steps = 0

    def text_of(self, tree: Tree) -> str:
        """Return the text; empty if it would be long or the tree has an unknown operation."""
        try:
            return self._sequence(tree)
        except (_NoText, RecursionError):
            return ""

    def _sequence(self, tree: Tree) -> str:
        return "".join(self._one(str(operation), argument) for operation, argument in tree)

    def _one(self, operation: str, argument: Any) -> str:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise _NoText
        match operation, argument:
            case "LITERAL", code:
                return self._written(chr(code))
            case "NOT_LITERAL", code:
                return self._first(lambda each: ord(each) != code, ())
            case "ANY", _:
                return self._written(self._anything[self._length % len(self._anything)])
            case "IN", items:
                return self._first(lambda each: _in_class(each, items), _named(items))
            case "BRANCH", (_, branches):
                return self._sequence(branches[0])
            case "SUBPATTERN", (group, _, _, inner):
                self._groups[group] = text = self._sequence(inner)
                return text
            case "ATOMIC_GROUP", inner:
                return self._sequence(inner)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT", (low, high, inner):
                return self._repeated(inner, min(low + self._extra, int(high)))
            case "GROUPREF", group:
                return self._written(self._groups.get(group, ""))
            case "AT" | "ASSERT" | "ASSERT_NOT", _:
                return ""
        raise _NoText

    def _repeated(self, inner: Tree, times: int) -> str:
        if times > _MAX_LENGTH:
            raise _NoText
        return "".join(self._sequence(inner) for _ in range(times))

    def _first(self, fits: Callable[[str], bool], named: Iterable[str]) -> str:
        """Write the first character that fits."""
        start = self._length % len(self._anything)
        rotated = self._anything[start:] + self._anything[:start]
        found = next(filter(fits, [*rotated, *_PREFERRED, *islice(named, 100)]), None)
        if found is None:
            raise _NoText
        return self._written(found)

    def _written(self, text: str) -> str:
        self._length += len(text)
        if self._length > _MAX_LENGTH:
            raise _NoText
        return text


def _in_class(character: str, items: Sequence[tuple[Any, Any]]) -> bool:
    negated = str(items[0][0]) == "NEGATE"
    return negated != any(_is_member(character, str(name), value) for name, value in items)


def _is_member(character: str, operation: str, argument: Any) -> bool:
    match operation, argument:
        case "LITERAL", code:
            return bool(ord(character) == code)
        case "RANGE", (low, high):
            return bool(low <= ord(character) <= high)
        case "CATEGORY", category:
            known = _CATEGORIES.get(str(category))
            return known is not None and known(character)
    return False


def _named(items: Sequence[tuple[Any, Any]]) -> Iterator[str]:
    """Yield the characters that a class names, and those after them for a class that excludes."""
    for operation, argument in items:
        match str(operation), argument:
            case "LITERAL", code:
                yield from (chr(code), chr(min(code + 1, 0x10FFFF)))
            case "RANGE", (low, high):
                yield from (chr(low), chr(min(high + 1, 0x10FFFF)))
