"""The events and the summary of agents' sessions, in the formats that they really print."""

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
#: A session that goes well in each format, and its answer.
GOOD: list[tuple[FormatName, str]] = [
    ("claude", "`total` rounds to cents now, and tests/test_cart.py passes."),
    ("codex", "`total` rounds to cents now."),
    ("gemini", "`total` rounds to cents now."),
]


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


def story(events: list[SessionEvent]) -> list[tuple[str, str, str]]:
    """Return what happened: kind, name and the first line of the text."""
    return [(e.kind, e.name, e.text.split("\n")[0][:60]) for e in events if e.kind != "usage"]


def totals(events: list[SessionEvent]) -> list[int | None]:
    return [event.usage.total_tokens for event in events if event.usage is not None]


# -- sessions that go well -------------------------------------------------------------------------


def test_a_session_of_claude_code() -> None:
    events, summary = read("claude_success")
    assert story(events) == [
        ("text", "thinking", "The test expects a rounded total. I should read the module f"),
        ("text", "", "I'll look at the failing test and the module."),
        ("action", "Read", "/private/copy/shop/cart.py"),
        ("action", "Bash", "python -m pytest -q tests/test_cart.py"),
        ("observation", "Read", "     1\tdef total(prices):"),
        ("observation", "Bash", "Exit code 1"),
        ("action", "Task", "List every caller of total()"),
        ("action", "Grep", "total\\("),
        ("observation", "Grep", "shop/report.py:12:    total(row.prices)"),
        ("text", "sub-agent", "Only shop/report.py calls it."),
        ("observation", "Task", "Only shop/report.py calls it."),
        ("action", "Edit", "/private/copy/shop/cart.py"),
        ("observation", "Edit", "The file /private/copy/shop/cart.py has been updated."),
        ("note", "", 'event prompt_suggestion: {"type": "prompt_suggestion", "sugg'),
        ("text", "", "`total` rounds to cents now, and tests/test_cart.py passes."),
    ]
    assert [event.ref for event in events if event.failed] == ["toolu_01Bash"]
    assert (summary.failed, summary.error, summary.refused) == (False, "", None)
    assert summary.model == "claude-sonnet-4-5-20250929"
    assert summary.cost_usd == 0.0812345


def test_a_session_of_codex() -> None:
    events, summary = read("codex_success")
    assert story(events) == [
        ("note", "", "A feature that is on is not finished: skills."),
        ("text", "thinking", "**Looking at the failing test**"),
        ("text", "todo_list", "[ ] Reproduce the failure"),
        ("action", "command_execution", "bash -lc 'python -m pytest -q tests/test_cart.py'"),
        ("observation", "command_execution", "F"),
        ("text", "todo_list", "[x] Reproduce the failure"),
        ("text", "", "The total is not rounded. I'll fix that."),
        ("action", "docs.search", "decimal rounding"),
        ("observation", "docs.search", "round(number, ndigits)"),
        ("action", "docs.fetch", '{"page": 404}'),
        ("observation", "docs.fetch", "no such page"),
        ("action", "web_search", "python round half even"),
        ("observation", "web_search", ""),
        ("action", "file_change", "update /private/copy/shop/cart.py, add /private/copy/shop/mo"),
        ("observation", "file_change", "completed"),
        ("action", "spawn_agent", "Check shop/report.py"),
        ("observation", "spawn_agent", "It is fine."),
        ("action", "command_execution", "bash -lc 'rm -rf /'"),
        ("observation", "command_execution", ""),
        ("note", "", 'event hook.progress: {"type": "hook.progress", "hook": "post'),
        ("note", "", 'event poem: {"id": "item_12", "type": "poem", "text": "A typ'),
        ("text", "todo_list", "[x] Reproduce the failure"),
        ("text", "", "`total` rounds to cents now."),
    ]
    assert [event.ref for event in events if event.failed] == ["item_3", "item_6", "item_11"]
    assert (summary.failed, summary.error, summary.refused) == (False, "", None)
    assert summary.usage == Usage(prompt_tokens=26549, completion_tokens=1590, total_tokens=28139)


def test_a_session_of_gemini_cli() -> None:
    events, summary = read("gemini_success")
    assert story(events) == [
        ("text", "", "I will read the module first."),
        ("action", "read_file", '{"absolute_path": "/private/copy/shop/cart.py"}'),
        ("observation", "read_file", ""),
        ("action", "run_shell_command", "python -m pytest -q"),
        ("observation", "run_shell_command", "Exit Code: 1"),
        ("note", "", "warning: The same call was made three times."),
        ("action", "replace", "/private/copy/shop/cart.py"),
        ("observation", "replace", "0 occurrences found"),
        ("note", "", 'event session_summary: {"type": "session_summary", "timestam'),
        ("text", "", "`total` rounds to cents now."),
    ]
    assert [event.name for event in events if event.failed] == ["run_shell_command", "replace"]
    assert (summary.failed, summary.model) == (False, "gemini-2.5-pro")
    assert summary.usage == Usage(prompt_tokens=29800, completion_tokens=950, total_tokens=31250)


def test_plain_text_is_one_event_a_line() -> None:
    events, summary = read("text", b"one\r\n\n  two\nthree")
    assert [(event.kind, event.text) for event in events] == [
        ("text", "one"), ("text", "  two"), ("text", "three"),
    ]  # fmt: skip
    assert summary == SessionSummary(failed=False)


@pytest.mark.parametrize(("name", "answer"), GOOD)
def test_the_answer_is_the_last_message(name: str, answer: str) -> None:
    assert read(f"{name}_success")[1].answer == answer


@pytest.mark.parametrize(("name", "answer"), GOOD)
def test_chunks_may_end_anywhere(name: str, answer: str) -> None:
    data, parser = recorded(f"{name}_success"), parser_of(name)
    one_by_one = [event for byte in data for event in parser.feed(bytes([byte]))]
    assert [*one_by_one, *parser.finish()] == read(f"{name}_success")[0]
    assert parser.summary.answer == answer


def test_what_a_model_says_about_a_command_is_not_compared() -> None:
    """Given agents that describe the commands that they run."""
    for name in ("claude_success", "gemini_success"):
        actions = [event for event in read(name)[0] if "command" in event.data]
        assert actions
        assert all("description" not in action.data for action in actions)
    # Then the description of a sub-agent's task, which is no command, stays.
    events = read("claude_success")[0]
    (task,) = (each for each in events if (each.kind, each.name) == ("action", "Task"))
    assert task.data["description"] == "Find other callers"


# -- tokens ----------------------------------------------------------------------------------------


def test_the_tokens_of_claudes_messages_count_once_and_with_sub_agents() -> None:
    """A message comes in one event for each block, all with the tokens of the whole message."""
    events, summary = read("claude_success")
    # msg_01A: 4 + 11208 + 3; msg_02B: 6 + 412 + 11208 + 1; sub-agents: 5215 and 5 + 180 + 5210 + 4;
    # msg_03C: 8 + 655 + 11620 + 5; msg_04D: 9 + 240 + 12275 + 2; then the result by model.
    assert totals(events) == [11215, 22842, 28057, 33456, 45744, 58270, 59526]
    # 27 + 12515 + 35103 and 210 + 5390 + 5210; 911 and 160.
    assert summary.usage == Usage(prompt_tokens=58455, completion_tokens=1071, total_tokens=59526)


def test_an_older_result_without_models_does_not_count_sub_agents() -> None:
    """Then those of the sub-agents' messages are added to it."""
    *lines, last = recorded("claude_success").splitlines()
    result = json.loads(last)
    del result["modelUsage"]
    _, summary = read("claude", b"\n".join([*lines, json.dumps(result).encode()]))
    # The main conversation: 27 + 12515 + 35103 and 911. Sub-agents: 5213 + 5395 and 2 + 4.
    assert summary.usage == Usage(prompt_tokens=58253, completion_tokens=917, total_tokens=59170)


def test_a_session_that_was_cut_off_has_what_it_said_so_far() -> None:
    lines = recorded("claude_success").splitlines(keepends=True)
    _, summary = read("claude", b"".join(lines[:9]))
    assert summary.failed is None
    assert summary.answer == "I'll look at the failing test and the module."
    assert summary.usage.total_tokens == 22842


def test_a_later_turn_of_codex_replaces_the_tokens_of_the_thread() -> None:
    turns = (
        {"type": "turn.completed", "usage": {"input_tokens": 100, "output_tokens": 10}},
        {"type": "turn.completed", "usage": {"input_tokens": 250, "output_tokens": 30}},
    )
    events, summary = read("codex", b"\n".join(json.dumps(turn).encode() for turn in turns))
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
        ("claude_used_up", "credits", "rate_limit", 1774450800.0),
        ("claude_unpaid", "credits", "billing_error", None),
        ("claude_busy", "busy", "overloaded", None),
        # Codex has only a sentence, which anything may quote.
        ("codex_failed", None, "", None),
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
        ("claude_max_turns", "The limit of 6 turns is reached"),
        ("claude_unpaid", "The credits of this account are used up"),
        ("codex_failed", "The usage of this account is at its limit until 10 pm."),
        ("gemini_used_up", "The quota of this day is used up."),
    ],
)
def test_a_failed_session_says_why(name: str, error: str) -> None:
    assert read(name)[1].error == error


def test_an_error_from_which_codex_recovers_is_no_failure() -> None:
    """Given a stream that was interrupted and a turn that was completed."""
    *lines, _ = recorded("codex_failed").splitlines()
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
    assert read("claude", b"\n".join([*lines, empty]))[1].answer == GOOD[0][1]


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


@pytest.mark.parametrize(("name", "answer"), GOOD)
def test_damaged_lines_do_not_hide_the_others(name: str, answer: str) -> None:
    events, summary = read(f"{name}_success", damaged(f"{name}_success"))
    good = [event for event in read(f"{name}_success")[0] if event.kind != "text"]
    assert [event for event in events if event in good] == good
    assert (summary.failed, summary.answer) == (False, answer)
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


@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
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
