"""The tools for agents: their requests, schemas and hints, and what is wrong about a call."""

from __future__ import annotations

import json
import re
from contextlib import closing
from typing import Any

import jsonschema_rs
import pytest
from mcp.types import TextContent
from support.loops import item

from mulligan.client.http_requests import ConsoleConnection
from mulligan.console.app import create_console
from mulligan.console.http.context import open_context
from mulligan.console.mcp.bounded_answer import ANSWER_LENGTH
from mulligan.console.mcp.loop_tools import INSTRUCTIONS, TOOLS
from mulligan.console.mcp.tool_call import input_schema
from mulligan.console.mcp.tool_server import answer, read_call, tool_document
from mulligan.policies.problem import MOST_REPORTED
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.settings.model import Settings

LOOP = {"name": "a", "runner": "default"}
#: Calls, and the requests that they make.
REQUESTS: list[tuple[str, dict[str, Any], str, dict[str, Any] | None]] = [
    ("list_loops", {}, "GET /api/loops?limit=50", None),
    ("list_loops", {"state": "paused", "limit": 1}, "GET /api/loops?state=paused&limit=1", None),
    ("get_loop", {"loop": "a"}, "GET /api/loops/a", None),
    ("loop_health", {"loop": "a"}, "GET /api/loops/a/health", None),
    ("loop_log", {"loop": "a"}, "GET /api/loops/a/log?limit=30", None),
    ("loop_report", {"loop": "a"}, "GET /api/loops/a/report?limit=20", None),
    ("why", {"loop": "a"}, "GET /api/loops/a/why", None),
    ("why", {"loop": "a", "item": "x"}, "GET /api/loops/a/why?test=x", None),
    ("list_items", {"loop": "a", "state": None}, "GET /api/loops/a/tests?limit=50", None),
    (
        "list_items",
        {"loop": "a", "state": "failed", "cursor": "50"},
        "GET /api/loops/a/tests?state=failed&limit=50&cursor=50",
        None,
    ),
    ("get_item", {"loop": "a", "item": "x", "max_chars": 100}, "GET /api/loops/a/tests/x", None),
    ("transcripts", {"loop": "a"}, "GET /api/loops/a/transcripts?limit=5", None),
    (
        "transcripts",
        {"loop": "a", "item": "x", "limit": 2, "cursor": "2"},
        "GET /api/loops/a/transcripts?test=x&limit=2&cursor=2",
        None,
    ),
    (
        "create_loop",
        {"loop": LOOP, "items": [item("x")], "dry_run": True},
        "POST /api/loops",
        {"loop": LOOP, "items": [item("x")], "dry_run": True},
    ),
    (
        "create_loop",
        {"template": "t", "parameters": {"n": 1}, "start": True},
        "POST /api/loops",
        {"template": "t", "parameters": {"n": 1}, "start": True},
    ),
    ("loop_regressions", {"loop": "a"}, "GET /api/loops/a/regressions", None),
    ("verify_loop", {"loop": "a", "item": "x"}, "POST /api/loops/a/verify", {"test": "x"}),
    ("start_loop", {"loop": "a"}, "POST /api/loops/a/start", None),
    ("stop_loop", {"loop": "a"}, "POST /api/loops/a/stop", None),
    ("pause_loop", {"loop": "a"}, "POST /api/loops/a/pause", None),
    ("resume_loop", {"loop": "a"}, "POST /api/loops/a/resume", None),
    (
        "configure_loop",
        {"loop": "a", "changes": {"priority": 1}},
        "PATCH /api/loops/a",
        {"priority": 1},
    ),
    ("delete_loop", {"loop": "a"}, "DELETE /api/loops/a", None),
    ("reset_item", {"loop": "a", "item": "x"}, "POST /api/loops/a/tests/x/reset", None),
    (
        "skip_item",
        {"loop": "a", "item": "x", "reason": "not needed"},
        "POST /api/loops/a/tests/x/skip",
        {"reason": "not needed"},
    ),
    ("list_heals", {"loop": "a"}, "GET /api/loops/a/heals", None),
    ("analyse_item", {"loop": "a", "item": "x"}, "GET /api/loops/a/tests/x/analysis", None),
    (
        "heal_item",
        {"loop": "a", "item": "x", "action": "escalate", "to_human": False},
        "POST /api/loops/a/tests/x/heal",
        {"action": "escalate", "to_human": False, "reason": ""},
    ),
    ("list_checkpoints", {"loop": "a"}, "GET /api/loops/a/checkpoints?limit=30", None),
    (
        "list_checkpoints",
        {"loop": "a", "limit": 2, "cursor": "0123abcd"},
        "GET /api/loops/a/checkpoints?limit=2&cursor=0123abcd",
        None,
    ),
    ("read_diff", {"loop": "a", "item": "x"}, "GET /api/loops/a/tests/x/diff", None),
    (
        "read_diff",
        {"loop": "a", "checkpoint": "0123abcd"},
        "GET /api/loops/a/checkpoints/0123abcd/diff",
        None,
    ),
    (
        "read_transcript",
        {"loop": "a", "item": "x", "job_id": "p00-i1", "attempt": 2, "after": 7},
        "GET /api/loops/a/tests/x/transcripts/p00-i1/2?after=7&limit=30",
        None,
    ),
    (
        "roll_back",
        {"loop": "a", "to": "0123abcd", "dry_run": True},
        "POST /api/loops/a/rollback",
        {"to": "0123abcd", "dry_run": True},
    ),
    ("roll_back", {"loop": "a", "item": "x"}, "POST /api/loops/a/rollback", {"test": "x"}),
    ("coordination", {}, "GET /api/coordination?limit=20", None),
    (
        "coordination",
        {"loop": "a", "limit": 5},
        "GET /api/coordination?loop=a&limit=5",
        None,
    ),
    (
        "overrule_decision",
        {"number": 12},
        "POST /api/coordination/decisions/12/overrule",
        None,
    ),
    (
        "order_item",
        {"loop": "a", "item": "x", "order": "hold"},
        "PUT /api/loops/a/tests/x/order",
        {"order": "hold"},
    ),
    (
        "order_item",
        {"loop": "a", "item": "x", "order": "none"},
        "PUT /api/loops/a/tests/x/order",
        {"order": None},
    ),
    ("emit_event", {"event": "ready"}, "POST /api/loop-events", {"event": "ready"}),
    (
        "emit_event",
        {"event": "ready", "tenant": "one"},
        "POST /api/loop-events",
        {"event": "ready", "tenant": "one"},
    ),
    (
        "emit_event",
        {"event": "ready", "withdraw": True},
        "POST /api/loop-events",
        {"event": "ready", "withdraw": True},
    ),
    ("set_loop_slots", {"slots": 3}, "PUT /api/loop-slots", {"slots": 3}),
    (
        "resume_queue",
        {"what": "provider:api/x y"},
        "DELETE /api/pauses/provider:api%2Fx%20y",
        None,
    ),
    (
        "draft_loop",
        {"goal": "do it", "loop": LOOP, "runner": "planner", "auto_start": True},
        "POST /api/loops/drafts",
        {"goal": "do it", "loop": LOOP, "runner": "planner", "auto_start": True},
    ),
    ("loop_draft", {"job_id": "p00-1"}, "GET /api/loops/drafts/p00-1", None),
    (
        "create_draft",
        {"job_id": "p00-1", "start": True},
        "POST /api/loops/drafts/p00-1/create",
        {"start": True},
    ),
    (
        "add_items",
        {"loop": "a", "items": [item("y")]},
        "POST /api/loops/a/tests",
        {"items": [item("y")]},
    ),
]


@pytest.mark.parametrize(("name", "arguments", "line", "body"), REQUESTS)
def test_a_call_is_one_request(
    name: str, arguments: dict[str, Any], line: str, body: dict[str, Any] | None
) -> None:
    asked = read_call(name, arguments).request()
    assert (f"{asked.method} {asked.path}", asked.body) == (line, body)
    changes = not line.startswith("GET")
    assert (asked.key is not None) == changes
    assert (TOOLS[name].effect != "reads") == changes


def test_the_console_has_every_route() -> None:
    assert {name for name, *_ in REQUESTS} == set(TOOLS)
    settings = Settings(broker_url="redis://localhost:1/0")
    paths = create_console(open_context(settings)).openapi()["paths"]
    for _, _, line, _ in REQUESTS:
        method, _, address = line.partition(" ")
        path, _, query = address.partition("?")
        path = path.replace("/loops/a", "/loops/{loop_id}").replace("/tests/x", "/tests/{test_id}")
        path = re.sub("/pauses/.+", "/pauses/{what}", path)
        path = path.replace("/checkpoints/0123abcd", "/checkpoints/{commit}")
        path = path.replace("/p00-i1/2", "/{job_id}/{attempt}")
        path = path.replace("/decisions/12", "/decisions/{number}")
        path = path.replace("/drafts/p00-1", "/drafts/{job_id}")
        declared = paths[path][method.lower()].get("parameters", [])
        sent = {pair.partition("=")[0] for pair in query.split("&") if pair}
        assert sent <= {each["name"] for each in declared if each["in"] == "query"}, line


def test_a_change_has_a_new_key_unless_the_agent_repeats_a_call() -> None:
    keys = {read_call("start_loop", {"loop": "a"}).request().key for _ in range(3)}
    assert len(keys) == 3
    again = {"loop": "a", "idempotency_key": "mine-1"}
    assert read_call("start_loop", again).request().key == "mine-1"


# -- what agents see -------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "arguments", "line", "body"), REQUESTS)
def test_the_schema_accepts_the_call(
    name: str, arguments: dict[str, Any], line: str, body: dict[str, Any] | None
) -> None:
    given = {key: value for key, value in arguments.items() if value is not None}
    validator = jsonschema_rs.validator_for(input_schema(TOOLS[name]))
    assert not [str(each) for each in validator.iter_errors(given)]
    assert not validator.is_valid({**given, "unknown": 1})


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_says_enough_and_no_more(name: str) -> None:
    tool = tool_document(name, TOOLS[name])
    assert tool.description
    first = tool.description.partition("\n")[0]
    assert first.endswith((".", ":"))
    schema = tool.input_schema
    assert schema["type"] == "object"
    assert "description" not in schema
    for argument, each in schema["properties"].items():
        assert each.get("description"), f"{name}.{argument}"
    assert '"null"' not in json.dumps(schema)
    assert len(tool.model_dump_json()) < 12_000


def test_every_tool_that_is_named_exists() -> None:
    texts = [INSTRUCTIONS, *(str(tool_document(n, c).description) for n, c in TOOLS.items())]
    verbs = "|".join({name.partition("_")[0] for name in TOOLS if "_" in name})
    named = {word for text in texts for word in re.findall(rf"\b(?:{verbs})_\w+", text)}
    assert named <= set(TOOLS)
    assert len(named) > 10


def test_hints_tell_reading_from_changing_and_ending() -> None:
    hints = {name: tool_document(name, call).annotations for name, call in TOOLS.items()}
    reading = {name for name, hint in hints.items() if hint and hint.read_only_hint}
    assert reading == {
        "list_loops", "get_loop", "loop_health", "loop_log", "loop_report", "why", "list_items",
        "get_item", "transcripts", "list_checkpoints", "read_diff", "read_transcript", "list_heals",
        "loop_draft", "loop_regressions", "analyse_item", "coordination",
    }  # fmt: skip
    ending = {name for name, hint in hints.items() if hint and hint.destructive_hint}
    assert ending == {
        "stop_loop",
        "delete_loop",
        "reset_item",
        "skip_item",
        "roll_back",
        "heal_item",
        "overrule_decision",
    }


# -- what is wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "problems"),
    [
        ("get_lop", {}, ["there is no tool 'get_lop'; did you mean 'get_loop'?"]),
        ("get_loop", {}, ["loop: is required"]),
        (
            "create_loop",
            {"loop": LOOP, "items": [], "dryrun": True},
            ["dryrun: there is no such argument; did you mean 'dry_run'?"],
        ),
        ("create_loop", {"loop": "{'name': 1}"}, ["loop: must be a mapping, such as"]),
        ("get_loop", {"loop": "../jobs"}, ["loop: may contain only letters from A to Z"]),
        (
            "list_items",
            {"loop": "a", "state": "done", "limit": 1000},
            ["state: must be 'pending', 'ready'", "limit: must be at most 100 (got 1000)"],
        ),
        ("start_loop", {"loop": "a", "idempotency_key": "a\nb"}, ["idempotency_key: must match"]),
        ("skip_item", {"loop": "a", "item": "x"}, ["reason: is required"]),
        ("set_loop_slots", {"slots": True}, ["slots: must be a number (got True)"]),
        ("list_items", {"loop": "a", "cursor": "٣"}, ["cursor: must match ^[0-9]"]),
        ("read_diff", {"loop": "a"}, ["give either item or checkpoint"]),
        ("read_diff", {"loop": "a", "item": "x", "checkpoint": "HEAD"}, ["checkpoint: must match"]),
        ("roll_back", {"loop": "a"}, ["give to or item"]),
    ],
)
def test_every_problem_of_a_call_is_named(
    name: str, arguments: dict[str, Any], problems: list[str]
) -> None:
    with pytest.raises(BadInput) as caught:
        read_call(name, arguments)
    found = [str(each) for each in caught.value.problems]
    assert len(found) == len(problems)
    for line, start in zip(found, problems, strict=True):
        assert line.startswith(start), found


@pytest.mark.parametrize("name", TOOLS)
def test_a_boolean_is_no_number(name: str) -> None:
    arguments = input_schema(TOOLS[name])["properties"].items()
    numbers = [argument for argument, each in arguments if each.get("type") == "integer"]
    for number in numbers:
        with pytest.raises(BadInput, match=f"{number}: must be a number"):
            read_call(name, {number: True})


def test_a_call_that_is_wrong_everywhere_has_the_first_problems() -> None:
    with pytest.raises(BadInput) as caught:
        read_call("list_loops", {f"argument{n}": n for n in range(5000)})
    assert len(caught.value.problems) == MOST_REPORTED + 1


def test_the_error_of_a_call_is_as_short_as_an_answer() -> None:
    """Given a console that refuses a call in 10,000 lines, an agent reads those that fit."""

    class Refusing(ConsoleConnection):
        def ask(self, *_: Any, **__: Any) -> Any:
            raise BadInput(*(f"items[{n}]: is wrong" for n in range(10_000)))

    with closing(Refusing("http://127.0.0.1:9", None, patience=0)) as console:
        result = answer(console, "list_loops", {})
    (content,) = result.content
    assert isinstance(content, TextContent)
    assert result.is_error
    assert len(content.text) < ANSWER_LENGTH + 100
    assert content.text.endswith(" more lines]")


def test_an_object_may_be_written_as_text() -> None:
    """Given an agent that sends objects as JSON texts, the console gets objects."""
    call = read_call("create_loop", {"loop": json.dumps(LOOP), "items": json.dumps([item("x")])})
    assert call.request().body == {"loop": LOOP, "items": [item("x")]}
