"""TOML files: tomlkit finds the place of a value, tomllib checks the result of a splice."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT, Array, InlineTable

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

#: Replaces a value to find its place.
_MARKER = "mulligan:\u2400:marker"
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_LAST_KEY = re.compile(r"""([A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')[ \t]*=[ \t]*$""")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_CONTROL_IN_LINES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_BLANK_LINES = re.compile(r"(?:[ \t]*\r?\n)*")
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}


class TomlFile(StructuredFile):
    def parse(self, text: str) -> Any:
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise UnreadableFile(f"is not TOML: {error}") from None

    def _setting(self, where: Where, value: Any) -> Iterator[str]:
        if isinstance(self._item(where[:-1]), AoT):
            yield from self._other_table(where, value)
            return
        span = self._span(where)
        for literal in self._literals(value, self.text[span.start : span.end]):
            yield apply_splices(self.text, [Splice(span.start, span.end, literal)])

    def _inserting(self, where: Where, value: Any) -> Iterator[str]:
        for literal in self._literals(value, None):
            if isinstance(self._item(where[:-1]), InlineTable):
                member = f"{_key(str(where[-1]))} = {literal}"
                yield self._bracketed(where[:-1]).append(member)
                continue
            yield from self._after_sibling(where, literal)
            yield from self._after_header(where, literal)
        yield from self._by_tomlkit(lambda table: table.__setitem__(where[-1], value), where[:-1])

    def _appending(self, where: Where, value: Any) -> Iterator[str]:
        if isinstance(self._item(where), AoT):
            yield from self._with_table(where, value)
            yield from self._by_tomlkit(lambda tables: tables.append(tomlkit.item(value)), where)
            return
        brackets = self._bracketed(where)
        last = brackets.items[-1] if brackets.items else None
        like = self.text[last.start : last.end] if last else None
        for literal in self._literals(value, like):
            yield brackets.append(literal)

    def _removing(self, where: Where, index: int) -> Iterator[str]:
        if isinstance(self._item(where), AoT):
            yield from self._without_table(where, index)
            yield from self._by_tomlkit(lambda tables: tables.pop(index), where)
        else:
            yield self._bracketed(where).remove(index)

    def _tree(self) -> Any:
        try:
            return tomlkit.parse(self.text)
        except (TOMLKitError, ValueError) as error:
            raise EditRefused(f"{self.name}: tomlkit cannot read it: {error}") from None

    def _item(self, where: Where) -> Any:
        found = self._tree()
        for step in where:
            found = found[step]
        return found

    def _span(self, where: Where) -> Span:
        """Find the place of a value by putting a marker there."""
        tree = self._tree()
        holder = tree
        for depth, step in enumerate(where[:-1], start=1):
            holder = holder[step]
            if isinstance(holder, Array):
                if depth != len(where) - 1:
                    raise EditRefused(f"{self.name}: the value is too deep inside an array to edit")
                return self._bracketed(where[:-1]).items[int(where[-1])]
        holder[where[-1]] = _MARKER
        return self._between(tomlkit.dumps(tree))

    def _between(self, marked: str) -> Span:
        before, found, after = marked.partition(f'"{_MARKER}"')
        fits = found and self.text.startswith(before) and self.text.endswith(after)
        if not fits or len(before) + len(after) > len(self.text):
            raise EditRefused(f"{self.name}: has an unknown layout; edit the file as a text")
        return Span(len(before), len(self.text) - len(after))

    def _bracketed(self, where: Where) -> Bracketed:
        span = self._span(where)
        return Bracketed(
            text=self.text,
            start=span.start,
            end=span.end,
            items=_item_spans(self.text, span),
            newline=self.newline,
        )

    def _after_sibling(self, where: Where, literal: str) -> Iterator[str]:
        """Add a line after the last plain value of the same table."""
        table = self._item(where[:-1])
        plain = [key for key, value in table.items() if not isinstance(value, dict | AoT)]
        if not plain:
            return
        span = self._span((*where[:-1], plain[-1]))
        line_start = self.text.rfind("\n", 0, span.start) + 1
        before = self.text[line_start : span.start]
        found = _LAST_KEY.search(before)
        if found is None:
            return
        name = _key(str(where[-1]))
        line = before[: found.start(1)] + name + before[found.end(1) :] + literal
        yield self._with_line_after(span.end, line)

    def _after_header(self, where: Where, literal: str) -> Iterator[str]:
        """Add the first line of a table that has no plain value."""
        if len(where) < 2:
            return
        names = r"[ \t]*\.[ \t]*".join(_key_pattern(str(step)) for step in where[:-1])
        line = f"{_key(str(where[-1]))} = {literal}"
        for found in re.finditer(rf"^[ \t]*\[[ \t]*{names}[ \t]*\]", self.text, re.MULTILINE):
            yield self._with_line_after(found.end(), line)

    def _with_table(self, where: Where, value: Any) -> Iterator[str]:
        """Add a ``[[table]]`` after the last, with a blank line if the last has one."""
        count = len(self.at(where))
        last = self._table_span(where, count - 1)
        if last is None or not isinstance(value, dict):
            return
        before = self.text[: last.start]
        gap = self.newline if before.endswith(("\n\n", "\n\r\n")) or count == 1 else ""
        lines = self._table_lines(last, value)
        yield self._with_line_after(max(last.end - 1, 0), gap + lines)

    def _without_table(self, where: Where, index: int) -> Iterator[str]:
        """Remove a ``[[table]]`` and the blank lines after it; comments after it stay."""
        span = self._table_span(where, index)
        found = _BLANK_LINES.match(self.text, span.end) if span else None
        if span and found:
            yield apply_splices(self.text, [Splice(span.start, found.end())])

    def _other_table(self, where: Where, value: Any) -> Iterator[str]:
        """Replace a ``[[table]]``."""
        span = self._table_span(where[:-1], int(where[-1]))
        if span and isinstance(value, dict):
            ends = self.newline if self.text[span.start : span.end].endswith("\n") else ""
            lines = self._table_lines(span, value) + ends
            yield apply_splices(self.text, [Splice(span.start, span.end, lines)])

    def _table_lines(self, like: Span, value: dict[str, Any]) -> str:
        lines = [self.text[like.start : self.text.find("]]", like.start) + 2]]
        for key, item in value.items():
            lines.append(f"{_key(str(key))} = {next(self._literals(item, None))}")
        return self.newline.join(lines)

    def _table_span(self, where: Where, index: int) -> Span | None:
        """Return the whole lines of a ``[[table]]``, from its header to its last plain value."""
        names = r"[ \t]*\.[ \t]*".join(_key_pattern(str(step)) for step in where)
        pattern = rf"^[ \t]*\[\[[ \t]*{names}[ \t]*\]\]"
        starts = [found.start() for found in re.finditer(pattern, self.text, re.MULTILINE)]
        if index >= len(starts):
            return None
        table = self._item((*where, index))
        plain = [key for key, value in table.items() if not isinstance(value, dict | AoT)]
        end = self._span((*where, index, plain[-1])).end if plain else starts[index]
        return Span(starts[index], self.text.find("\n", end) + 1 or len(self.text))

    def _with_line_after(self, at: int, line: str) -> str:
        """Return the text with a new line after the line of ``at``."""
        end = self.text.find("\n", at)
        if end < 0:
            return self.text + self.newline + line
        return apply_splices(self.text, [Splice(end + 1, end + 1, line + self.newline)])

    def _by_tomlkit(self, change: Any, where: Where) -> Iterator[str]:
        """Let tomlkit make the change, if it then only inserts or only deletes text."""
        tree = self._tree()
        holder = tree
        for step in where:
            holder = holder[step]
        try:
            change(holder)
        except (TOMLKitError, ValueError, KeyError):
            return
        text = tomlkit.dumps(tree)
        start = _common_length(self.text, text)
        stop = _common_length(self.text[start:][::-1], text[start:][::-1])
        old, new = self.text[start : len(self.text) - stop], text[start : len(text) - stop]
        if old and new:
            return
        new = new.replace("\r\n", "\n").replace("\n", self.newline)
        yield self.text[:start] + new + self.text[len(self.text) - stop :]

    def _literals(self, value: Any, like: str | None) -> Iterator[str]:
        """Yield the value as TOML, first in the style of ``like``."""
        if isinstance(value, str):
            yield from _strings(value, like, self.newline)
        else:
            yield _literal(value, self.name)


def _literal(value: Any, name: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, str):
        return _basic(value)
    if isinstance(value, list):
        return f"[{', '.join(_literal(item, name) for item in value)}]"
    if isinstance(value, dict):
        members = ", ".join(f"{_key(key)} = {_literal(item, name)}" for key, item in value.items())
        return f"{{ {members} }}" if members else "{}"
    raise EditRefused(f"{name}: TOML has no value for {value!r}")


def _strings(value: str, like: str | None, newline: str) -> Iterator[str]:
    like = like or ""
    if like.startswith("'''") and "'''" not in value and not _CONTROL_IN_LINES.search(value):
        first = newline if like[3:].lstrip("\r").startswith("\n") or value[:1] == "\n" else ""
        yield "'''" + first + value.replace("\n", newline) + "'''"
    if like.startswith('"""') or ("\n" in value and not like.startswith("'")):
        plain = like.startswith('"""') and not like[3:].lstrip("\r").startswith("\n")
        first = "" if plain and value[:1] != "\n" else newline
        yield '"""' + first + _basic_lines(value, newline) + '"""'
    if like.startswith("'") and "'" not in value and not _CONTROL.search(value):
        yield f"'{value}'"
    yield _basic(value)


def _basic(value: str) -> str:
    return '"' + _CONTROL.sub(_escape, value.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _basic_lines(value: str, newline: str) -> str:
    text = value.replace("\\", "\\\\").replace('"""', '""\\"')
    text = text[:-1] + '\\"' if text.endswith('"') else text
    return _CONTROL_IN_LINES.sub(_escape, text).replace("\n", newline)


def _escape(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _basic(name)


def _key_pattern(name: str) -> str:
    bare = f"|{re.escape(name)}" if _BARE.fullmatch(name) else ""
    return f"(?:{re.escape(_basic(name))}|'{re.escape(name)}'{bare})"


def _common_length(left: str, right: str) -> int:
    """Return how many characters two texts share at their start."""
    size = min(len(left), len(right))
    return next((n for n in range(size) if left[n] != right[n]), size)


#: A string of TOML, a comment, a bracket, a comma, or a run of anything else.
_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}(?!")'
    r"|'''.*?'{3,5}(?!')"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'"
    r"|\#[^\n]*|[\[\]{},]|\s+|[^\s\"'\[\]{},#]+",
    re.DOTALL,
)


def _item_spans(text: str, span: Span) -> list[Span]:
    """Return the spans of the items of an array, or the members of an inline table."""
    spans: list[Span] = []
    depth = 0
    start = end = None
    for found in _TOKEN.finditer(text, span.start, span.end):
        piece = found[0]
        if depth == 1 and (piece == "," or (piece in "]}" and found.end() == span.end)):
            if start is not None and end is not None:
                spans.append(Span(start, end))
            start = end = None
        elif depth >= 1 and not piece.isspace() and not piece.startswith("#"):
            start = found.start() if start is None else start
            end = found.end()
        depth += (piece in ("[", "{")) - (piece in ("]", "}"))
    return spans
