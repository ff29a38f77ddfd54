"""Split a stream into lines of a limited length."""

from __future__ import annotations

from dataclasses import dataclass

#: In bytes. The rest of a longer line is left out.
LONGEST_LINE = 1 << 20


@dataclass(frozen=True)
class OutputLine:
    """A line without its end. Bytes that are not UTF-8 are replaced."""

    text: str
    #: Bytes that are left out at its end.
    left_out: int = 0


class LineSplitter:
    """Collects chunks until a line is complete; empty lines are left out."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._begun = bytearray()
        self._left_out = 0

    def feed(self, chunk: bytes) -> list[OutputLine]:
        """Return the lines that are complete now."""
        first, *others = chunk.split(b"\n")
        self._add(first)
        found = []
        for part in others:
            found += self.finish()
            self._add(part)
        return found

    def finish(self) -> list[OutputLine]:
        """Return the line that has no end yet, if there is one."""
        text = self._begun.removesuffix(b"\r").decode("utf-8", "replace")
        line = OutputLine(text, self._left_out)
        self._begun.clear()
        self._left_out = 0
        return [line] if text.strip() else []

    def _add(self, part: bytes) -> None:
        room = self._longest - len(self._begun)
        self._begun += part[:room]
        self._left_out += max(0, len(part) - room)
