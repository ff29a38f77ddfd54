"""What a body may set depends on the role of its sender, over real HTTP.

docs/api.md, "What a body may set", is the same table for people.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx2
import pytest
from support.console_server import RunningConsole, new_token, running_console
from support.redis_server import RedisServer

from mulligan.workers.settings.model import Settings

Body = dict[str, Any]
METADATA = "http://169.254.169.254/latest"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    """A console as it ships: no inline definitions. Reviews are configured for written files."""
    folder: Path = tmp_path_factory.mktemp("console")
    server = RedisServer(folder)
    server.start()
    (folder / "tree").mkdir()
    (folder / "templates").mkdir()
    (folder / "secret.yaml").write_text("loop: {name: stolen}\n")
    settings = Settings(
        broker_url=server.url,
        home=folder,
        workspaces={"shop": folder / "tree"},
        runners={"default": {"kind": "scripted", "answers": ["{}"]}},
        on_done=frozenset({"shop.answered@shop"}),
        edit_tiers={"write_file": "review"},
        loop_templates=folder / "templates",
    )
    try:
        with running_console(settings) as found:
            yield found
    finally:
        server.kill()


@pytest.fixture(scope="module")
def callers(console: RunningConsole) -> dict[str, httpx2.Client]:
    """A producer, ops without texts, an admin, and a producer of another tenant."""
    context = console.context
    return {
        "producer": console.client(new_token(context, role="producer", name="shop")),
        "ops": console.client(new_token(context, role="ops", name="night")),
        "admin": console.client(new_token(context, role="admin", name="ada")),
        "tenant": console.client(new_token(context, role="producer", name="x", tenant="acme")),
    }


class Row(NamedTuple):
    """A request, and the status for a producer, ops, an admin and another tenant's producer."""

    what: str
    path: str
    body: Body
    statuses: tuple[int, int, int, int]
    method: str = "POST"


def job(**fields: Any) -> Body:
    base: Body = {"task_type": "x", "prompt": "Say it.", "runner": "default"}
    return {**base, "verifiers": ["json.object"], **fields}


def plan(benchmark: Body | None = None, **fields: Any) -> Body:
    edit = {"id": "e1", "op": "write_file", "target": "a.txt", "payload": {"content": "x"}}
    return {
        "plan": {"edits": [edit], "benchmark": benchmark or {}},
        "workspace": "shop",
        **fields,
    }


def suite(**fields: Any) -> Body:
    measured = {name: value for name, value in job().items() if name != "task_type"}
    return {"tasks": [{"id": "t", "cluster": "c", "job": measured}], **fields}


def loop(config: Body | None = None, **fields: Any) -> Body:
    item = {"id": "one", "prompt": "Say it.", "verifiers": ["json.object"]}
    name = f"loop-{uuid4().hex[:12]}"
    return {
        "loop": {"name": name, "runner": "default", **(config or {})},
        "items": [item],
        **fields,
    }


def report(**fields: Any) -> Body:
    return {"subject": "mia", "task_type": "x", "prompt": "Say it.", "score": 90, **fields}


OK_EDIT, ONLY_OPS, BAD_EDIT = (202, 202, 202, 403), (403, 202, 202, 403), (422, 422, 422, 403)
OK_JOB, BAD_JOB = (202, 403, 202, 202), (422, 403, 422, 422)
OK_LOOP, BAD_LOOP = (201, 403, 201, 201), (422, 403, 422, 422)
OK_REPORT, BAD_REPORT = (201, 403, 201, 201), (422, 403, 422, 422)
NOT_FOR_PRODUCERS = 403

EDITS = [
    Row("a plan", "/api/edits", plan(), OK_EDIT),
    Row("less review", "/api/edits", plan(mode="auto"), ONLY_OPS),
    Row("more review", "/api/edits", plan(mode="manual"), OK_EDIT),
    Row("no gate", "/api/edits", plan({"policy": "allow"}), ONLY_OPS),
    Row("a weaker gate", "/api/edits", plan({"max_regression": 0.5}), ONLY_OPS),
    Row("a stricter gate", "/api/edits", plan({"max_regression": 0.01}), OK_EDIT),
    Row("guessing", "/api/edits", plan(suite=suite(undecided="estimate")), ONLY_OPS),
    Row("less confidence", "/api/edits", plan(suite=suite(confidence=0.5)), ONLY_OPS),
    Row("more confidence", "/api/edits", plan(suite=suite(confidence=0.95)), OK_EDIT),
    Row("a suite's command", "/api/edits",
        plan(suite={"tasks": [{"id": "t", "command": ["id"]}]}), BAD_EDIT),
    Row("a folder", "/api/edits", plan(workspace="/etc"), BAD_EDIT),
    Row("a folder outside", "/api/edits", plan(config="../.."), BAD_EDIT),
    Row("somebody's session", "/api/edits", plan(owner="/ada"), BAD_EDIT),
]  # fmt: skip
JOBS = [
    Row("a job", "/api/jobs", job(), OK_JOB),
    Row("a command", "/api/jobs", job(runner={"kind": "command", "argv": ["id"]}), BAD_JOB),
    Row("an address", "/api/jobs",
        job(runner={"kind": "openai", "base_url": METADATA, "model": "m"}), BAD_JOB),
    Row("a profile's address", "/api/jobs",
        job(runner={"profile": "default", "base_url": METADATA}), BAD_JOB),
    Row("a profile's key", "/api/jobs",
        job(runner={"profile": "default", "api_key_env": "HOME"}), BAD_JOB),
    Row("a profile's kind", "/api/jobs",
        job(runner={"profile": "default", "kind": "command", "argv": ["id"]}), BAD_JOB),
    Row("a profile's pool", "/api/jobs",
        job(runner={"profile": "default", "pool": "agent"}), BAD_JOB),
    Row("a verifier's command", "/api/jobs",
        job(verifiers=[{"id": "command.subprocess", "argv": ["id"]}]), BAD_JOB),
    Row("an unnamed command", "/api/jobs",
        job(verifiers=[{"id": "command.subprocess", "command": "rm"}]), BAD_JOB),
    Row("a schema's address", "/api/jobs",
        job(verifiers=[{"id": "contract.schema", "schema": {"$ref": METADATA}}]), BAD_JOB),
    Row("a schema's file", "/api/jobs",
        job(verifiers=[{"id": "contract.schema", "schema": {"$ref": "file:///etc/passwd"}}]),
        BAD_JOB),
    Row("a folder", "/api/jobs", job(workspace={"path": "/etc"}), BAD_JOB),
    Row("a named folder", "/api/jobs", job(workspace={"profile": "shop"}), OK_JOB),
    Row("a file outside", "/api/jobs",
        job(workspace={"profile": "shop", "output_file": "../x"}), BAD_JOB),
    Row("another queue", "/api/jobs", job(on_done={"task": "a.b", "queue": "celery"}), BAD_JOB),
    Row("a queue of ours", "/api/jobs", job(on_done={"task": "a", "queue": "control"}), BAD_JOB),
    Row("its own queue", "/api/jobs",
        job(on_done={"task": "shop.answered", "queue": "shop"}), OK_JOB),
    Row("another tenant", "/api/jobs", job(labels={"tenant": "globex"}), (202, 403, 202, 403)),
    Row("urgent", "/api/jobs", job(priority=0), OK_JOB),
    Row("too urgent", "/api/jobs", job(priority=-1), BAD_JOB),
    Row("many attempts", "/api/jobs", job(policy={"max_attempts": 100}), OK_JOB),
    Row("more attempts", "/api/jobs", job(policy={"max_attempts": 101}), BAD_JOB),
    *(Row(f"the field {name}", "/api/jobs", job(**{name: value}), BAD_JOB)
      for name, value in {"owner": "/ada", "tenant": "globex", "queue": "control", "mode": "auto",
                          "webhook": METADATA, "extends": "/etc/passwd", "id": "p00-1"}.items()),
]  # fmt: skip
LOOPS = [
    Row("a loop", "/api/loops", loop(), OK_LOOP),
    Row("a runner", "/api/loops", loop({"runner": {"kind": "command", "argv": ["id"]}}), BAD_LOOP),
    Row("a folder", "/api/loops", loop({"workspace": {"path": "/etc"}}), BAD_LOOP),
    Row("files", "/api/loops", loop(items="file:/etc/passwd"), BAD_LOOP),
    Row("a file's template", "/api/loops", {"template": "../secret"}, BAD_LOOP),
    Row("another tenant", "/api/loops", loop(tenant="globex"), (201, 403, 201, 403)),
    Row("an owner", "/api/loops", loop(owner="/ada"), BAD_LOOP),
    Row("an owner inside", "/api/loops", loop({"owner": "/ada"}), BAD_LOOP),
    Row("too many at once", "/api/loops", loop({"concurrency": 1001}), BAD_LOOP),
]
REPORTS = [
    Row("a report", "/api/attempts", report(), OK_REPORT),
    Row("another tenant", "/api/attempts",
        report(labels={"tenant": "globex"}), (201, 403, 201, 403)),
    *(Row(f"the field {name}", "/api/attempts", report(**{name: value}), BAD_REPORT)
      for name, value in {"runner": "default", "owner": "/ada", "workspace": {}}.items()),
]  # fmt: skip
#: What belongs to operators whatever the body says: producers get 403, ops another answer.
OPERATIONS = [
    ("PUT", "/api/pauses/queue:attempt", {}),
    ("DELETE", "/api/pauses/queue:attempt", {}),
    ("POST", "/api/escalations/requeue", {"task_type": "x", "prompt": "Give in."}),
    ("POST", "/api/escalations/resolve", {"task_type": "x"}),
    ("POST", "/api/escalations/cancel", {"task_type": "x"}),
    ("POST", "/api/failures/v2:0a/mute", {"for": "4h"}),
    ("POST", "/api/outbox/drop", {}),
    ("PUT", "/api/loop-slots", {"slots": 4}),
    ("POST", "/api/edits/s1/e1/approve", {}),
    ("POST", "/api/edits/s1/rollback", {}),
    ("GET", "/api/submissions/refused", {}),
    ("GET", "/metrics", {}),
]


def sent(client: httpx2.Client, method: str, path: str, body: Body) -> httpx2.Response:
    return client.request(method, path, json=None if method == "GET" else body)


@pytest.mark.parametrize(
    "row", [*EDITS, *JOBS, *LOOPS, *REPORTS], ids=lambda row: f"{row.path}: {row.what}"
)
def test_who_may_send_it(callers: dict[str, httpx2.Client], row: Row) -> None:
    for (role, client), status in zip(callers.items(), row.statuses, strict=True):
        body = row.body
        if "loop" in body:  # its name is taken once somebody has created it
            body = {**body, "loop": {**body["loop"], "name": f"loop-{uuid4().hex[:12]}"}}
        response = sent(client, row.method, row.path, body)
        assert response.status_code == status, (role, response.text)


@pytest.mark.parametrize(("method", "path", "body"), OPERATIONS)
def test_what_belongs_to_operators(
    callers: dict[str, httpx2.Client], method: str, path: str, body: Body
) -> None:
    for role in ("producer", "tenant"):
        assert sent(callers[role], method, path, body).status_code == 403, role
    for role in ("ops", "admin"):
        assert sent(callers[role], method, path, body).status_code in (200, 204, 404), role


def test_a_refusal_names_the_fields_and_the_role(callers: dict[str, httpx2.Client]) -> None:
    """Given the attack: a configured review, and a body that asks for none and no gate."""
    body = plan({"policy": "allow", "max_regression": 1.0}, mode="auto")
    error = callers["producer"].post("/api/edits", json=body).json()["error"]
    assert error["code"] == "needs_ops"
    assert [problem["path"] for problem in error["problems"]] == [
        ["mode"], ["plan", "benchmark", "policy"], ["plan", "benchmark", "max_regression"],
    ]  # fmt: skip
    assert error["details"][0] == (
        "mode: auto applies edits without their review, which needs the role ops: leave the field"
        " out, or use a token of ops"
    )
    assert callers["producer"].get("/api/edits").json()["sessions"] != []
    modes = {each["mode"] for each in callers["producer"].get("/api/edits").json()["sessions"]}
    assert "auto" not in modes


def test_a_session_in_a_browser_has_the_rights_of_its_token(console: RunningConsole) -> None:
    with console.client() as browser:
        token = new_token(console.context, role="producer", name="shop")
        browser.post("/login", data={"token": token})
        page = browser.get("/edits", headers={"Accept": "text/html"}).text
        csrf = page.split('name="csrf-token" content="')[1].split('"')[0]
        refused = browser.post("/api/edits", json=plan(mode="auto"), headers={"X-CSRF-Token": csrf})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "needs_ops")
