"""A program without events: each line that it prints is a text."""

from __future__ import annotations

from mulligan.tasks.ports.sessions import SessionEvent
from mulligan.workers.runners.sessions.bounded_json import LONGEST_TEXT, shorten
from mulligan.workers.runners.sessions.output_lines import LineSplitter, OutputLine
from mulligan.workers.runners.sessions.session_parser import (
    SessionSummary,
    TextFilter,
    unchanged,
)


class TextParser:
    """Reads lines. Its summary has no answer, which is the whole output, and no verdict but the
    program's exit code."""

    summary = SessionSummary(failed=False)

    def __init__(self, *, redact: TextFilter = unchanged, clean: TextFilter = unchanged) -> None:
        self._redact, self._clean = redact, clean
        self._lines = LineSplitter()

    def feed(self, chunk: bytes) -> list[SessionEvent]:
        return [self._event(line) for line in self._lines.feed(chunk)]

    def finish(self) -> list[SessionEvent]:
        return [self._event(line) for line in self._lines.finish()]

    def _event(self, line: OutputLine) -> SessionEvent:
        text = self._clean(self._redact(line.text))
        if line.left_out:  # only the beginning: at its end may be half a secret
            text = f"{text[:LONGEST_TEXT]}\n[… the rest of the line is left out …]"
        return SessionEvent(kind="text", text=shorten(text, LONGEST_TEXT + 100))
