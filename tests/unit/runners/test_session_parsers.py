"""The events and the summary of agents' sessions, as the real programs printed them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mulligan.policies.jobs.job import Usage
from mulligan.tasks.ports.sessions import SessionEvent
from mulligan.workers.runners.sessions.bounded_json import LONGEST_TEXT
from mulligan.workers.runners.sessions.output_lines import LONGEST_LINE
from mulligan.workers.runners.sessions.session_formats import SESSION_FORMATS, FormatName
from mulligan.workers.runners.sessions.session_parser import SessionParser, SessionSummary

RECORDED = Path(__file__).resolve().parents[2] / "fixtures" / "agent_sessions"
#: The answer of the sessions that go well.
ANSWER = "`total` rounds to cents now, and the test passes."
AGENTS = pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
RULE = "=" * 60


def recorded(name: str) -> bytes:
    return (RECORDED / f"{name}.jsonl").read_bytes()


def parser_of(name: str) -> SessionParser:
    kind: Any = name.partition("_")[0]
    return SESSION_FORMATS[kind]()


def read(name: str, data: bytes | None = None) -> tuple[list[SessionEvent], SessionSummary]:
    """Return the events and the summary of a session, read in chunks that end anywhere."""
    parser, data = parser_of(name), recorded(name) if data is None else data
    chunks = [data[start : start + 777] for start in range(0, len(data), 777)]
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return [*events, *parser.finish()], parser.summary


def lines_of(*events: dict[str, Any]) -> bytes:
    return b"\n".join(json.dumps(event).encode() for event in events)


def story(events: list[SessionEvent]) -> list[tuple[str, str, str]]:
    """Return what happened: kind, name and the first line of the text."""
    return [(e.kind, e.name, e.text.split("\n")[0][:60]) for e in events if e.kind != "usage"]


def totals(events: list[SessionEvent]) -> list[int | None]:
    return [event.usage.total_tokens for event in events if event.usage is not None]


# -- sessions that go well -------------------------------------------------------------------------


def test_a_session_of_claude_code() -> None:
    events, summary = read("claude_success")
    assert story(events) == [
        ("text", "thinking", "The test says what to expect."),
        ("text", "", "I'll look at the module."),
        ("action", "Read", "/private/copy/cart.py"),
        ("observation", "Read", "1\tdef total(prices):"),
        ("action", "Edit", "/private/copy/cart.py"),
        ("observation", "Edit", "The file /private/copy/cart.py has been updated successfully"),
        ("text", "", "Now the test."),
        ("action", "Bash", "python3 -m unittest -q"),
        ("observation", "Bash", "Exit code 1"),
        ("text", "", "It has to round to cents."),
        ("action", "Edit", "/private/copy/cart.py"),
        ("observation", "Edit", "The file /private/copy/cart.py has been updated successfully"),
        ("action", "Bash", "python3 -m unittest -q"),
        ("observation", "Bash", "-" * 60),
        ("text", "", ANSWER),
    ]
    assert [event.ref for event in events if event.failed] == ["toolu_msg_main_2"]
    assert (summary.failed, summary.error, summary.refused) == (False, "", None)
    # The first event has `claude-opus-4-8[1m]`, which no API calls it.
    assert summary.model == "claude-opus-4-8"
    assert summary.cost_usd == pytest.approx(0.051195)


def test_a_sub_agent_of_claude_code() -> None:
    """Its last message is not in the stream: it is the result of the tool."""
    events, _ = read("claude_subagent")
    assert story(events)[4:] == [
        ("action", "Agent", "List every caller of total()"),
        ("action", "Bash", "grep -rn total ."),
        ("observation", "Bash", "cart.py:1:def total(prices):"),
        ("observation", "Agent", "Only test_cart.py calls it."),
        ("text", "", "`total` has no callers but its test."),
    ]


def test_a_session_of_codex() -> None:
    events, summary = read("codex_success")
    assert story(events) == [
        ("text", "thinking", "**Looking at the module**"),
        ("text", "", "I'll look at the module."),
        ("action", "command_execution", "/usr/bin/bash -lc 'cat cart.py'"),
        ("observation", "command_execution", "def total(prices):"),
        ("action", "file_change", "update /private/copy/cart.py"),
        ("observation", "file_change", "completed"),
        ("text", "", "Now the test."),
        ("action", "command_execution", "/usr/bin/bash -lc 'python3 -m unittest -q'"),
        ("observation", "command_execution", RULE),
        ("text", "", "It has to round to cents."),
        ("action", "file_change", "update /private/copy/cart.py"),
        ("observation", "file_change", "completed"),
        ("action", "command_execution", "/usr/bin/bash -lc 'python3 -m unittest -q'"),
        ("observation", "command_execution", "-" * 60),
        ("text", "", ANSWER),
    ]
    assert [event.ref for event in events if event.failed] == ["item_5"]
    assert (summary.failed, summary.error, summary.refused) == (False, "", None)
    assert summary.usage == Usage(prompt_tokens=31500, completion_tokens=360, total_tokens=31860)


def test_other_tools_of_codex() -> None:
    events, _ = read("codex_tools")
    assert story(events)[0] == (
        "note", "", "Model metadata for `gpt-5.1-codex` not found. Defaulting to "
    )  # fmt: skip
    assert story(events)[2:] == [
        ("text", "", "I'll ask around."),
        ("action", "docs.search", "round to cents"),
        ("observation", "docs.search", "round(number, ndigits)"),
        ("action", "docs.fetch", "page 404"),
        ("observation", "docs.fetch", "no such page"),
        ("action", "web_search", "python round half even"),
        ("observation", "web_search", ""),
        ("action", "spawn_agent", "List every caller of total()"),
        ("observation", "spawn_agent", "pending_init"),
        ("action", "wait", '{"to": ["00000000-0000-4000-8000-000000000002"]}'),
        ("observation", "wait", "Only test_cart.py calls it."),
        ("text", "", "Nobody else calls it."),
        ("text", "", "Nobody else calls it."),
    ]
    assert [event.name for event in events if event.failed] == ["docs.fetch"]


def test_a_session_of_gemini_cli() -> None:
    """Gemini CLI does not say that a command failed: its tool ran."""
    events, summary = read("gemini_success")
    assert story(events) == [
        ("text", "", "I'll look at the module."),
        ("action", "read_file", "/private/copy/cart.py"),
        ("observation", "read_file", ""),
        ("action", "replace", "/private/copy/cart.py"),
        ("observation", "replace", ""),
        ("text", "", "Now the test."),
        ("action", "run_shell_command", "python3 -m unittest -q"),
        ("observation", "run_shell_command", RULE),
        ("text", "", "It has to round to cents."),
        ("action", "replace", "/private/copy/cart.py"),
        ("observation", "replace", ""),
        ("action", "run_shell_command", "python3 -m unittest -q"),
        ("observation", "run_shell_command", "-" * 60),
        ("text", "", ANSWER),
    ]
    assert not any(event.failed for event in events)
    # It begins with the model `auto`. Its output of 260 tokens lacks 90 of thoughts.
    assert (summary.failed, summary.model) == (False, "gemini-3.8-flash")
    assert summary.usage == Usage(prompt_tokens=38200, completion_tokens=350, total_tokens=38550)


def test_events_that_no_recording_has() -> None:
    """Written by hand: what the programs document, and what a later version may add."""
    todo = {"id": "1", "type": "todo_list", "items": [{"text": "Round", "completed": False}]}
    command = {"id": "2", "type": "command_execution", "command": "rm -rf /"}
    change = {"id": "3", "type": "file_change", "changes": [{"path": "a.py", "kind": "add"}]}
    poem = {"id": "4", "type": "poem", "text": "of a type that does not exist"}
    assert story(read("codex", lines_of(
        {"type": "item.started", "item": todo},
        {"type": "item.updated", "item": todo},
        {"type": "item.plan.delta", "item_id": "5", "delta": "1. Ver"},
        {"type": "item.completed", "item": {**command, "status": "declined"}},
        {"type": "item.completed", "item": {**change, "status": "completed"}},
        {"type": "item.completed", "item": poem},
    ))[0]) == [
        ("text", "todo_list", "[ ] Round"),
        ("action", "command_execution", "rm -rf /"),
        ("observation", "command_execution", ""),
        ("action", "file_change", "add a.py"),
        ("observation", "file_change", "completed"),
        ("note", "", 'event poem: {"id": "4", "type": "poem", "text": "of a type t'),
    ]  # fmt: skip
    assert story(read("gemini", lines_of(
        {"type": "error", "severity": "warning", "message": "Loop detected"},
        {"type": "tool_use", "tool_name": "replace", "tool_id": "1", "parameters": {"path": "a"}},
        {"type": "tool_result", "tool_id": "1", "status": "error",
         "error": {"type": "edit_no_occurrence_found", "message": "0 occurrences found"}},
    ))[0]) == [
        ("note", "", "warning: Loop detected"),
        ("action", "replace", "a"),
        ("observation", "replace", "0 occurrences found"),
    ]  # fmt: skip
    said = {"content": [{"type": "text", "text": "It is fine."}]}
    assert story(read("claude", lines_of(
        {"type": "prompt_suggestion", "suggestion": "Commit this"},
        {"type": "assistant", "message": said, "parent_tool_use_id": "toolu_1"},
    ))[0]) == [
        ("note", "", 'event prompt_suggestion: {"type": "prompt_suggestion", "sugg'),
        ("text", "sub-agent", "It is fine."),
    ]  # fmt: skip


def test_plain_text_is_one_event_a_line() -> None:
    events, summary = read("text", b"one\r\n\n  two\nthree")
    assert [(event.kind, event.text) for event in events] == [
        ("text", "one"), ("text", "  two"), ("text", "three"),
    ]  # fmt: skip
    assert summary == SessionSummary(failed=False)


@AGENTS
def test_the_answer_is_the_last_message(name: str) -> None:
    assert read(f"{name}_success")[1].answer == ANSWER


@AGENTS
def test_chunks_may_end_anywhere(name: str) -> None:
    data, parser = recorded(f"{name}_success"), parser_of(name)
    one_by_one = [event for byte in data for event in parser.feed(bytes([byte]))]
    assert [*one_by_one, *parser.finish()] == read(f"{name}_success")[0]
    assert parser.summary.answer == ANSWER


def test_what_a_model_says_about_a_command_is_not_compared() -> None:
    """Given agents that describe the commands that they run."""
    for name in ("claude_success", "gemini_success"):
        actions = [event for event in read(name)[0] if "command" in event.data]
        assert actions
        assert all("description" not in action.data for action in actions)
    # Then the description of a sub-agent's task, which is no command, stays.
    events = read("claude_subagent")[0]
    (task,) = (each for each in events if (each.kind, each.name) == ("action", "Agent"))
    assert task.data["description"] == "Find callers"


# -- tokens ----------------------------------------------------------------------------------------


def test_the_tokens_of_claudes_messages_count_once_and_with_sub_agents() -> None:
    """A message comes in one event for each block, all with the tokens of the whole message."""
    events, summary = read("claude_subagent")
    # 4 + 300 + 8000 + 1; 5 + 400 + 8000 + 1; of the sub-agent 4 + 300 + 8000 + 1;
    # 6 + 500 + 8000 + 1; then the result by model, with the sub-agent's last message.
    assert totals(events) == [8305, 16711, 25016, 33523, 42128]
    # 24 + 1900 + 40000, and 204.
    assert summary.usage == Usage(prompt_tokens=41924, completion_tokens=204, total_tokens=42128)


def test_an_older_result_without_models_does_not_count_sub_agents() -> None:
    """Then those of the sub-agents' messages are added to it."""
    *lines, last = recorded("claude_subagent").splitlines()
    result = json.loads(last)
    del result["modelUsage"]
    _, summary = read("claude", b"\n".join([*lines, json.dumps(result).encode()]))
    # The main conversation: 15 + 1200 + 24000 and 123. The sub-agent: 4 + 300 + 8000 and 1.
    assert summary.usage == Usage(prompt_tokens=33519, completion_tokens=124, total_tokens=33643)


@pytest.mark.parametrize(
    ("name", "answer", "tokens"),
    [
        ("claude_killed", "Now the test.", 25218),
        # The others report tokens at the end.
        ("codex_killed", "Now the test.", None),
        ("gemini_killed", "It has to round to cents.", None),
    ],
)
def test_a_session_that_was_cut_off_has_what_it_said_so_far(
    name: str, answer: str, tokens: int | None
) -> None:
    _, summary = read(name)
    assert (summary.failed, summary.answer) == (None, answer)
    assert summary.usage.total_tokens == tokens


def test_a_later_turn_of_codex_replaces_the_tokens_of_the_thread() -> None:
    turns = lines_of(
        {"type": "turn.completed", "usage": {"input_tokens": 100, "output_tokens": 10}},
        {"type": "turn.completed", "usage": {"input_tokens": 250, "output_tokens": 30}},
    )
    events, summary = read("codex", turns)
    assert totals(events) == [110, 280]
    assert summary.usage.total_tokens == 280


@pytest.mark.parametrize(
    "event",
    [
        {"type": "turn.completed", "usage": {"input_tokens": 0, "output_tokens": 0}},
        {"type": "turn.completed", "usage": {"input_tokens": -5, "output_tokens": True}},
        {"type": "turn.completed", "usage": {"input_tokens": 10**13}},
        {"type": "turn.completed", "usage": None},
        {"type": "turn.completed"},
    ],
)
def test_unknown_tokens_are_not_zero(event: dict[str, Any]) -> None:
    events, summary = read("codex", json.dumps(event).encode())
    assert summary.usage == Usage()
    assert totals(events) == []
    assert summary.failed is False


# -- sessions that fail ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "refused", "code", "resets_at"),
    [
        ("claude_max_turns", None, "", None),
        ("claude_used_up", "credits", "rate_limit", 1795100000.0),
        ("claude_credit", "credits", "billing_error", None),
        # Its message has the error `unknown`, its result the status 402.
        ("claude_billing", "credits", "billing_error", None),
        ("claude_rate", "busy", "rate_limit", None),
        # An overloaded API is a `server_error` at last, and the result has no status.
        ("claude_overloaded", "busy", "server_error", None),
        ("claude_key", "key", "authentication_failed", None),
        # Codex has only a sentence, which anything may quote.
        ("codex_credit", None, "", None),
        ("codex_used_up", None, "", None),
        ("codex_rate", None, "", None),
        ("codex_overloaded", None, "", None),
        ("codex_key", None, "", None),
        # So has Gemini CLI: its exit code tells.
        ("gemini_credit", None, "", None),
        ("gemini_max_turns", None, "", None),
        ("gemini_used_up", "credits", "TerminalQuotaError", None),
    ],
)
def test_only_a_structured_code_is_a_refusal(
    name: str, refused: str | None, code: str, resets_at: float | None
) -> None:
    _, summary = read(name)
    assert summary.failed
    assert (summary.refused, summary.code, summary.resets_at) == (refused, code, resets_at)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("claude_max_turns", "Reached maximum number of turns (2)"),
        ("claude_credit", "Credit balance is too low"),
        ("codex_credit", "Quota exceeded. Check your plan and billing details."),
        ("codex_rate", "exceeded retry limit, last status: 429 Too Many Requests"),
        ("gemini_overloaded", "[API Error: The model is overloaded. Please try again later.]"),
    ],
)
def test_a_failed_session_says_why(name: str, error: str) -> None:
    _, summary = read(name)
    assert summary.error == error
    # Then the error is not what the agent said last.
    assert summary.answer == "I'll look at the module."


def test_an_error_from_which_codex_recovers_is_no_failure() -> None:
    """Given a stream that was interrupted and a turn that was completed."""
    *lines, _ = recorded("codex_rate").splitlines()
    end = {"type": "turn.completed", "usage": {"input_tokens": 5, "output_tokens": 1}}
    _, summary = read("codex", b"\n".join([*lines, json.dumps(end).encode()]))
    assert (summary.failed, summary.error) == (False, "")


def test_an_error_from_which_claude_recovers_is_no_refusal() -> None:
    """Given a call that was refused, and a session that ends for another reason."""
    *lines, _ = recorded("claude_used_up").splitlines()
    later = recorded("claude_max_turns").splitlines()
    _, summary = read("claude", b"\n".join([*lines, *later]))
    assert summary.failed
    assert summary.refused is None


def test_a_quota_that_is_used_up_is_no_rate_of_an_api() -> None:
    """Given the same refusal without an event that rejects: the provider only asks to wait."""
    lines = [line for line in recorded("claude_used_up").splitlines() if b"rejected" not in line]
    assert read("claude", b"\n".join(lines))[1].refused == "busy"


def test_an_empty_result_is_the_last_message() -> None:
    """Given the result of a version of Claude Code that forgot it."""
    *lines, last = recorded("claude_success").splitlines()
    empty = json.dumps({**json.loads(last), "result": ""}).encode()
    assert read("claude", b"\n".join([*lines, empty]))[1].answer == ANSWER


# -- damaged sessions ------------------------------------------------------------------------------


def damaged(name: str) -> bytes:
    """Return a session with other lines in between, and Windows' ends of lines."""
    lines = recorded(name).splitlines()
    lines.insert(1, b"Loaded cached credentials.")
    lines.insert(3, lines[4][: len(lines[4]) // 2])
    lines.insert(4, b'{"type": "message", "content": "\xff\xfe half a character: \xe2\x82"}')
    lines.insert(5, b'"only a text"')
    lines.insert(6, b"[1, 2]")
    lines.insert(7, b'{"type": "text", "text": "' + b"x" * (LONGEST_LINE + 10) + b'"}')
    lines.insert(8, b"[" * 100_000)
    lines.insert(9, b'{"type": {"a": 1}, "number": 1e999, "other": NaN, "large": ' + b"9" * 5000)
    return b"\r\n".join(lines)


@AGENTS
def test_damaged_lines_do_not_hide_the_others(name: str) -> None:
    events, summary = read(f"{name}_success", damaged(f"{name}_success"))
    good = [event for event in read(f"{name}_success")[0] if event.kind != "text"]
    assert [event for event in events if event in good] == good
    assert (summary.failed, summary.answer) == (False, ANSWER)
    assert "Loaded cached credentials." in [event.text for event in events]
    (note,) = (event for event in events if "is left out" in event.text and event.kind == "note")
    assert note.text.startswith("a line of about 10486")
    assert max(len(event.text) for event in events) < LONGEST_TEXT + 100


def test_long_texts_and_arguments_are_cut_but_remain_different() -> None:
    def written(content: str) -> SessionEvent:
        block = {"type": "tool_use", "id": "t", "name": "Write", "input": {"content": content}}
        event = {"type": "assistant", "message": {"content": [block]}}
        ((action),) = read("claude", json.dumps(event).encode())[0]
        return action

    one, other = written("a" * 50_000 + "1"), written("a" * 50_000 + "2")
    assert one.data != other.data
    assert len(json.dumps(one.data)) < 5000
    assert len(one.text) < 20_000


def test_a_session_of_a_million_messages_needs_little_memory() -> None:
    """Given agents that never end an action, and messages that come once."""
    parser = SESSION_FORMATS["claude"]()
    for number in range(3000):
        block = {"type": "tool_use", "id": f"t{number}", "name": "Read", "input": {}}
        use = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": f"m{number}", "content": [block], "usage": use}
        parser.feed(json.dumps({"type": "assistant", "message": message}).encode() + b"\n")
    assert parser.summary.usage.total_tokens == 6000
    names = getattr(parser, "_names")  # noqa: B009 - private
    assert len(names) <= 1000


# -- secrets ---------------------------------------------------------------------------------------


SECRET = "sk-4711-secret"


def said(name: str, text: str) -> dict[str, Any]:
    """Return an event in which an agent says something."""
    tool = {"type": "tool_use", "id": "1", "name": SECRET, "input": {SECRET: text}}
    events: dict[str, dict[str, Any]] = {
        "claude": {"type": "assistant",
                   "message": {"content": [{"type": "text", "text": text}, tool]}},
        "codex": {"type": "item.completed",
                  "item": {"id": "1", "type": "agent_message", "text": text}},
        "gemini": {"type": "message", "role": "assistant", "content": text},
    }  # fmt: skip
    return events[name]


@AGENTS
def test_secrets_are_removed_before_texts_are_cut(name: FormatName) -> None:
    parser = SESSION_FORMATS[name](redact=lambda text: text.replace(SECRET, "***"))
    texts = ["x" * n + SECRET + "y" * 2 * LONGEST_TEXT for n in range(8170, 8195)]
    given = [said(name, text) for text in texts]
    if name == "gemini":  # its messages come in pieces, of which any may end within a secret
        pieces = ("z" * 8185, " ", *SECRET, " and more")
        given += [said(name, piece) | {"delta": True} for piece in pieces]
    given.append({"type": "other", "t": SECRET})
    events = [event for each in given for event in parser.feed(json.dumps(each).encode() + b"\n")]
    assert events
    assert SECRET not in parser.summary.answer
    assert "sk-4711" not in repr(events)
