"""Nothing that an agent prints raises an error or grows without a limit."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.policies.jobs.job import Output
from mulligan.tasks.ports.sessions import EventKind, SessionEvent
from mulligan.workers.runners.sessions.bounded_json import LONGEST_TEXT, BoundedCopy
from mulligan.workers.runners.sessions.session_formats import SESSION_FORMATS, FormatName
from mulligan.workers.runners.sessions.session_parser import SessionSummary, unchanged
from mulligan.workers.runners.sessions.transcript import TranscriptWriter, read_transcript

RECORDED = Path(__file__).resolve().parents[2] / "fixtures" / "agent_sessions"
LINES = [
    line for path in sorted(RECORDED.glob("*.jsonl")) for line in path.read_bytes().splitlines()
]


def words(value: Any) -> set[str]:
    """Return the names and the short texts in a session: what a format gives a meaning."""
    if isinstance(value, dict):
        return {*value, *(word for each in value.values() for word in words(each))}
    if isinstance(value, list):
        return {word for each in value for word in words(each)}
    return {value} if isinstance(value, str) and len(value) < 25 else set()


WORDS = sorted({word for line in LINES for word in words(json.loads(line))})
#: More of them find more: `HOSTILE_EXAMPLES=5000 pytest …`.
EXAMPLES = int(os.environ.get("HOSTILE_EXAMPLES", "40"))
HALVES = st.text(st.characters(codec=None), max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | HALVES
    | st.sampled_from([10**30, -1, 0, 1e308, "x" * 20_000, "\ud800", "\x00", "\u2028"]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(WORDS) | HALVES, inner, max_size=6),
    max_leaves=20,
)  # fmt: skip


def check(kind: FormatName, data: bytes) -> tuple[list[SessionEvent], SessionSummary]:
    """Read a session in two chunks, and check everything that it becomes."""
    parser = SESSION_FORMATS[kind]()
    half = len(data) // 2
    events = [*parser.feed(data[:half]), *parser.feed(data[half:]), *parser.finish()]
    for event in events:
        assert event.kind in get_args(EventKind)
        assert len(event.text) <= LONGEST_TEXT + 200
        assert len(event.name) <= 200
        assert len(json.dumps(event.data, allow_nan=False)) <= 20 * LONGEST_TEXT
        f"{event.text}{event.name}{event.ref}{event.data}".encode()
    summary = parser.summary
    Output(text=summary.answer, usage=summary.usage, model=summary.model).model_dump_json()
    assert summary.usage.total_tokens != 0
    return events, summary


def check_all(data: bytes) -> None:
    for kind in SESSION_FORMATS:
        check(kind, data)


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_events_with_the_right_words_and_wrong_types(data: st.DataObject) -> None:
    events = data.draw(st.lists(st.dictionaries(st.sampled_from(WORDS), VALUES), max_size=5))
    for event in events:
        event["type"] = data.draw(st.sampled_from(WORDS) | VALUES)
    check_all("\n".join(map(json.dumps, events)).encode())


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_real_events_with_a_value_replaced(data: st.DataObject) -> None:
    lines = []
    for line in data.draw(st.lists(st.sampled_from(LINES), max_size=6)):
        event = json.loads(line)
        place: Any = event
        while data.draw(st.booleans()):
            inner = [key for key, value in _items(place) if isinstance(value, dict | list)]
            if not inner:
                break
            place = place[data.draw(st.sampled_from(inner))]
        keys = [key for key, _ in _items(place)]
        if keys:
            place[data.draw(st.sampled_from(keys))] = data.draw(VALUES)
        lines.append(json.dumps(event))
    check_all("\n".join(lines).encode())


def _items(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items()) if isinstance(value, dict) else list(enumerate(value))


@settings(max_examples=EXAMPLES)
@given(data=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes(data: bytes) -> None:
    check_all(data)


@pytest.mark.parametrize("kind", SESSION_FORMATS)
def test_real_sessions_with_damaged_bytes(kind: FormatName) -> None:
    chance = random.Random(kind)  # the same damage in every run
    for _ in range(10):
        damaged = bytearray(b"\n".join(LINES))
        for _ in range(100):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        check(kind, bytes(damaged))


@pytest.mark.parametrize("kind", SESSION_FORMATS)
@pytest.mark.parametrize(
    "line",
    [
        b'{"type": "assistant", "message": {"content": ' + b"[" * 900 + b"]" * 900 + b"}}",
        b'{"type": "item.completed", "item": ' + b'{"item": ' * 900 + b"1" + b"}" * 901,
        b'{"type": "tool_use", "parameters": {"a": [' + b'{"b": [1, 2]}, ' * 20_000 + b"1]}}",
        b'{"type": "assistant", "message": {"content": [{"type": "tool_use", "input": '
        + json.dumps({f"{n}": ["x" * 50] * 20 for n in range(500)}).encode()
        + b"}]}}",
        b'{"type": "turn.completed", "usage": {"input_tokens": ' + b"9" * 4000 + b"}}",
        b'{"type": "result", "is_error": true, "total_cost_usd": ' + b"9" * 4000 + b"}",
        b'{"type": "result", "stats": {"total_tokens": 1e400}, "api_error_status": [402]}',
    ],
)
def test_explosive_lines(kind: FormatName, line: bytes) -> None:
    check(kind, line)


@settings(max_examples=EXAMPLES)
@given(value=VALUES)
def test_a_copy_of_data_is_small_and_can_be_stored(value: Any) -> None:
    finite = json.loads(json.dumps(value), parse_constant=lambda _name: None)
    copied = BoundedCopy(unchanged).of(finite)
    assert len(json.dumps(copied, allow_nan=False)) < 10 * LONGEST_TEXT


@settings(max_examples=EXAMPLES)
@given(text=HALVES, name=HALVES, data=st.dictionaries(HALVES, VALUES, max_size=3))
def test_any_event_has_one_line_in_a_transcript(text: str, name: str, data: Any) -> None:
    transcript = TranscriptWriter(clock=lambda: 1.0)
    transcript.emit(SessionEvent(kind="text", text=text, name=name, data=data))
    (line,) = read_transcript(transcript.files())
    assert line["seq"] == 1
