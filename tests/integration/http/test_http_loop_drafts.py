"""Drafts of loops over HTTP and MCP: asking, reading, creating, and who may do that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.coding_loop import agent
from support.console_server import client_of, get_json, new_token, post_json
from support.drafts import DEFECTIVE, drafted, drafter, spec
from support.git_repositories import UserRepository
from support.ledger_scenario import SettingsMaker

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.console.mcp.tool_server import read_call
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.jobs.verify import run_verification
from mulligan.tasks.ports.ledger import Entry

#: A draft whose checks are commands of the configuration.
NAMED = spec(
    drafted("A", verifiers=[{"id": "command.subprocess", "command": "has-new"}]),
    drafted("B", "A", verifiers=[{"id": "command.subprocess", "command": "has-new"}]),
)


@pytest.fixture
def context(settings: SettingsMaker, tmp_path: Path) -> ConsoleContext:
    """A console that allows no inline definitions."""
    user = UserRepository.make(tmp_path / "user")
    return open_context(
        settings(
            repositories={"project": str(user.path)},
            repository_cache=tmp_path / "cache",
            commands={"has-new": {"argv": ["test", "-e", "new.txt"]}},
            runners={
                "planner": drafter(DEFECTIVE, NAMED),
                "broken": drafter("no"),
                "coder": agent("pass"),
            },
            loop_drafter="planner",
        )
    )


@pytest.fixture
def client(context: ConsoleContext) -> TestClient:
    return client_of(context)


def body(**fields: Any) -> dict[str, Any]:
    loop = {"name": "demo", "repo": "project", "base": "main", "runner": "coder"}
    return {"goal": "make new.txt", "loop": loop, **fields}


def work_on(context: ConsoleContext, job_id: str) -> None:
    """Run the attempts of a draft and their verification, as workers would."""
    for number in range(1, 5):
        run_attempt(context.services.context, Entry("attempt", job_id, number))
        run_verification(context.services.context, Entry("verification", job_id, number, index=2))


def test_a_draft_is_asked_for_read_and_created(context: ConsoleContext, client: TestClient) -> None:
    answer = client.post("/api/loops/drafts", json=body())
    assert answer.status_code == 202
    job_id = answer.json()["job_id"]
    path = answer.headers["location"]
    assert path == f"/api/loops/drafts/{job_id}"
    assert client.post(f"{path}/create").status_code == 409
    work_on(context, job_id)
    found = get_json(client, path)
    assert (found["state"], found["loop"], found["created"]) == ("succeeded", "demo", False)
    first, second = found["attempts"]
    assert any("a draft may not run" in each for each in first["problems"])
    assert any("form a cycle" in each for each in first["problems"])
    assert second["problems"] == []
    assert [each["id"] for each in found["items"]] == ["A", "B"]
    made = post_json(client, f"{path}/create", 201, start=True)
    assert (made["id"], made["status"]) == ("demo", "running")
    assert post_json(client, f"{path}/create", 200)["created"] == "seen"
    assert get_json(client, path)["created"]


def test_a_draft_starts_its_loop_by_itself(context: ConsoleContext, client: TestClient) -> None:
    """Given a console without the right to name paths, then what was accepted is created."""
    job_id = post_json(client, "/api/loops/drafts", 202, **body(auto_start=True))["job_id"]
    work_on(context, job_id)
    assert get_json(client, f"/api/loops/drafts/{job_id}")["created"]
    assert get_json(client, "/api/loops/demo")["status"] == "running"


def test_a_draft_belongs_to_its_tenant_and_producer(
    context: ConsoleContext, client: TestClient
) -> None:
    mine = client_of(context, new_token(context, role="producer", tenant="acme"))
    job_id = post_json(mine, "/api/loops/drafts", 202, **body(auto_start=True))["job_id"]
    work_on(context, job_id)
    path = f"/api/loops/drafts/{job_id}"
    assert get_json(mine, path)["created"]
    assert get_json(mine, "/api/loops/demo")["tenant"] == "acme"
    for token in ({"role": "producer"}, {"role": "ops", "tenant": "other"}):
        other = client_of(context, new_token(context, **token))
        assert other.get(path).status_code == 404
    assert mine.post("/api/loops/drafts", json=body(tenant="other")).status_code == 403
    reader = client_of(context, new_token(context, role="ops", texts=False))
    found = get_json(reader, path)
    assert found["items"] is None
    assert found["attempts"][0]["problems"] is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"goal": ""}, "goal"),
        ({"goal": "   "}, "goal"),
        ({"loop": {"name": "demo", "runner": "coder"}}, "loop.repo"),
        ({"loop": {"name": "demo", "repo": "/etc", "runner": "coder"}}, "loop.repo"),
        ({"loop": {"name": "demo", "repo": "project", "runner": "nobody"}}, "loop.runner.profile"),
        ({"loop": {"name": "demo", "repo": "project", "runner": "coder", "branch": "main"}},
         "loop.branch"),
        ({"loop": {"name": "demo", "repo": "project", "runner": "coder", "base": "gone"}},
         "loop.base"),
        ({"runner": {"kind": "scripted", "answers": ["x"]}}, "runner.kind"),
        ({"runner": "nobody"}, "runner.profile"),
        ({"more": 1}, "more"),
    ],
)  # fmt: skip
def test_a_request_is_refused_with_its_field(
    client: TestClient, change: dict[str, Any], field: str
) -> None:
    answer = client.post("/api/loops/drafts", json=body(**change))
    assert answer.status_code == 422, answer.text
    assert field in answer.text


def test_what_is_no_draft_is_not_found(context: ConsoleContext, client: TestClient) -> None:
    job = {"task_type": "x", "prompt": "x", "runner": "broken", "verifiers": ["json.object"]}
    job_id = post_json(client, "/api/jobs", 202, **job)["jobs"][0]["id"]
    for name in (job_id, "p00-nothing", "*"):
        assert client.get(f"/api/loops/drafts/{name}").status_code == 404


def test_the_same_request_with_the_same_key_is_one_draft(client: TestClient) -> None:
    headers = {"Idempotency-Key": "one"}
    ids = {
        client.post("/api/loops/drafts", json=body(), headers=headers).json()["job_id"]
        for _ in range(2)
    }
    assert len(ids) == 1


def test_the_tools_of_agents_ask_for_the_same(client: TestClient) -> None:
    loop = body()["loop"]
    asked = read_call("draft_loop", {"goal": "make new.txt", "loop": loop}).request()
    answer = client.request(asked.method, asked.path, json=dict(asked.body or {}))
    assert answer.status_code == 202
    job_id = answer.json()["job_id"]
    read = read_call("loop_draft", {"job_id": job_id}).request()
    assert get_json(client, read.path)["state"] == "queued"
    create = read_call("create_draft", {"job_id": job_id, "start": True}).request()
    assert client.request(create.method, create.path, json=create.body).status_code == 409
