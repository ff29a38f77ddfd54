"""Structured files as texts: one value changes, every other byte stays.

A document finds where a value is and splices the new one in. Nothing is dumped again, so
comments, order, quoting, indentation and line endings survive. Each splice is checked: the new
text must parse to exactly the expected data.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from mulligan.tasks.ports.appliers import EditRefused

#: The path of a value: keys of tables and positions in lists, from the top.
Where = tuple[str | int, ...]
_BOM = "\ufeff"
#: A file with more values or levels has aliases of aliases.
_MAX_VALUES = 1_000_000
_MAX_DEPTH = 100


class UnreadableFile(ValueError):
    """A file cannot be parsed as its name says; the message is one line."""


@dataclass(frozen=True)
class Span:
    """A part of a text, ``end`` not included."""

    start: int
    end: int


@dataclass(frozen=True)
class Splice:
    """The replacement of ``start`` to ``end`` by ``text``."""

    start: int
    end: int
    text: str = ""


def apply_splices(text: str, splices: Iterable[Splice]) -> str:
    """Return a text with every splice made; positions are those of the original text."""
    for one in sorted(splices, key=lambda one: (one.start, one.end), reverse=True):
        text = text[: one.start] + one.text + text[one.end :]
    return text


class StructuredFile(ABC):
    """A TOML, YAML or JSON file. Every change returns a new document."""

    #: The byte order mark, if the file has one.
    mark: str = ""

    def __init__(self, name: str, text: str) -> None:
        """``name`` is for messages. Raises UnreadableFile."""
        self.name = name
        self.text = text
        self.data = self.parse(text)
        #: Files with mixed endings get that of their first line.
        self.newline = "\r\n" if "\r\n" in text[: text.find("\n") + 1] else "\n"

    @classmethod
    def read(cls, name: str, data: bytes) -> Self:
        """Raises UnreadableFile."""
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UnreadableFile(f"is not UTF-8 (byte {error.start})") from None
        document = cls(name, text.removeprefix(_BOM))
        document.mark = _BOM if text.startswith(_BOM) else ""
        return document

    def bytes(self) -> bytes:
        return (self.mark + self.text).encode("utf-8")

    def at(self, where: Where) -> Any:
        """Return the value at a path."""
        return _value(self.data, where)

    def set(self, where: Where, value: Any) -> Self:
        """Change the value of an existing key or position."""
        expected = self._copy()
        _value(expected, where[:-1])[where[-1]] = value
        return self._first(self._setting(where, value), expected, where)

    def insert(self, where: Where, value: Any) -> Self:
        """Add a key to a table."""
        expected = self._copy()
        _value(expected, where[:-1])[where[-1]] = value
        return self._first(self._inserting(where, value), expected, where)

    def append(self, where: Where, value: Any) -> Self:
        """Add an item to the end of a list."""
        expected = self._copy()
        _value(expected, where).append(value)
        return self._first(self._appending(where, value), expected, where)

    def remove(self, where: Where, index: int) -> Self:
        """Remove an item from a list."""
        expected = self._copy()
        del _value(expected, where)[index]
        return self._first(self._removing(where, index), expected, where)

    @abstractmethod
    def parse(self, text: str) -> Any:
        """Return the data of a text. Raises UnreadableFile."""

    @abstractmethod
    def _setting(self, where: Where, value: Any) -> Iterator[str]:
        """Yield texts in which the value is set, the most faithful first."""

    @abstractmethod
    def _inserting(self, where: Where, value: Any) -> Iterator[str]: ...

    @abstractmethod
    def _appending(self, where: Where, value: Any) -> Iterator[str]: ...

    @abstractmethod
    def _removing(self, where: Where, index: int) -> Iterator[str]: ...

    def _copy(self) -> Any:
        """Copy the data without sharing: an alias's value may change without its anchor's."""
        try:
            return _unshared(self.data)
        except RecursionError:
            raise EditRefused(f"{self.name}: its aliases expand without end") from None

    def _first(self, texts: Iterator[str], expected: Any, where: Where) -> Self:
        """Return the first text that parses to the expected data. Raises EditRefused."""
        for text in texts:
            try:
                document = type(self)(self.name, text)
            except UnreadableFile:
                continue
            if same(document.data, expected):
                document.mark = self.mark
                return document
        what = ".".join(str(step) for step in where) or "the list"
        raise EditRefused(
            f"{self.name}: {what} cannot be changed without changing something else (a shared"
            " anchor, or an unknown layout); edit the file as a text"
        )


def same(left: Any, right: Any) -> bool:
    """Return whether two values have equal values and types at every level: 1 is not 1.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right)


def float_text(value: float) -> str:
    """Write a float so that TOML, JSON and every version of YAML read one: ``1.0e-05``."""
    text = repr(value)
    mantissa, mark, exponent = text.partition("e")
    return f"{mantissa}.0e{exponent}" if mark and "." not in mantissa else text


def _unshared(value: Any) -> Any:
    """Return a deep copy in which no object occurs twice."""
    left = _MAX_VALUES

    def copy_value(value: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or depth > _MAX_DEPTH:
            raise RecursionError
        if isinstance(value, dict):
            return {key: copy_value(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list):
            return [copy_value(item, depth + 1) for item in value]
        return copy.copy(value)

    return copy_value(value, 0)


def _value(data: Any, where: Where) -> Any:
    for step in where:
        data = data[step]
    return data
