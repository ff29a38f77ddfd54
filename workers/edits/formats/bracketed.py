"""Add items to lists and tables between brackets, or remove them, in the style of the text.

This serves arrays, objects and inline tables of TOML, JSON and YAML's flow style. An item's comma,
line and comment come and go with it; those of other items stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mulligan.workers.edits.formats.structured_file import Span, Splice, apply_splices


@dataclass(frozen=True, kw_only=True)
class Bracketed:
    """``items`` are the spans of the items (of whole "key: value" members), without commas."""

    text: str
    #: The position of the opening bracket.
    start: int
    #: The position after the closing bracket.
    end: int
    items: Sequence[Span]
    newline: str
    #: Goes between two items on one line, if there is no pair of items to copy from.
    separator: str = ", "

    def append(self, literal: str) -> str:
        """Return the text with one more item at the end."""
        if not self.items:
            return self._alone(literal)
        last = self.items[-1]
        if not self._opens_line(last):
            return self._put(Splice(last.end, last.end, self._between() + literal))
        comma = self._comma(last.end, self._inner.end)
        indent = self.text[self._line_start(last.start) : last.start]
        place = self._line_end(last.end if comma is None else comma + 1)
        line = self.newline + indent + literal + ("" if comma is None else ",")
        splices = [Splice(place, place, line)]
        if comma is None:
            if place == last.end:
                return self._put(Splice(place, place, "," + line))
            splices.append(Splice(last.end, last.end, ","))
        return self._put(*splices)

    def remove(self, index: int) -> str:
        """Return the text without one item."""
        item = self.items[index]
        if len(self.items) == 1:
            return self._emptied(item)
        is_last = index == len(self.items) - 1
        comma = self._comma(item.end, self._inner.end if is_last else self.items[index + 1].start)
        splices = []
        if is_last and comma is None:
            before = self._comma(self.items[index - 1].end, item.start)
            if before is not None:
                splices.append(Splice(before, before + 1))
        if self._has_line(item, comma):
            stop = self._line_end(item.end if comma is None else comma + 1)
            splices.append(Splice(self._line_start(item.start), self._past_newline(stop)))
        elif is_last:
            stop = item.end if comma is None else comma + 1
            splices.append(Splice(self._after_blanks(index), stop))
        else:
            splices.append(Splice(item.start, self.items[index + 1].start))
        return self._put(*splices)

    @property
    def _inner(self) -> Span:
        return Span(self.start + 1, self.end - 1)

    def _put(self, *splices: Splice) -> str:
        return apply_splices(self.text, splices)

    def _alone(self, literal: str) -> str:
        """Add the first item of an empty list. A comment in it stays."""
        inner = self.text[self._inner.start : self._inner.end]
        if not inner.strip():
            return self._put(Splice(self._inner.start, self._inner.end, literal))
        last = inner.rstrip()
        line = last.rpartition("\n")[2]
        indent = line[: len(line) - len(line.lstrip())] if "\n" in last else "  "
        place = self._inner.start + len(last)
        return self._put(Splice(place, place, self.newline + indent + literal))

    def _emptied(self, item: Span) -> str:
        comma = self._comma(item.end, self._inner.end)
        stop = item.end if comma is None else comma + 1
        start = item.start
        if self._has_line(item, comma):
            start, stop = self._line_start(start), self._past_newline(self._line_end(stop))
        rest = self.text[self._inner.start : start] + self.text[stop : self._inner.end]
        if not rest.strip():
            start, stop = self._inner.start, self._inner.end
        return self._put(Splice(start, stop))

    def _between(self) -> str:
        """Return the text between the last two items if it is a comma and blanks on one line."""
        if len(self.items) > 1:
            gap = self.text[self.items[-2].end : self.items[-1].start]
            if gap.startswith(",") and not gap[1:].strip() and "\n" not in gap:
                return gap
        return self.separator

    def _comma(self, start: int, stop: int) -> int | None:
        """Return the position of the comma between items, outside comments."""
        at = start
        while at < stop:
            if self.text[at] == ",":
                return at
            at = self._line_end(at) if self.text[at] == "#" else at + 1
        return None

    def _opens_line(self, item: Span) -> bool:
        start = self._line_start(item.start)
        return start > self.start and not self.text[start : item.start].strip()

    def _has_line(self, item: Span, comma: int | None) -> bool:
        """Return whether an item shares its lines only with its comma and a comment."""
        if not self._opens_line(item):
            return False
        after = item.end if comma is None else comma + 1
        stop = self._line_end(after)
        rest = self.text[after:stop].strip()
        return stop < self._inner.end and (not rest or rest.startswith("#"))

    def _after_blanks(self, index: int) -> int:
        """Return where the blanks before the last item begin: after a comma or a comment."""
        item, before = self.items[index], self.items[index - 1]
        gap = self.text[before.end : item.start]
        return item.start - (len(gap) - len(gap.rstrip(" \t")))

    def _line_start(self, at: int) -> int:
        return self.text.rfind("\n", 0, at) + 1

    def _line_end(self, at: int) -> int:
        """Return where the line's ending starts, or the closing bracket if that comes first."""
        stop = self._inner.end
        end = self.text.find("\n", at, stop)
        if end < 0:
            return at if not self.text[at:stop].strip() else stop
        return end - 1 if end > at and self.text[end - 1] == "\r" else end

    def _past_newline(self, at: int) -> int:
        if self.text.startswith("\r\n", at):
            return at + 2
        return at + 1 if self.text.startswith("\n", at) else at
