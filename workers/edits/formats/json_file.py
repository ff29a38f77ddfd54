"""JSON files: a walk over the text finds the place of each value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mulligan.policies.nesting import too_deep
from mulligan.tasks.ports.appliers import EditRefused
from mulligan.workers.edits.formats.bracketed import Bracketed
from mulligan.workers.edits.formats.structured_file import (
    Span,
    Splice,
    StructuredFile,
    UnreadableFile,
    Where,
    apply_splices,
    float_text,
)

_BLANKS = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
_INDENT = re.compile(r"^([ \t]+)\S", re.MULTILINE)
_COLON = re.compile(r'"([ \t]*:[ \t]*)\S')


@dataclass(frozen=True)
class _Member:
    """An item of an array (its key is its position) or a member of an object."""

    key: str | int
    start: int
    value: Span


class JsonFile(StructuredFile):
    def parse(self, text: str) -> Any:
        if too_deep(text):
            raise UnreadableFile("is nested too deeply")
        try:
            return json.loads(text, object_pairs_hook=_unique_keys)
        except UnreadableFile:
            raise
        except (ValueError, RecursionError) as error:
            raise UnreadableFile(f"is not JSON: {error}") from None

    def _setting(self, where: Where, value: Any) -> Iterator[str]:
        span = self._span(where)
        literal = self._literal(value, span.start, self.text[span.start : span.end])
        yield apply_splices(self.text, [Splice(span.start, span.end, literal)])

    def _inserting(self, where: Where, value: Any) -> Iterator[str]:
        span = self._span(where[:-1])
        members = list(_members(self.text, span.start))
        at, like = _model(self.text, members, span)
        literal = json.dumps(where[-1], ensure_ascii=self._ascii)
        literal += self._colon(members) + self._literal(value, at, like)
        yield self._bracketed(span, members).append(literal)

    def _appending(self, where: Where, value: Any) -> Iterator[str]:
        span = self._span(where)
        members = list(_members(self.text, span.start))
        at, like = _model(self.text, members, span)
        yield self._bracketed(span, members).append(self._literal(value, at, like))

    def _removing(self, where: Where, index: int) -> Iterator[str]:
        span = self._span(where)
        yield self._bracketed(span, list(_members(self.text, span.start))).remove(index)

    @property
    def _ascii(self) -> bool:
        """Whether the file escapes characters that are not ASCII."""
        return self.text.isascii() and "\\u" in self.text

    def _span(self, where: Where) -> Span:
        start = _skip(self.text, 0)
        span = Span(start, _DECODER.raw_decode(self.text, start)[1])
        for step in where:
            span = next(m.value for m in _members(self.text, span.start) if m.key == step)
        return span

    def _bracketed(self, span: Span, members: list[_Member]) -> Bracketed:
        return Bracketed(
            text=self.text,
            start=span.start,
            end=span.end,
            items=[Span(member.start, member.value.end) for member in members],
            newline=self.newline,
            separator="," if self._compact else ", ",
        )

    @property
    def _compact(self) -> bool:
        found = _COLON.search(self.text)
        return found is not None and found[1] == ":"

    def _colon(self, members: list[_Member]) -> str:
        """Return the text between a key and its value: in this object, or in the file."""
        if members:
            last = members[-1]
            between = self.text[last.start : last.value.start]
            return between[len(between.rstrip(": \t\r\n")) :]
        found = _COLON.search(self.text)
        return found[1] if found else ": "

    def _literal(self, value: Any, at: int, like: str) -> str:
        """Write a value as JSON, on several lines if ``like`` is."""
        if isinstance(value, float):
            return float_text(value)
        separators = (",", self._colon([])) if self._compact else (", ", ": ")
        if not isinstance(value, dict | list) or "\n" not in like:
            return json.dumps(
                value, ensure_ascii=self._ascii, separators=separators, allow_nan=False
            )
        found = _INDENT.search(self.text)
        unit = found[1] if found else "  "
        line = self.text[self.text.rfind("\n", 0, at) + 1 : at]
        indent = line[: len(line) - len(line.lstrip(" \t"))]
        text = json.dumps(value, ensure_ascii=self._ascii, indent=unit, allow_nan=False)
        return text.replace("\n", self.newline + indent)


def _model(text: str, members: list[_Member], span: Span) -> tuple[int, str]:
    """Return the position and the value of the last member, which a new one imitates."""
    if not members:
        return span.start, ""
    last = members[-1]
    return last.start, text[last.value.start : last.value.end]


def _members(text: str, start: int) -> Iterator[_Member]:
    """Yield the members of the object or array that starts here."""
    closing = "}" if text[start] == "{" else "]"
    at = _skip(text, start + 1)
    position = 0
    while text[at] != closing:
        key: str | int = position
        begin = at
        if closing == "}":
            key, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, at)
        yield _Member(key=key, start=begin, value=Span(at, end))
        position += 1
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises UnreadableFile for a duplicate key, which cannot be edited."""
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UnreadableFile(f"has the key {twice!r} twice in one object")
    return found


class JsonLinesFile(JsonFile):
    """A value on each line, except blank ones. Only whole lines are edited, so ``where`` is the
    file itself."""

    def parse(self, text: str) -> Any:
        return [self._line(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]

    def _line(self, number: int, line: str) -> Any:
        try:
            return super().parse(line)
        except UnreadableFile as error:
            raise UnreadableFile(f"line {number} {error}") from None

    def _setting(self, where: Where, value: Any) -> Iterator[str]:
        span = self._lines()[int(where[-1])]
        yield apply_splices(self.text, [Splice(span.start, span.end, self._literal(value, 0, ""))])

    def _inserting(self, where: Where, value: Any) -> Iterator[str]:  # noqa: ARG002
        raise EditRefused(f"{self.name}: only whole lines are edited")

    def _appending(self, where: Where, value: Any) -> Iterator[str]:  # noqa: ARG002
        ends = not self.text or self.text.endswith("\n")
        literal = self._literal(value, 0, "")
        yield self.text + (literal + self.newline if ends else self.newline + literal)

    def _removing(self, where: Where, index: int) -> Iterator[str]:  # noqa: ARG002
        spans = self._lines()
        stop = self.text.find("\n", spans[index].end) + 1
        start = spans[index].start
        if not stop:
            start, stop = self.text.rfind("\n", 0, start), len(self.text)
            start = start - 1 if self.text[start - 1 : start] == "\r" else max(start, 0)
        yield apply_splices(self.text, [Splice(start, stop)])

    def _lines(self) -> list[Span]:
        found = re.finditer(r"^[^\n]*\S[^\n]*$", self.text, re.MULTILINE)
        return [Span(line.start(), line.start() + len(line[0].rstrip())) for line in found]
