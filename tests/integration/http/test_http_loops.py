"""Loops over HTTP: creating, reading and changing them; roles, tenants and idempotency keys."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient
from support.console_server import client_of, error_of, get_json, post_json
from support.ledger_scenario import SettingsMaker
from support.loops import item

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.loops.plan import run_plan
from mulligan.tasks.ports.ledger import Entry

GOOD = {"kind": "scripted", "answers": ["{}"]}
BAD = {"kind": "scripted", "answers": ["no", "no", "no"]}


@pytest.fixture
def context(settings: SettingsMaker) -> ConsoleContext:
    return open_context(settings(allow_inline=True))


@pytest.fixture
def client(context: ConsoleContext) -> TestClient:
    return client_of(context)


def body(*items: dict[str, Any], name: str = "alpha", **config: Any) -> dict[str, Any]:
    loop = {"name": name, "runner": GOOD, "concurrency": 10, **config}
    return {"loop": loop, "items": list(items) or [item("one"), item("two", "one")]}


def create(client: TestClient, *items: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return post_json(client, "/api/loops", 201, **body(*items, **fields))


def work(context: ConsoleContext, name: str = "alpha") -> None:
    """Plan a loop and run its items in this process until nothing is left, as workers would."""
    for _ in range(10):
        run_plan(context.services.loops, name)
        reading = context.ledger.read_loop(name)
        assert reading is not None
        running = [r.job_id for r in reading.snapshot.items.values() if r.state == "running"]
        if not running:
            return
        for job_id in running:
            for number in range(1, 4):
                run_attempt(context.services.context, Entry("attempt", job_id, number))


def states(client: TestClient, name: str = "alpha") -> dict[str, str]:
    found = get_json(client, f"/api/loops/{name}/tests")["tests"]
    return {each["id"]: each["state"] for each in found}


# -- creating --------------------------------------------------------------------------------------


def test_a_loop_runs_to_its_end(client: TestClient, context: ConsoleContext) -> None:
    """Given a loop of two items, when it is started and worked on, then both pass."""
    answer = client.post("/api/loops", json=body())
    assert (answer.status_code, answer.json()["created"]) == (201, "created")
    assert answer.headers["location"] == "/api/loops/alpha"
    assert post_json(client, "/api/loops/alpha/start")["status"] == "running"
    work(context)
    found = get_json(client, "/api/loops/alpha")
    assert (found["status"], found["progress"]) == ("completed", {"passed": 2, "total": 2})
    assert found["why"]["text"] == "every item passed or was skipped"
    assert found["started_at"] is not None
    assert found["finished_at"] is not None
    assert [each["id"] for each in get_json(client, "/api/loops")["loops"]] == ["alpha"]
    assert get_json(client, "/api/loops", state="running")["loops"] == []


def test_the_same_loop_again_is_the_same_loop(client: TestClient) -> None:
    create(client)
    again = client.post("/api/loops", json=body())
    assert (again.status_code, again.json()["created"]) == (200, "seen")
    other = client.post("/api/loops", json=body(item("three")))
    assert error_of(other) == (409, "key_in_use")
    assert other.json()["error"]["message"] == "'alpha' is the name of another loop"


def test_a_loop_may_start_at_once(client: TestClient) -> None:
    found = post_json(client, "/api/loops", 201, start=True, **body())
    assert found["status"] == "running"
    post_json(client, "/api/loops/alpha/pause")
    again = post_json(client, "/api/loops", 200, start=True, **body())
    assert again["status"] == "paused", "a repeated request undoes no later change"


def test_a_dry_run_creates_nothing(client: TestClient) -> None:
    items = [item("c", "b"), item("b", "a"), item("a"), item("d")]
    plan = post_json(client, "/api/loops", 200, dry_run=True, **body(*items))
    assert plan["order"].index("a") < plan["order"].index("b") < plan["order"].index("c")
    assert sorted(plan["ready"]) == ["a", "d"]
    assert plan["name_in_use"] is False
    assert get_json(client, "/api/loops")["loops"] == []


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ({"lop": {}}, ["lop: there is no such field; did you mean 'loop'?"]),
        ({"loop": {"name": "a b", "prioritty": 1}}, ["loop.name", "loop.prioritty: there is no"]),
        ({"items": []}, ["items: must have 1 or more items"]),
        ({"start": "soon"}, ["start: must be true or false"]),
        (
            {"items": [item("a", "x"), item("a"), item("b", verifiers=["json.objet"])]},
            ["the id a occurs twice", "a depends on x", "items[2].verifiers[0]"],
        ),
        ({"items": [item("a", "b"), item("b", "a")]}, ["the dependencies form a cycle"]),
        ({"items": [item("a", prompt="\ud800")]}, ["body: contains half a surrogate pair"]),
        ({"items": [item("a", priority=float("nan"))]}, ["cannot be stored as JSON"]),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_every_problem_is_reported(
    client: TestClient, change: dict[str, Any], lines: list[str], dry_run: bool
) -> None:
    import json

    text = json.dumps({**body(), "dry_run": dry_run, **change})
    answer = client.post("/api/loops", content=text, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text
    details = answer.json()["error"]["details"]
    for line in lines:
        assert any(line in each for each in details), details
    assert get_json(client, "/api/loops")["loops"] == []


@pytest.mark.parametrize("content", ["[]", '"text"', "null"])
def test_a_body_that_is_no_object_is_refused(client: TestClient, content: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = client.post("/api/loops", content=content, headers=headers)
    assert answer.status_code == 422, answer.text
