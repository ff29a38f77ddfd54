"""Google's Gemini CLI: ``gemini --output-format stream-json``.

The assistant's message comes in pieces, of which one text is made. The last event is the
``result``, with the tokens of all models. The type of its error is ``unknown`` if the API refused a
call: only the exit code tells why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mulligan.policies.jobs.job import Usage
from mulligan.policies.value import Json
from mulligan.tasks.ports.sessions import SessionEvent
from mulligan.workers.runners.sessions.bounded_json import (
    mapping_in,
    text_in,
    tokens_in,
)
from mulligan.workers.runners.sessions.json_lines import (
    LONGEST_ANSWER,
    JsonLinesParser,
    known_usage,
)
from mulligan.workers.runners.sessions.session_parser import Refusal, TextFilter, unchanged

#: The types of errors after which a quota has to be renewed, and after which it may work later.
_REFUSALS: Mapping[str, Refusal] = {
    "TerminalQuotaError": "credits",
    "RetryableQuotaError": "busy",
}
#: By the status of the API, with which Gemini CLI exits. An exit code has its lowest 8 bits. Before
#: 429, it has asked again for minutes, or the quota of a day is used up.
EXIT_REFUSALS: Mapping[int, Refusal] = {
    401 & 0xFF: "key",
    402 & 0xFF: "credits",
    403 & 0xFF: "key",
    429 & 0xFF: "credits",
    500 & 0xFF: "busy",
    503 & 0xFF: "busy",
}
#: In characters.
_LONGEST_UNSAID = 8 << 10


class GeminiParser(JsonLinesParser):
    """Reads the events of Gemini CLI."""

    def __init__(self, *, redact: TextFilter = unchanged, clean: TextFilter = unchanged) -> None:
        super().__init__(redact=redact, clean=clean)
        #: The pieces of the message that is being said, and the end of it that has no event yet.
        self._pieces: list[str] = []
        self._size = 0
        self._messages = 0
        self._unsaid = ""
        self._tokens = Usage()
        self._code = ""

    def _read(self, event: Mapping[str, Json]) -> Iterator[SessionEvent]:
        kind = event.get("type")
        if kind == "message":
            yield from self._piece(event)
            return
        yield from self._end()
        match kind:
            case "init":
                self._name_model(event.get("model"))
            case "tool_use":
                self._begin_message()
                yield self._action(
                    event.get("tool_name"), event.get("tool_id"), event.get("parameters")
                )
            case "tool_result":
                error = text_in(mapping_in(event.get("error")).get("message"))
                text = text_in(event.get("output")) or error
                failed = event.get("status") == "error"
                yield self._observation(event.get("tool_id"), text, failed=failed)
            case "error":
                severity = text_in(event.get("severity")) or "error"
                yield self._note(f"{severity}: {text_in(event.get('message'))}")
            case "result":
                yield from self._result(event)
            case _:
                yield self._unknown(event)

    def _piece(self, event: Mapping[str, Json]) -> Iterator[SessionEvent]:
        if event.get("role") != "assistant":  # the prompt
            return
        if event.get("delta") is not True:
            yield from self._end()
            self._begin_message()
        piece = text_in(event.get("content"))
        self._unsaid += piece
        if self._size < LONGEST_ANSWER:
            self._pieces.append(piece)
            self._size += len(piece)
        if len(self._unsaid) > _LONGEST_UNSAID:
            # Between words: a secret that is cut would not be found.
            end = max(self._unsaid.rfind(" "), self._unsaid.rfind("\n")) + 1
            text, self._unsaid = (
                self._unsaid[:end] or self._unsaid,
                self._unsaid[end:] if end else "",
            )
            yield self._say(text, message=f"message {self._messages}")

    def _begin_message(self) -> None:
        self._messages += 1
        self._answer, self._pieces, self._size = self._final_answer(), [], 0

    def _final_answer(self) -> str:
        return "".join(self._pieces) or self._answer

    def _end(self) -> Iterator[SessionEvent]:
        """Yield the rest of the message as one text."""
        text, self._unsaid = self._unsaid, ""
        if text:
            yield self._say(text, message=f"message {self._messages}")

    def _result(self, event: Mapping[str, Json]) -> Iterator[SessionEvent]:
        error = mapping_in(event.get("error"))
        self._code = text_in(error.get("type"))
        failed = event.get("status") != "success"
        self._judge(failed=failed, error=text_in(error.get("message")) or "it ended with an error")
        stats = mapping_in(event.get("stats"))
        self._name_model(_most_used(mapping_in(stats.get("models"))))
        self._tokens = _counted(stats)
        yield from self._used()

    def _usage(self) -> Usage:
        return self._tokens

    def _refusal(self) -> dict[str, Any]:
        refused = _REFUSALS.get(self._code) if self._failed else None
        return {"refused": refused, "code": self._code} if refused else {}


def _counted(stats: Mapping[str, Json]) -> Usage:
    names = ("input_tokens", "output_tokens", "total_tokens")
    prompt, completion, total = (tokens_in(stats.get(name)) for name in names)
    if prompt is not None and total is not None:
        # Thoughts are only in the total. They are paid for as output.
        completion = max(completion or 0, total - prompt)
    return known_usage(prompt, completion, total)


def _most_used(models: Mapping[str, Json]) -> str | None:
    """Return the model that did the work: the name at the beginning may be ``auto``."""

    def tokens(name: str) -> int:
        return tokens_in(mapping_in(models[name]).get("total_tokens")) or 0

    return max(models, key=tokens, default=None)
