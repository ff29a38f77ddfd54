"""The formats of sessions by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from mulligan.workers.runners.sessions.claude_parser import ClaudeParser
from mulligan.workers.runners.sessions.codex_parser import CodexParser
from mulligan.workers.runners.sessions.gemini_parser import EXIT_REFUSALS, GeminiParser
from mulligan.workers.runners.sessions.session_parser import (
    Refusal,
    SessionParser,
    TextFilter,
    unchanged,
)
from mulligan.workers.runners.sessions.text_parser import TextParser

FormatName = Literal["text", "claude", "codex", "gemini"]


class ParserFactory(Protocol):
    def __call__(
        self, *, redact: TextFilter = unchanged, clean: TextFilter = unchanged
    ) -> SessionParser: ...


SESSION_FORMATS: Mapping[FormatName, ParserFactory] = {
    "text": TextParser,
    "claude": ClaudeParser,
    "codex": CodexParser,
    "gemini": GeminiParser,
}
#: What exit codes of sessions that failed say about the provider.
REFUSAL_EXIT_CODES: Mapping[FormatName, Mapping[int, Refusal]] = {"gemini": EXIT_REFUSALS}
