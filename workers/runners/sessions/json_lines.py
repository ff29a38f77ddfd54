"""Read the output of agents that print one JSON object a line.

What is not an object (a warning of the agent's runtime, say) becomes a text. A line that is too
long becomes a note, because it cannot be read.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from mulligan.policies.jobs.job import Usage
from mulligan.policies.value import Json
from mulligan.tasks.ports.sessions import SessionEvent
from mulligan.workers.runners.sessions.bounded_json import (
    LONGEST_TEXT,
    BoundedCopy,
    mapping_in,
    parse_object,
    shorten,
    text_in,
)
from mulligan.workers.runners.sessions.output_lines import LineSplitter, OutputLine
from mulligan.workers.runners.sessions.session_parser import (
    SessionSummary,
    TextFilter,
    unchanged,
)

#: The names of texts that the agent thinks and does not say, and that a sub-agent says.
THINKING = "thinking"
SUB_AGENT = "sub-agent"
#: In characters, as the output of a program without events.
LONGEST_ANSWER = 4 << 20
#: Of names and references.
_LONGEST_NAME = 200
#: Of what cannot be read, and of an event that nobody knows.
_GLIMPSE = 200
#: Actions without an observation whose names are kept.
_MOST_OPEN = 1000
#: What an action is about: the first of these arguments that is a text.
_SUBJECTS = ("command", "pattern", "query", "url", "file_path", "path", "prompt", "description")


class JsonLinesParser(ABC):
    """Reads lines and keeps what the summary needs. A format says what an event means."""

    def __init__(self, *, redact: TextFilter = unchanged, clean: TextFilter = unchanged) -> None:
        """``redact`` removes secrets. ``clean`` makes what people see readable."""
        self._redact, self._clean = redact, clean
        self._lines = LineSplitter()
        self._names: dict[str, str] = {}
        self._answer = ""
        self._reported = 0
        self._model: str | None = None
        self._failed: bool | None = None
        self._error = ""

    def feed(self, chunk: bytes) -> list[SessionEvent]:
        return [event for line in self._lines.feed(chunk) for event in self._read_line(line)]

    def finish(self) -> list[SessionEvent]:
        rest = [event for line in self._lines.finish() for event in self._read_line(line)]
        return [*rest, *self._end()]

    @property
    def summary(self) -> SessionSummary:
        return SessionSummary(
            answer=self._redact(self._final_answer())[:LONGEST_ANSWER],
            usage=self._usage(),
            model=self._model,
            failed=self._failed,
            error=self._error,
            **self._refusal(),
        )

    @abstractmethod
    def _read(self, event: Mapping[str, Json]) -> Iterator[SessionEvent]:
        """Yield what an event of the format means."""

    @abstractmethod
    def _usage(self) -> Usage:
        """Return the tokens of the whole session, as far as they are known."""

    def _refusal(self) -> dict[str, Any]:
        """Return the fields of the summary about a provider that refused."""
        return {}

    def _end(self) -> Iterator[SessionEvent]:
        """Yield what is left when the output ends."""
        return iter(())

    def _read_line(self, line: OutputLine) -> Iterator[SessionEvent]:
        if line.left_out:
            size = len(line.text) + line.left_out
            yield self._note(
                f"a line of about {size} bytes is left out: {self._glimpse(line.text)}"
            )
            return
        event = parse_object(line.text)
        if event is None:
            yield self._say(line.text)
        else:
            yield from self._read(event)

    # -- events ------------------------------------------------------------------------------------

    def _say(self, text: str, name: str = "", message: Json = "") -> SessionEvent:
        """Return a text. ``message``: names the message of the agent that it is a part of."""
        ref = self._name(message)
        return SessionEvent(kind="text", text=self._for_people(text), name=name, ref=ref)

    def _note(self, text: str, name: str = "") -> SessionEvent:
        return SessionEvent(kind="note", text=self._for_people(text), name=name)

    def _unknown(self, event: Mapping[str, Json]) -> SessionEvent:
        """Return a note about an event of a type that this release does not know."""
        kind = self._name(event.get("type")) or "?"
        return self._note(
            f"event {kind}: {self._glimpse(_written(BoundedCopy(unchanged).of(event)))}"
        )

    def _action(self, name: Json, ref: Json, arguments: Json, text: str = "") -> SessionEvent:
        """Return an action and remember its name for its observation."""
        name, ref = self._name(name), self._name(ref)
        if ref:
            self._names[ref] = name
            if len(self._names) > _MOST_OPEN:
                del self._names[next(iter(self._names))]
        data = BoundedCopy(self._filtered).of(_compared(mapping_in(arguments)))
        about = text or _subject(mapping_in(arguments)) or _written(data)
        return SessionEvent(
            kind="action", text=self._for_people(about), name=name, ref=ref, data=data
        )

    def _observation(self, ref: Json, text: str, *, failed: bool) -> SessionEvent:
        ref = self._name(ref)
        return SessionEvent(
            kind="observation",
            text=self._for_people(text),
            name=self._names.pop(ref, ""),
            ref=ref,
            failed=failed,
        )

    def _is_open(self, ref: Json) -> bool:
        """Whether an action has no observation yet."""
        return self._name(ref) in self._names

    def _used(self, **about: Json) -> Iterator[SessionEvent]:
        """Yield what was used so far, if that is more than before."""
        usage = self._usage()
        if usage.total_tokens is not None and usage.total_tokens > self._reported:
            self._reported = usage.total_tokens
            known = {name: value for name, value in about.items() if value is not None}
            yield SessionEvent(kind="usage", usage=usage, data=known)

    # -- the summary -------------------------------------------------------------------------------

    def _conclude(self, answer: Json) -> None:
        """Keep the answer, as far as it is known."""
        self._answer = text_in(answer)

    def _final_answer(self) -> str:
        return self._answer

    def _judge(self, *, failed: bool, error: Json = "") -> None:
        self._failed = failed
        self._error = self._for_people(text_in(error)) if failed else ""

    def _name_model(self, model: Json) -> None:
        if name := self._name(model):
            self._model = name

    def _name(self, value: Json) -> str:
        return self._redact(text_in(value))[:_LONGEST_NAME]

    def _for_people(self, text: str) -> str:
        return shorten(self._filtered(text), LONGEST_TEXT)

    def _filtered(self, text: str) -> str:
        return self._clean(self._redact(text))

    def _glimpse(self, text: str) -> str:
        return self._filtered(text)[:_GLIMPSE]


def known_usage(prompt: int | None, completion: int | None, total: int | None = None) -> Usage:
    """Return a usage. Agents write 0 for what they do not know: no session uses nothing."""
    if total is None and not (prompt is None and completion is None):
        total = (prompt or 0) + (completion or 0)
    if not total:
        return Usage()
    return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=total)


def texts_in(content: Json) -> str:
    """Return the texts of a result: a text, or a list of blocks of which some are texts."""
    if isinstance(content, str):
        return text_in(content)
    blocks = content if isinstance(content, list) else [content]
    parts = []
    for block in blocks:
        about = mapping_in(block)
        kind = text_in(about.get("type"))
        parts.append(text_in(about.get("text")) or (f"[{kind}]" if kind and kind != "text" else ""))
    return "\n".join(part for part in parts if part)


def _compared(arguments: Mapping[str, Json]) -> dict[str, Json]:
    """Return the arguments without what a model says about a command that it runs."""
    described = "command" in arguments and "description" in arguments
    return {k: v for k, v in arguments.items() if not (described and k == "description")}


def _subject(arguments: Mapping[str, Json]) -> str:
    found = (text_in(arguments.get(name)) for name in _SUBJECTS)
    return next((text for text in found if text), "")


def _written(data: Json) -> str:
    return json.dumps(data, ensure_ascii=False)
