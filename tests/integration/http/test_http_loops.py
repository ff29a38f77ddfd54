"""Loops over HTTP: creating, reading and changing them; roles, tenants and idempotency keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.console_server import client_of, error_of, get_json, new_token, post_json
from support.ledger_scenario import SettingsMaker
from support.loops import item, work_on_loop

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.console.http.models.job_models import REDACTED
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
    work_on_loop(context)
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
    message = "'alpha' is the name of another loop: choose another name, or delete that loop first"
    assert other.json()["error"]["message"] == message


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
        ({"lop": {}}, ["lop: there is no such field beside `loop:`; did you mean 'loop'?"]),
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
def test_every_problem_is_reported(
    client: TestClient, change: dict[str, Any], lines: list[str]
) -> None:
    headers = {"Content-Type": "application/json"}
    for dry_run in (False, True):
        text = json.dumps({**body(), "dry_run": dry_run, **change})
        answer = client.post("/api/loops", content=text, headers=headers)
        assert answer.status_code == 422, answer.text
        details = answer.json()["error"]["details"]
        for line in lines:
            assert any(line in each for each in details), details
    assert get_json(client, "/api/loops")["loops"] == []


@pytest.mark.parametrize(
    "fields",
    [
        {"items": [item("a", prompt="${" * 100_000)]},
        {"items": [item("a", prompt="${p}" * 300)], "parameters": {"p": "x" * 100_000}},
        {"items": [item(f"a{n}", verifiers=["json.objet"] * 10) for n in range(500)]},
        {f"field{n}": n for n in range(5000)},
    ],
    ids=["references", "expansion", "verifiers", "fields"],
)
def test_an_extreme_loop_is_refused_in_a_few_lines(
    client: TestClient, fields: dict[str, Any]
) -> None:
    answer = client.post("/api/loops", json={**body(), "dry_run": True, **fields})
    assert answer.status_code == 422
    assert len(answer.json()["error"]["problems"]) <= 201
    assert len(answer.content) < 100_000


def test_a_template_reads_no_other_files(settings: SettingsMaker, tmp_path: Path) -> None:
    template = {"parameters": {"p": None}, "loop": {"name": "a", "runner": GOOD, "specs": ["${p}"]}}
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "one.yaml").write_text(json.dumps(template))
    (tmp_path / "secret.yaml").write_text("items: []")
    templates = tmp_path / "templates"
    client = client_of(open_context(settings(allow_inline=True, loop_templates=templates)))
    for pattern, message in (
        ("../secret.yaml", "no file matches '../secret.yaml'"),
        (".", "'.' is not a pattern of files relative to this one"),
    ):
        answer = client.post("/api/loops", json={"template": "one", "parameters": {"p": pattern}})
        assert answer.status_code == 422
        assert answer.json()["error"]["details"] == [f"one.yaml:1: loop.specs[0]: {message}"]


def test_a_body_that_is_no_object_is_refused(client: TestClient) -> None:
    for content in ("[]", '"text"', "null"):
        headers = {"Content-Type": "application/json"}
        answer = client.post("/api/loops", content=content, headers=headers)
        assert answer.status_code == 422, answer.text


def test_a_loop_is_created_from_a_template(settings: SettingsMaker, tmp_path: Path) -> None:
    template = {
        "parameters": {"language": "English"},
        "loop": {"name": "words", "runner": GOOD},
        "items": [item("one", prompt="Say it in ${language}.")],
    }
    (tmp_path / "words.yaml").write_text(json.dumps(template))
    client = client_of(open_context(settings(allow_inline=True, loop_templates=tmp_path)))
    asked = {"template": "words", "parameters": {"language": "French"}}
    assert post_json(client, "/api/loops", 201, **asked)["id"] == "words"
    assert get_json(client, "/api/loops/words/tests/one")["prompt"] == "Say it in French."
    unknown = client.post("/api/loops", json={"template": "word"})
    assert unknown.status_code == 422
    assert "there is no template 'word'" in unknown.json()["error"]["details"][0]


def test_without_inline_runners_a_loop_names_profiles(settings: SettingsMaker) -> None:
    client = client_of(open_context(settings(allow_inline=False)))
    refused = client.post("/api/loops", json=body())
    assert refused.status_code == 422
    assert any("allow_inline" in each for each in refused.json()["error"]["details"])


def test_an_inline_runner_cannot_be_set_later(settings: SettingsMaker) -> None:
    """Given a loop whose first item has a runner of its own, which is no reason not to look."""
    profiles = {"good": GOOD}
    context = open_context(settings(allow_inline=False, runners=profiles))
    client = client_of(context)
    create(client, item("one", runner="good"), item("two"), runner="good")
    refused = client.patch("/api/loops/alpha", json={"runner": GOOD})
    assert refused.status_code == 422, refused.text


def test_a_folder_of_this_host_cannot_be_packed(settings: SettingsMaker) -> None:
    """Given items with workspaces of their own, the loop's is checked all the same."""
    client = client_of(open_context(settings(allow_inline=False, runners={"good": GOOD})))
    own = item("one", workspace={"snapshot": "sha256:0"})
    refused = client.post("/api/loops", json=body(own, runner="good", workspace={"path": "/etc"}))
    assert refused.status_code == 422
    (detail,) = refused.json()["error"]["details"]
    assert detail.startswith("loop.workspace.path: a job from the queue may not name a path")


# -- reading ---------------------------------------------------------------------------------------


def test_a_loop_shows_who_works_on_it(client: TestClient, context: ConsoleContext) -> None:
    """Given a loop of which one item is claimed."""
    create(client, priority=2, budget={"attempt": {"tokens": 100}, "loop": {"tokens": 1000}})
    post_json(client, "/api/loops/alpha/start")
    run_plan(context.services.loops, "alpha")
    job_id = get_json(client, "/api/loops/alpha/tests/one")["job_id"]
    context.ledger.claim(Entry("attempt", job_id, 1), worker="host:1")
    found = get_json(client, "/api/loops/alpha")
    (holder,) = found["holders"]
    assert (holder["item"], holder["job_id"], holder["worker"]) == ("one", job_id, "host:1")
    assert found["current_test"] == "one"
    assert found["last_heartbeat"] == holder["renewed_at"]
    assert found["resources"] == {
        "model": "scripted", "max_concurrent": 10, "slots_in_use": 1,
        "slots": context.services.loops.slots(),
    }  # fmt: skip
    assert found["priority"] == 2
    (row,) = found["budget"]
    assert (row["scope"], row["limit"], row["used"], row["reserved"]) == ("loop", 1000, 0, 100)
    health = get_json(client, "/api/loops/alpha/health")
    assert (health["status"], health["holders"]) == ("healthy", [holder])
    (row,) = health["items"]
    assert (row["item"], row["status"], row["worker"]) == ("one", "healthy", "host:1")
    assert (health["missing"], health["why"]["cause"]) == ("", "runs")
    assert get_json(client, "/api/loop-health")["loops"] == [
        {"id": "alpha", "state": "running", "reason": "", "status": "healthy", "missing": "",
         "since": None, "item": None, "incidents": []}
    ]  # fmt: skip


def test_the_items_come_in_pages(client: TestClient) -> None:
    create(client, *(item(f"i{n}") for n in range(5)))
    found = get_json(client, "/api/loops/alpha/tests", limit=2)
    assert ([each["id"] for each in found["tests"]], found["total"]) == (["i0", "i1"], 5)
    second = get_json(client, "/api/loops/alpha/tests", limit=2, cursor=found["cursor"])
    last = get_json(client, "/api/loops/alpha/tests", limit=2, cursor=second["cursor"])
    assert ([each["id"] for each in last["tests"]], last["cursor"]) == (["i4"], None)
    assert get_json(client, "/api/loops/alpha/tests", state="passed")["total"] == 0
    for path in ("tests", "transcripts"):
        assert client.get(f"/api/loops/alpha/{path}", params={"cursor": "٣"}).status_code == 422


def test_an_item_shows_its_attempts_and_why_it_waits(
    client: TestClient, context: ConsoleContext
) -> None:
    failing = item("one", runner=BAD, pass_criteria=["It is JSON."], title="The first")
    create(client, failing, item("two", "one"), max_attempts=2)
    post_json(client, "/api/loops/alpha/start")
    work_on_loop(context)
    found = get_json(client, "/api/loops/alpha/tests/one")
    assert (found["state"], found["reason"], found["runs"]) == ("failed", "max_attempts", 1)
    assert found["pass_criteria"] == ["It is JSON."]
    assert [each["score"] for each in found["attempts"]] == [0, 0]
    assert found["attempts"][0]["failure"]["kind"] == "json_invalid"
    waits = get_json(client, "/api/loops/alpha/why", test="two")
    assert waits["cause"] == "dependency"
    assert waits["command"] == "mulligan loops reset alpha one"
    assert get_json(client, "/api/loops/alpha")["why"]["cause"] == "failure"
    assert get_json(client, "/api/loops/alpha")["status"] == "blocked"


def test_transcripts_have_every_attempt_of_every_run(
    client: TestClient, context: ConsoleContext
) -> None:
    create(client, item("one", runner=BAD), item("two"), max_attempts=2)
    post_json(client, "/api/loops/alpha/start")
    work_on_loop(context)
    post_json(client, "/api/loops/alpha/tests/one/reset")
    work_on_loop(context)
    found = get_json(client, "/api/loops/alpha/transcripts")["transcripts"]
    assert [(each["item"], each["run"], each["attempt"]) for each in found] == [
        ("one", 1, 1), ("one", 1, 2), ("one", 2, 1), ("one", 2, 2), ("two", 1, 1),
    ]  # fmt: skip
    assert (found[0]["answer"], found[0]["failure"]) == ("no", "json_invalid")
    assert found[0]["prompt"] == "Do one."
    assert found[-1]["success"] is True
    page = get_json(client, "/api/loops/alpha/transcripts", limit=2)
    assert len(page["transcripts"]) == 4
    rest = get_json(client, "/api/loops/alpha/transcripts", limit=2, cursor=page["cursor"])
    assert ([each["item"] for each in rest["transcripts"]], rest["cursor"]) == (["two"], None)
    only = get_json(client, "/api/loops/alpha/transcripts", test="two")["transcripts"]
    assert [each["item"] for each in only] == ["two"]


def test_the_log_says_who_changed_what(client: TestClient, context: ConsoleContext) -> None:
    create(client)
    post_json(client, "/api/loops/alpha/start")
    run_plan(context.services.loops, "alpha")
    notes = get_json(client, "/api/loops/alpha/log")["log"]
    assert [(each["note"], each["by"]) for each in notes] == [
        ("one got a slot: no other loop waits", "admission"),
        ("started", "loopback"),
        ("created", "loopback"),
    ]


# -- changing --------------------------------------------------------------------------------------


def test_moves_that_are_not_possible_say_what_is(client: TestClient) -> None:
    create(client)
    refused = client.post("/api/loops/alpha/pause")
    assert error_of(refused) == (409, "conflict")
    message = "cannot pause a loop that is created: it does not run"
    assert refused.json()["error"]["message"] == message
    for verb, status in [
        ("start", "running"),
        ("pause", "paused"),
        ("resume", "running"),
        ("stop", "stopped"),
    ]:
        assert post_json(client, f"/api/loops/alpha/{verb}")["status"] == status
        assert post_json(client, f"/api/loops/alpha/{verb}")["status"] == status, "repeated"


def test_a_raised_limit_resumes_a_loop(client: TestClient, context: ConsoleContext) -> None:
    """Given an attempt whose usage is unknown, so that all that it had reserved counts."""
    create(client, budget={"attempt": {"tokens": 10}, "loop": {"tokens": 10}})
    post_json(client, "/api/loops/alpha/start")
    work_on_loop(context)
    found = get_json(client, "/api/loops/alpha")
    assert (found["status"], found["why"]["cause"]) == ("paused", "budget")
    refused = client.post("/api/loops/alpha/resume")
    assert error_of(refused) == (409, "conflict")
    changed = client.patch("/api/loops/alpha", json={"budget": {"loop": {"tokens": "1k"}}})
    assert changed.status_code == 200, changed.text
    work_on_loop(context)
    assert get_json(client, "/api/loops/alpha")["status"] == "completed"


def test_a_configuration_that_is_not_possible_is_refused(client: TestClient) -> None:
    create(client)
    refusals: list[tuple[Any, str]] = [
        ({"name": "beta"}, "name: cannot be changed"),
        ({"priority": 0}, "priority: must be at least 1"),
        ({"priority": True}, "priority: must be a number"),
        ({"budget": {"day": {"seconds": True}}}, "budget.day.seconds: must be a number"),
        ({"budget": {"loop": {"tokens": "many"}}}, "budget.loop.tokens"),
        ({"runner": "unknown"}, "runner"),
        ([], "body: must be a JSON object"),
    ]
    for values, line in refusals:
        answer = client.patch("/api/loops/alpha", json=values)
        assert answer.status_code == 422, answer.text
        assert line in answer.json()["error"]["details"][0]


def test_items_are_reset_skipped_and_added(client: TestClient, context: ConsoleContext) -> None:
    create(client, item("one", runner=BAD), item("two", "one"), max_attempts=2)
    post_json(client, "/api/loops/alpha/start")
    refused = client.post("/api/loops/alpha/tests/two/reset")
    assert error_of(refused) == (409, "conflict")
    work_on_loop(context)
    for line in ("two\u2028lines", "\u200ereversed"):
        refused = client.post("/api/loops/alpha/tests/one/skip", json={"reason": line})
        assert refused.json()["error"]["details"] == [
            "body.reason: must be one line without control characters"
        ]
    skipped = post_json(client, "/api/loops/alpha/tests/one/skip", reason="not needed")
    assert (skipped["state"], skipped["reason"]) == ("skipped", "not needed")
    work_on_loop(context)
    assert states(client) == {"one": "skipped", "two": "passed"}
    added = post_json(client, "/api/loops/alpha/tests", 201, **item("three", "two"))
    assert [each["id"] for each in added["tests"]] == ["three"]
    post_json(client, "/api/loops/alpha/tests", 201, items=[item("four"), item("five", "four")])
    work_on_loop(context)
    assert get_json(client, "/api/loops/alpha")["progress"] == {"passed": 4, "total": 5}
    again = client.post("/api/loops/alpha/tests", json=item("three"))
    assert error_of(again) == (409, "conflict")
    wrong = client.post("/api/loops/alpha/tests", json=item("six", verifiers=["json.objet"]))
    assert wrong.status_code == 422
    wrong = client.post("/api/loops/alpha/tests", json=item("six", "ghost"))
    assert error_of(wrong)[0] == 422
    assert wrong.json()["error"]["details"] == [
        "items[0].depends_on[0]: six depends on ghost, which does not exist"
    ]


def test_a_loop_that_does_nothing_is_deleted(client: TestClient) -> None:
    create(client)
    post_json(client, "/api/loops/alpha/start")
    held = client.delete("/api/loops/alpha")
    assert error_of(held) == (409, "conflict")
    assert "stop it first" in held.json()["error"]["message"]
    post_json(client, "/api/loops/alpha/stop")
    assert client.delete("/api/loops/alpha").status_code == 204
    assert error_of(client.delete("/api/loops/alpha")) == (404, "not_found")


def test_the_slots_of_all_loops(client: TestClient, context: ConsoleContext) -> None:
    assert get_json(client, "/api/loop-slots") == {
        "slots": context.settings.loop_slots,
        "set": False,
    }
    assert client.put("/api/loop-slots", json={"slots": 7}).json() == {"slots": 7, "set": True}
    create(client)
    assert get_json(client, "/api/loops/alpha")["resources"]["slots"] == 7
    assert client.put("/api/loop-slots", json={"slots": None}).json()["set"] is False
    assert client.put("/api/loop-slots", json={"slots": -1}).status_code == 422
    assert client.put("/api/loop-slots", json={}).status_code == 422
    refused = client.put("/api/loop-slots", json={"slots": True})
    assert refused.json()["error"]["details"] == ["body.slots: must be a number"]


PATHS = [
    ("GET", ""),
    ("GET", "/health"),
    ("GET", "/why"),
    ("GET", "/log"),
    ("GET", "/tests"),
    ("GET", "/tests/one"),
    ("GET", "/transcripts"),
    ("GET", "/transcripts/stream"),
    ("PATCH", ""),
    ("POST", "/start"),
    ("POST", "/stop"),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("POST", "/tests"),
    ("POST", "/tests/one/reset"),
    ("POST", "/tests/one/skip"),
    ("DELETE", ""),
]


def _asked(method: str, path: str) -> dict[str, Any]:
    if method in ("GET", "DELETE"):
        return {}
    if method == "PATCH":
        return {"json": {"priority": 1}}
    return {"json": item("x") if path == "/tests" else {}}


def test_what_does_not_exist_is_404(client: TestClient) -> None:
    create(client)
    for method, path in PATHS:
        asked = _asked(method, path)
        for name in ("beta", "alpha:items", "%20"):
            answer = client.request(method, f"/api/loops/{name}{path}", **asked)
            assert error_of(answer) == (404, "not_found"), (method, path, name)
        if "/tests/one" in path:
            unknown = path.replace("one", "ten")
            answer = client.request(method, f"/api/loops/alpha{unknown}", **asked)
            assert error_of(answer) == (404, "not_found")
            assert answer.json()["error"]["message"] == "the loop 'alpha' has no item 'ten'"


# -- idempotency -----------------------------------------------------------------------------------


def test_a_change_with_a_key_is_made_once(client: TestClient) -> None:
    create(client)
    key = {"Idempotency-Key": "k1"}
    first = client.post("/api/loops/alpha/tests", json=item("three"), headers=key)
    again = client.post("/api/loops/alpha/tests", json=item("three"), headers=key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    for path, asked in [("tests", item("four")), ("start", None)]:
        other = client.post(f"/api/loops/alpha/{path}", json=asked, headers=key)
        assert error_of(other) == (409, "key_in_use")
    assert set(states(client)) == {"one", "two", "three"}


def test_a_key_belongs_to_one_loop(client: TestClient) -> None:
    """Given a loop of the same name that was deleted."""
    key = {"Idempotency-Key": "k1"}
    create(client)
    client.post("/api/loops/alpha/start", headers=key)
    post_json(client, "/api/loops/alpha/stop")
    client.delete("/api/loops/alpha")
    create(client)
    assert client.post("/api/loops/alpha/start", headers=key).json()["status"] == "running"


# -- roles, tenants and texts ----------------------------------------------------------------------


def test_ops_control_loops_and_create_none(context: ConsoleContext) -> None:
    producer = client_of(context, new_token(context, role="producer"))
    ops = client_of(context, new_token(context, role="ops"))
    nobody = client_of(context)
    assert nobody.get("/api/loops").status_code == 401
    assert error_of(ops.post("/api/loops", json=body())) == (403, "forbidden")
    create(producer)
    assert error_of(ops.post("/api/loops/alpha/tests", json=item("x"))) == (403, "forbidden")
    assert post_json(ops, "/api/loops/alpha/start")["status"] == "running"
    assert ops.patch("/api/loops/alpha", json={"priority": 1}).status_code == 200
    assert error_of(producer.put("/api/loop-slots", json={"slots": 1})) == (403, "forbidden")
    assert ops.put("/api/loop-slots", json={"slots": 1}).status_code == 200


def test_without_texts_prompts_and_answers_are_hidden(context: ConsoleContext) -> None:
    admin = client_of(context, new_token(context, role="admin"))
    ops = client_of(context, new_token(context, role="ops", texts=False))
    secret = item("one", prompt="SECRET", pass_criteria=["SECRET"],
                  verifiers=[{"id": "text.match", "contains": "SECRET"}],
                  runner={"kind": "scripted", "answers": ["SECRET"]})  # fmt: skip
    create(admin, secret, runner={"kind": "scripted", "answers": ["SECRET"]})
    post_json(admin, "/api/loops/alpha/start")
    work_on_loop(context)
    for path in ("", "/tests", "/tests/one", "/transcripts", "/log", "/why"):
        answer = ops.get(f"/api/loops/alpha{path}")
        assert (answer.status_code, "SECRET" in answer.text) == (200, False), path
    assert get_json(ops, "/api/loops/alpha/tests/one")["prompt"] == REDACTED
    assert "SECRET" in admin.get("/api/loops/alpha/transcripts").text


@pytest.fixture
def tenants(context: ConsoleContext) -> tuple[TestClient, TestClient]:
    tokens = [new_token(context, role="admin", tenant=name) for name in ("acme", "zeta")]
    return client_of(context, tokens[0]), client_of(context, tokens[1])


def test_a_tenant_sees_only_its_own_loops(
    tenants: tuple[TestClient, TestClient], context: ConsoleContext
) -> None:
    acme, zeta = tenants
    create(acme)
    assert get_json(acme, "/api/loops")["loops"][0]["tenant"] == "acme"
    assert get_json(zeta, "/api/loops")["loops"] == []
    before = get_json(acme, "/api/loops/alpha")
    for method, path in PATHS:
        asked = _asked(method, path)
        answer = zeta.request(method, f"/api/loops/alpha{path}", **asked)
        # So similar a name would be suggested to those who may see it.
        missing = zeta.request(method, f"/api/loops/alphas{path}", **asked)
        assert error_of(answer) == (404, "not_found"), path
        assert answer.text.replace("alpha", "alphas") == missing.text, path
    assert get_json(acme, "/api/loops/alpha") == before, "nothing was changed"
    assert error_of(zeta.get("/api/loop-slots")) == (403, "tenants")
    other = acme.post("/api/loops", json={**body(name="gamma"), "tenant": "zeta"})
    assert error_of(other) == (403, "other_tenant")
    # The jobs of its items are its own, too.
    post_json(acme, "/api/loops/alpha/start")
    run_plan(context.services.loops, "alpha")
    job_id = get_json(acme, "/api/loops/alpha/tests/one")["job_id"]
    assert acme.get(f"/api/jobs/{job_id}").status_code == 200
    assert zeta.get(f"/api/jobs/{job_id}").status_code == 404


def test_a_tenant_does_not_learn_the_names_of_others(
    tenants: tuple[TestClient, TestClient], context: ConsoleContext
) -> None:
    """Given two loops of different tenants that share one slot."""
    acme, zeta = tenants
    context.ledger.set_loop_slots(1)
    create(acme, item("one"), item("two"), priority=1, name="secret-plan")
    create(zeta, item("one"), item("two"))
    post_json(acme, "/api/loops/secret-plan/start")
    post_json(zeta, "/api/loops/alpha/start")
    for name in ("secret-plan", "alpha", "secret-plan"):
        run_plan(context.services.loops, name)
    waits = get_json(zeta, "/api/loops/alpha/why", test="one")
    assert "another loop with priority 1 goes first" in waits["text"]
    post_json(acme, "/api/loops/secret-plan/stop")
    run_plan(context.services.loops, "secret-plan")
    for path in ("", "/tests", "/tests/one", "/log", "/health", "/why"):
        assert "secret-plan" not in zeta.get(f"/api/loops/alpha{path}").text, path
    notes = get_json(acme, "/api/loops/secret-plan/log")["log"]
    assert any(each["note"] == "one got a slot" for each in notes)
