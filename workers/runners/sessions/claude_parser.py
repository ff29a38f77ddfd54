"""Claude Code: ``claude -p --output-format stream-json --verbose``.

``assistant`` and ``user`` events contain messages of Anthropic's API: blocks of text, thinking and
tool calls, and the results of tools. The last event is the ``result``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mulligan.policies.jobs.job import Usage
from mulligan.policies.value import Json
from mulligan.tasks.ports.sessions import SessionEvent
from mulligan.workers.runners.sessions.bounded_json import (
    amount_in,
    list_in,
    mapping_in,
    text_in,
    tokens_in,
)
from mulligan.workers.runners.sessions.json_lines import (
    SUB_AGENT,
    THINKING,
    JsonLinesParser,
    known_usage,
    texts_in,
)
from mulligan.workers.runners.sessions.session_parser import Refusal, TextFilter, unchanged

#: The model of messages that Claude Code writes itself, such as an error.
_SYNTHETIC = "<synthetic>"
_RATE_LIMIT = "rate_limit"
#: What the error of the last message says about the provider.
_REFUSALS: Mapping[str, Refusal] = {
    "billing_error": "credits",
    _RATE_LIMIT: "busy",
    "overloaded": "busy",
    "server_error": "busy",
    "authentication_failed": "key",
}
#: By the API's status in the result, for a message whose error is ``unknown``.
_BY_STATUS = {
    401: "authentication_failed",
    402: "billing_error",
    403: "authentication_failed",
    429: _RATE_LIMIT,
    500: "server_error",
    529: "overloaded",
}
#: Types that say nothing new: parts of messages that follow complete, and signs of life.
_REPEATED = ("stream_event", "tool_progress", "keep_alive", "tool_use_summary")
_LONGEST_ID = 200
_Tokens = tuple[int, int]
_IN_MESSAGES = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
)
_IN_MODELS = (
    "inputTokens",
    "cacheCreationInputTokens",
    "cacheReadInputTokens",
    "outputTokens",
)


class ClaudeParser(JsonLinesParser):
    """Reads the events of Claude Code."""

    def __init__(self, *, redact: TextFilter = unchanged, clean: TextFilter = unchanged) -> None:
        super().__init__(redact=redact, clean=clean)
        self._spent = MessageTokens()
        self._cost: float | None = None
        #: The error of the last message, and what was last said about the account's limits.
        self._message_error = ""
        self._limit: Mapping[str, Json] = {}
        self._status = 0

    def _read(self, event: Mapping[str, Json]) -> Iterator[SessionEvent]:
        match event.get("type"):
            case "assistant":
                yield from self._assistant(event)
            case "user":
                yield from self._results(list_in(mapping_in(event.get("message")).get("content")))
            case "result":
                yield from self._result(event)
            case "system":
                yield from self._system(event)
            case "rate_limit_event":
                self._limit = mapping_in(event.get("rate_limit_info"))
                status, kind = self._limit.get("status"), text_in(self._limit.get("rateLimitType"))
                if status != "allowed":
                    yield self._note(f"limit {kind or '?'}: {text_in(status) or '?'}")
            case kind if kind not in _REPEATED:
                yield self._unknown(event)

    def _system(self, event: Mapping[str, Json]) -> Iterator[SessionEvent]:
        if event.get("subtype") == "init":
            self._name_model(event.get("model"))
        elif event.get("subtype") == "api_retry":
            why = text_in(event.get("error")) or "?"
            yield self._note(f"the API is asked again after an error: {why}")

    def _assistant(self, event: Mapping[str, Json]) -> Iterator[SessionEvent]:
        message = mapping_in(event.get("message"))
        is_main = event.get("parent_tool_use_id") is None
        is_synthetic = message.get("model") == _SYNTHETIC
        said = []
        for block in map(mapping_in, list_in(message.get("content"))):
            match block.get("type"):
                case "text":
                    said.append(text_in(block.get("text")))
                    name = "" if is_main else SUB_AGENT
                    yield self._say(said[-1], name, message.get("id"))
                case "thinking":
                    if thought := text_in(block.get("thinking")):
                        yield self._say(thought, name=THINKING)
                case "tool_use" | "server_tool_use" | "mcp_tool_use":
                    yield self._action(block.get("name"), block.get("id"), block.get("input"))
                case kind if isinstance(kind, str) and kind.endswith("_tool_result"):
                    yield from self._results([block])
        if is_main:
            self._message_error = text_in(event.get("error"))
            if any(said) and not is_synthetic:
                self._conclude("\n".join(said))
        if not is_synthetic:
            if is_main:  # the API's name; that at the beginning may be an alias
                self._name_model(message.get("model"))
            self._spent.add(message.get("id"), message.get("usage"), is_main=is_main)
            yield from self._used()

    def _results(self, blocks: Any) -> Iterator[SessionEvent]:
        for block in map(mapping_in, blocks):
            if text_in(block.get("type")).endswith("tool_result"):
                text = texts_in(block.get("content"))
                failed = block.get("is_error") is True
                yield self._observation(block.get("tool_use_id"), text, failed=failed)

    def _result(self, event: Mapping[str, Json]) -> Iterator[SessionEvent]:
        answer, errors = event.get("result"), map(text_in, list_in(event.get("errors")))
        kind = text_in(event.get("subtype"))
        failed = event.get("is_error") is True or kind.startswith("error")
        if text_in(answer) and not failed:
            self._conclude(answer)
        self._judge(failed=failed, error="\n".join(filter(None, errors)) or text_in(answer) or kind)
        self._status = tokens_in(event.get("api_error_status")) or 0
        self._cost = amount_in(event.get("total_cost_usd"))
        self._spent.end(event.get("usage"), event.get("modelUsage"))
        yield from self._used(cost_usd=self._cost)

    def _usage(self) -> Usage:
        return self._spent.usage

    def _refusal(self) -> dict[str, Any]:
        code = self._message_error
        if code not in _REFUSALS:
            code = _BY_STATUS.get(self._status, "")
        found: dict[str, Any] = {"cost_usd": self._cost}
        if not self._failed or code not in _REFUSALS:
            return found
        # A subscription's quota is used up until it is renewed; an API's limit is one of rate.
        is_rejected = code == _RATE_LIMIT and self._limit.get("status") == "rejected"
        if is_rejected:
            found["resets_at"] = amount_in(self._limit.get("resetsAt"))
        return found | {"refused": "credits" if is_rejected else _REFUSALS[code], "code": code}


class MessageTokens:
    """The tokens of a session, from those of its messages and from its result.

    A message comes in several events, one for each block, which all have the tokens of the whole
    message. Sub-agents' messages are in the stream. The result has the tokens by model, with those
    of sub-agents; or, in older versions, only those of the main conversation.
    """

    #: Messages that may still come again.
    _REMEMBERED = 100

    def __init__(self) -> None:
        self._messages: dict[str, tuple[_Tokens, bool]] = {}
        #: Prompt and completion: of forgotten messages by whether they are the main conversation's,
        #: and of the last result.
        self._forgotten = {True: (0, 0), False: (0, 0)}
        self._result: _Tokens = (0, 0)

    @property
    def usage(self) -> Usage:
        parts = (self._result, self._since(main=True), self._since(main=False))
        return known_usage(sum(part[0] for part in parts), sum(part[1] for part in parts))

    def add(self, message: Json, usage: Json, *, is_main: bool) -> None:
        counted = _count([mapping_in(usage)], _IN_MESSAGES)
        if counted is None:
            return
        known = text_in(message)[:_LONGEST_ID]
        if not known:
            self._forgotten[is_main] = _sum(self._forgotten[is_main], counted)
            return
        if known in self._messages:  # the later event has the larger number, if any
            before, _ = self._messages[known]
            counted = max(before[0], counted[0]), max(before[1], counted[1])
        self._messages[known] = counted, is_main
        if len(self._messages) > self._REMEMBERED:
            tokens, main = self._messages.pop(next(iter(self._messages)))
            self._forgotten[main] = _sum(self._forgotten[main], tokens)

    def end(self, usage: Json, models: Json) -> None:
        """Count what the result says instead of the messages before it."""
        by_model = _count(map(mapping_in, mapping_in(models).values()), _IN_MODELS)
        main = _count([mapping_in(usage)], _IN_MESSAGES)
        if by_model is not None and any(by_model):
            self._result = by_model
        elif main is not None and any(main):
            self._result = _sum(main, self._since(main=False))
        else:
            return
        self._messages.clear()
        self._forgotten = {True: (0, 0), False: (0, 0)}

    def _since(self, *, main: bool) -> _Tokens:
        """Return the tokens since the last result: of the main conversation, or of sub-agents."""
        total = self._forgotten[main]
        for tokens, is_main in self._messages.values():
            if is_main == main:
                total = _sum(total, tokens)
        return total


def _count(usages: Any, names: tuple[str, ...]) -> _Tokens | None:
    """Return the tokens of prompts, of which the last name is none, and of completions."""
    found = [[tokens_in(usage.get(name)) for name in names] for usage in usages]
    if all(number is None for numbers in found for number in numbers):
        return None
    prompt = sum(number or 0 for *numbers, _ in found for number in numbers)
    return prompt, sum(numbers[-1] or 0 for numbers in found)


def _sum(one: _Tokens, other: _Tokens) -> _Tokens:
    return one[0] + other[0], one[1] + other[1]
