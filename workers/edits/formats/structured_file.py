"""Structured files as texts: one value changes, every other byte stays.

A document finds where a value stands and splices the new one in. Nothing is dumped again, so
comments, order, quoting, indentation and line endings survive. Each splice is checked: the new
text has to parse to exactly the data that was meant, and to nothing else.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from mulligan.tasks.ports.appliers import EditRefused

#: Where a value is: keys of tables and positions in lists, from the top.
Where = tuple[str | int, ...]
_BOM = "\ufeff"


class Unreadable(ValueError):
    """A file cannot be read as what its name says; the text says why, in one line."""


@dataclass(frozen=True)
class Span:
    """A part of a text, ``end`` not included."""

    start: int
    end: int


@dataclass(frozen=True)
class Splice:
    """Put ``text`` where ``start`` to ``end`` is."""

    start: int
    end: int
    text: str = ""


def spliced(text: str, splices: Iterable[Splice]) -> str:
    """A text with every splice made; positions are those of the text as given."""
    for one in sorted(splices, key=lambda one: (one.start, one.end), reverse=True):
        text = text[: one.start] + one.text + text[one.end :]
    return text


class StructuredFile(ABC):
    """A TOML, YAML or JSON file. Every change gives a new document."""

    def __init__(self, name: str, text: str) -> None:
        """``name`` is what refusals call it. Raises Unreadable."""
        self.name = name
        self.text = text
        self.data = self.parse(text)
        #: Files of mixed endings get what their first line has.
        self.newline = "\r\n" if "\r\n" in text[: text.find("\n") + 1] else "\n"

    @classmethod
    def read(cls, name: str, data: bytes) -> Self:
        """Raises Unreadable."""
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Unreadable(f"is not UTF-8 (byte {error.start})") from None
        document = cls(name, text.removeprefix(_BOM))
        document.mark = _BOM if text.startswith(_BOM) else ""
        return document

    #: The byte order mark, if the file has one.
    mark: str = ""

    def bytes(self) -> bytes:
        return (self.mark + self.text).encode("utf-8")

    def at(self, where: Where) -> Any:
        """The value there."""
        value = self.data
        for step in where:
            value = value[step]
        return value

    def set(self, where: Where, value: Any) -> Self:
        """Another value for a key or a position that exists."""
        expected = self._copy()
        _holder(expected, where)[where[-1]] = value
        return self._first(self._setting(where, value), expected, _shown(where))

    def insert(self, where: Where, value: Any) -> Self:
        """A key that its table does not have yet."""
        expected = self._copy()
        _holder(expected, where)[where[-1]] = value
        return self._first(self._inserting(where, value), expected, _shown(where))

    def append(self, where: Where, value: Any) -> Self:
        """One more item at the end of a list."""
        expected = self._copy()
        _value(expected, where).append(value)
        return self._first(self._appending(where, value), expected, _shown(where))

    def remove(self, where: Where, index: int) -> Self:
        """A list without one of its items."""
        expected = self._copy()
        del _value(expected, where)[index]
        return self._first(self._removing(where, index), expected, _shown(where))

    @abstractmethod
    def parse(self, text: str) -> Any:
        """The data of a text. Raises Unreadable."""

    @abstractmethod
    def _setting(self, where: Where, value: Any) -> Iterator[str]:
        """Texts in which the value is set, the most faithful first."""

    @abstractmethod
    def _inserting(self, where: Where, value: Any) -> Iterator[str]: ...

    @abstractmethod
    def _appending(self, where: Where, value: Any) -> Iterator[str]: ...

    @abstractmethod
    def _removing(self, where: Where, index: int) -> Iterator[str]: ...

    def _copy(self) -> Any:
        """The data without any sharing: an alias's value may change without its anchor's."""
        try:
            return _unshared(self.data)
        except RecursionError:
            raise EditRefused(f"{self.name}: its aliases unfold without end") from None

    def _first(self, texts: Iterator[str], expected: Any, what: str) -> Self:
        """The first text that parses to what is expected."""
        for text in texts:
            try:
                document = type(self)(self.name, text)
            except Unreadable:
                continue
            if same(document.data, expected):
                document.mark = self.mark
                return document
        raise EditRefused(
            f"{self.name}: {what} cannot be changed without changing something else (a shared"
            " anchor, or a layout that is not understood); edit the file as a text"
        )


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal in value and type, through and through. 1 is not 1.0 or true."""
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
    """A float that TOML, JSON and every version of YAML read as one: ``1.0e-05``."""
    text = repr(value)
    mantissa, mark, exponent = text.partition("e")
    return f"{mantissa}.0e{exponent}" if mark and "." not in mantissa else text


#: More values than this come from aliases of aliases, not from a person.
_MOST = 1_000_000
_DEEPEST = 100


def _unshared(value: Any) -> Any:
    """A deep copy in which nothing is the same object as something else."""
    left = _MOST

    def copied(value: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or depth > _DEEPEST:
            raise RecursionError
        if isinstance(value, dict):
            return {key: copied(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list):
            return [copied(item, depth + 1) for item in value]
        return copy.copy(value)

    return copied(value, 0)


def _holder(data: Any, where: Where) -> Any:
    return _value(data, where[:-1])


def _value(data: Any, where: Sequence[str | int]) -> Any:
    for step in where:
        data = data[step]
    return data


def _shown(where: Where) -> str:
    return ".".join(str(step) for step in where) or "the list"
