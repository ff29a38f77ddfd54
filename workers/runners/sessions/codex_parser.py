"""OpenAI's Codex: ``codex exec --json``.

A thread has turns, and a turn has items: messages, thoughts, commands, changes of files and calls
of tools. Those that take time are started and completed; others are only completed. The tokens of a
completed turn are those of the whole thread. No event has a code for a refused call: an error is
a sentence, which is never searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mulligan.policies.jobs.job import Usage
from mulligan.policies.value import Json
from mulligan.tasks.ports.sessions import SessionEvent
from mulligan.workers.runners.sessions.bounded_json import (
    list_in,
    mapping_in,
    text_in,
    tokens_in,
)
from mulligan.workers.runners.sessions.json_lines import (
    THINKING,
    JsonLinesParser,
    known_usage,
    texts_in,
)
from mulligan.workers.runners.sessions.session_parser import TextFilter, unchanged

#: Texts, and the names of their events.
_TEXTS = {"agent_message": "", "reasoning": THINKING, "plan": "plan"}
#: What an item with these types does.
_ACTIONS = ("command_execution", "file_change", "mcp_tool_call", "web_search", "collab_tool_call")
_FAILED = ("failed", "declined")
_SILENT = ("thread.started", "turn.started", "item.plan.delta")


class CodexParser(JsonLinesParser):
    """Reads the events of Codex."""

    def __init__(self, *, redact: TextFilter = unchanged, clean: TextFilter = unchanged) -> None:
        super().__init__(redact=redact, clean=clean)
        self._tokens = Usage()
        self._todo = ""

    def _read(self, event: Mapping[str, Json]) -> Iterator[SessionEvent]:
        item = mapping_in(event.get("item"))
        match event.get("type"):
            case "item.started":
                yield from self._started(item)
            case "item.updated":
                yield from self._todo_list(item)
            case "item.completed":
                yield from self._completed(item)
            case "turn.completed":
                self._judge(failed=False)
                self._count(mapping_in(event.get("usage")))
                yield from self._used()
            case "turn.failed":
                error = text_in(mapping_in(event.get("error")).get("message"))
                self._judge(failed=True, error=error or self._error or "the turn failed")
            case "error":
                # Codex may go on after it: only the turn's end is a verdict.
                self._error = self._for_people(text_in(event.get("message")))
                yield self._note(f"error: {self._error}")
            case kind if kind not in _SILENT:
                yield self._unknown(event)

    def _started(self, item: Mapping[str, Json]) -> Iterator[SessionEvent]:
        yield from self._todo_list(item)
        if item.get("type") in _ACTIONS:
            yield self._act(item)

    def _completed(self, item: Mapping[str, Json]) -> Iterator[SessionEvent]:
        kind = item.get("type")
        if kind in _ACTIONS:
            if not self._is_open(item.get("id")):
                yield self._act(item)
            failed = item.get("status") in _FAILED or item.get("exit_code") not in (0, None)
            yield self._observation(item.get("id"), _outcome(item), failed=failed)
        elif isinstance(kind, str) and kind in _TEXTS:
            text = text_in(item.get("text"))
            if kind == "agent_message":
                self._conclude(text)
            yield self._say(text, _TEXTS[kind], item.get("id"))
        elif kind == "error":
            yield self._note(text_in(item.get("message")))
        elif kind == "todo_list":
            yield from self._todo_list(item)
        else:
            yield self._unknown(item)

    def _act(self, item: Mapping[str, Json]) -> SessionEvent:
        """Return the action of an item that does something."""
        kind, ref = item.get("type"), item.get("id")
        match kind:
            case "mcp_tool_call":
                name = f"{text_in(item.get('server'))}.{text_in(item.get('tool'))}"
                return self._action(name, ref, item.get("arguments"))
            case "collab_tool_call":
                given = {"prompt": item.get("prompt"), "to": item.get("receiver_thread_ids")}
                given = {name: value for name, value in given.items() if value is not None}
                return self._action(item.get("tool"), ref, given)
            case "file_change":
                changes = item.get("changes")
                return self._action(kind, ref, {"changes": changes}, _changes(changes))
            case "web_search":
                return self._action(kind, ref, {"query": item.get("query")})
        return self._action(kind, ref, {"command": item.get("command")})

    def _todo_list(self, item: Mapping[str, Json]) -> Iterator[SessionEvent]:
        """Yield the list if it has changed."""
        if item.get("type") != "todo_list":
            return
        entries = map(mapping_in, list_in(item.get("items")))
        lines = (
            f"[{'x' if entry.get('completed') is True else ' '}] {text_in(entry.get('text'))}"
            for entry in entries
        )
        text = self._for_people("\n".join(lines))
        if text != self._todo:
            self._todo = text
            yield self._say(text, name="todo_list")

    def _count(self, usage: Mapping[str, Json]) -> None:
        prompt, completion = (
            tokens_in(usage.get("input_tokens")),
            tokens_in(usage.get("output_tokens")),
        )
        found = known_usage(prompt, completion)
        if (found.total_tokens or 0) > (self._tokens.total_tokens or 0):
            self._tokens = found

    def _usage(self) -> Usage:
        return self._tokens


def _outcome(item: Mapping[str, Json]) -> str:
    """Return what came of an item that did something."""
    if item.get("type") == "mcp_tool_call":
        error = text_in(mapping_in(item.get("error")).get("message"))
        return error or texts_in(mapping_in(item.get("result")).get("content"))
    if item.get("type") == "collab_tool_call":
        states = map(mapping_in, mapping_in(item.get("agents_states")).values())
        told = (text_in(state.get("message")) or text_in(state.get("status")) for state in states)
        return "\n".join(filter(None, told))
    if item.get("type") == "command_execution":
        return text_in(item.get("aggregated_output"))
    return text_in(item.get("status"))


def _changes(changes: Json) -> str:
    found = map(mapping_in, list_in(changes))
    return ", ".join(f"{text_in(each.get('kind'))} {text_in(each.get('path'))}" for each in found)
