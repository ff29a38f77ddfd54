"""Edits over HTTP: submitting a plan, reviewing its edits and rolling them back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from starlette.testclient import TestClient
from support.console_server import client_of, get_json, new_token, post_json
from support.file_trees import snapshot

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.console.http.routes.edit_routes import edit_engine
from mulligan.workers.edits.sessions.engine import build_edit_engine
from mulligan.workers.settings.model import Settings

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "edits" / "config"
Body = dict[str, Any]


def plan() -> Body:
    found: Body = YAML(typ="safe").load(EXAMPLE / "plan.yaml")
    return found


def suite() -> Body:
    found: Body = YAML(typ="safe").load(EXAMPLE / "suite.yaml")
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE / "tree", tmp_path / "tree"))


@pytest.fixture
def context(settings: Callable[..., Settings], tree: Path, tmp_path: Path) -> ConsoleContext:
    return open_context(
        settings(workspaces={"shop": tree}, allow_inline=True, home=tmp_path / "home")
    )


@pytest.fixture
def api(context: ConsoleContext) -> TestClient:
    return client_of(context)


def submit(api: TestClient, status: int = 202, **body: Any) -> Body:
    defaults = {"plan": plan(), "suite": suite(), "workspace": "shop"}
    return post_json(api, "/api/edits", status, **{**defaults, **body})


def work(context: ConsoleContext, session: str) -> None:
    """Do what an edit worker does, until only reviews are left."""
    engine = edit_engine(context)
    while engine.work(session).phase != "done":
        pass


def states(found: Body) -> dict[str, str]:
    return {
        record["edit"]["id"]: f"{record['outcome']['status']} {record['outcome']['reason']}"
        for record in found["records"]
    }


def plan_of(*ids: str) -> Body:
    """Return the example plan with only these edits."""
    return {"edits": [each for each in plan()["edits"] if each["id"] in ids]}


def review_plan(edit: str = "m5", **more: Any) -> Body:
    """Return a plan with one edit, by default one that needs a review."""
    return {**plan_of(edit), **more}


# -- a whole session -------------------------------------------------------------------------------


def test_a_plan_is_applied_reviewed_and_rolled_back(
    context: ConsoleContext, api: TestClient, tree: Path
) -> None:
    untouched = snapshot(tree)
    response = api.post(
        "/api/edits", json={"plan": plan(), "suite": suite(), "workspace": "shop", "mode": "tiered"}
    )
    assert response.status_code == 202
    session = response.json()["session"]
    assert response.headers["Location"] == f"/api/edits/{session}"
    # Submitting applies nothing: the edit worker does.
    assert (response.json()["phase"], response.json()["workspace"]) == ("ready", "shop")
    assert snapshot(tree) == untouched
    work(context, session)

    found = get_json(api, f"/api/edits/{session}")
    assert states(found) == {
        "m1": "applied kept",
        "m2": "rejected_by_gate regression",
        "m3": "applied kept",
        "m4": "skipped no_op",
        "m5": "pending_review review_tier",
        "m6": "skipped manual_tier",
    }
    kept = found["records"][0]
    assert kept["outcome"]["cluster_deltas"]["extraction"] == 0.35
    assert "+temperature = 0.2" in kept["diff"]
    assert found["statuses"] == {
        "applied": 2, "rejected_by_gate": 1, "skipped": 2, "pending_review": 1,
    }  # fmt: skip

    (row,) = get_json(api, "/api/edits")["sessions"]
    assert (row["session"], row["waiting"], row["phase"]) == (session, 2, "done")
    reviews = get_json(api, "/api/edits/reviews")["reviews"]
    assert [review["edit"]["id"] for review in reviews] == ["m5", "m6"]

    # An approved edit still has to pass the gate, and this one improves nothing.
    approved = post_json(api, f"/api/edits/{session}/m5/approve", 202, note="try it")
    assert (approved["outcome"], approved["approved_by"]) == (None, "loopback")
    work(context, session)
    judged = get_json(api, f"/api/edits/{session}")
    assert states(judged)["m5"] == "rejected_by_gate no_improvement"
    rejected = post_json(api, f"/api/edits/{session}/m6/reject", 200, note="not here")
    assert rejected["outcome"]["status"] == "rejected_by_user"
    assert (rejected["note"], rejected["decided_by"]) == ("not here", "loopback")

    history = get_json(api, "/api/edits/history", cluster="extraction")["deltas"]
    assert [delta["edit_id"] for delta in history] == ["m5", "m3", "m2", "m1"]
    assert get_json(api, "/api/edits/history", session="other")["deltas"] == []

    one = api.post(f"/api/edits/{session}/m1/rollback").json()  # a body is optional
    assert "rolled back" in one["said"]
    assert states(one)["m1"] == "rolled_back rolled_back"
    done = post_json(api, f"/api/edits/{session}/rollback", 200, note="all of it")
    assert states(done)["m3"] == "rolled_back rolled_back"
    assert snapshot(tree) == untouched


def test_approving_an_edit_of_a_command_s_session_hands_it_to_the_worker(
    context: ConsoleContext, api: TestClient, tree: Path
) -> None:
    from mulligan.policies.edits.edit import AutonomyMode, EditPlan

    engine = edit_engine(context)
    parsed = EditPlan.model_validate(review_plan())
    started = engine.begin(parsed, tree, AutonomyMode.TIERED, suite=None, inline=True)
    engine.drive(started.id)
    post_json(api, f"/api/edits/{started.id}/m5/approve", 202)
    session = engine.sessions.get(started.id).session
    assert (session.inline, session.phase) == (False, "ready")


@pytest.mark.parametrize("host", [None, "other-host"])
def test_an_edit_that_only_the_command_line_may_measure_is_approved_there(
    settings: Callable[..., Settings], tree: Path, tmp_path: Path, host: str | None
) -> None:
    """The suite has commands, which workers may not run here. The refusal changes nothing."""
    from mulligan.policies.edits.edit import AutonomyMode, EditPlan
    from mulligan.policies.edits.suite import Suite

    config = settings(workspaces={"shop": tree}, home=tmp_path / "home")
    strict = open_context(config)
    engine = build_edit_engine(config, strict.ledger, None, commands=True)
    if host is not None:
        engine = replace(engine, host=host)
    parsed = EditPlan.model_validate(review_plan())
    started = engine.begin(
        parsed, tree, AutonomyMode.TIERED, suite=Suite.model_validate(suite()), inline=True
    )
    waiting = engine.drive(started.id)
    assert waiting.outcomes[0].benchmark_delta is not None
    refused = post_json(client_of(strict), f"/api/edits/{started.id}/m5/approve", 409)["error"]
    advice = f"approve it with `mulligan edits review approve {started.id}/m5`"
    assert advice in refused["message"]
    assert "a suite may not contain commands here" in refused["details"][0]
    assert engine.sessions.get(started.id).session == waiting


# -- refusals --------------------------------------------------------------------------------------

TWICE = {"edits": [plan()["edits"][0]] * 2}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"workspace": "shp"}, "did you mean 'shop'?"),
        ({"workspace": "/etc"}, "a path is not allowed here"),
        ({"root": "/etc"}, "root: there is no such field"),
        ({"suite": None}, "plan.benchmark.suite: cannot be a file here"),
        ({"config": "../.."}, ".."),
        ({"plan": TWICE}, "plan.edits[1].id: 'm1' is used twice"),
        ({"plan": {"edits": []}}, "edits"),
        ({"plan": review_plan(session="history")}, "is a reserved name"),
        ({"mode": "yolo"}, "mode"),
        ({"suite": {"tasks": [{"id": "x", "command": ["no-such-program"]}]}}, "no-such-program"),
    ],
)
def test_an_invalid_submission_is_refused_with_the_reason(
    api: TestClient, body: Body, expected: str
) -> None:
    refused = submit(api, 422, **body)["error"]
    assert expected in "\n".join(refused["details"]), refused


def test_a_lone_surrogate_is_refused_in_every_field(api: TestClient) -> None:
    surrogate = "\ud800"
    (edit,) = plan_of("m5")["edits"]
    for broken in (
        {**edit, "rationale": surrogate},
        {**edit, "payload": {"agent": surrogate}},
        {**edit, "payload": {"agent": [{"deep": surrogate}]}},
        {**edit, "target": surrogate},
    ):
        body = json.dumps({"plan": {"edits": [broken]}, "workspace": "shop"})
        response = api.post(
            "/api/edits", content=body, headers={"Content-Type": "application/json"}
        )
        assert response.status_code == 422, (broken, response.text)
    session = submit(api, plan=plan_of("m5"))["session"]
    for action in ("approve", "reject", "rollback"):
        response = api.post(
            f"/api/edits/{session}/m5/{action}",
            content=json.dumps({"note": surrogate}),
            headers={"Content-Type": "application/json"},
        )
        assert response.status_code == 422, (action, response.text)


def test_a_suite_may_not_bring_commands_where_inline_definitions_are_off(
    settings: Callable[..., Settings], tree: Path, tmp_path: Path
) -> None:
    strict = open_context(settings(workspaces={"shop": tree}, home=tmp_path / "home"))
    refused = submit(client_of(strict), 422)["error"]
    assert "a suite may not contain commands here" in refused["details"][0]


def test_a_session_name_is_idempotent_and_refuses_another_plan(api: TestClient) -> None:
    first = submit(api, plan=review_plan(session="tune"))
    assert submit(api, plan=review_plan(session="tune"))["created_at"] == first["created_at"]
    refused = submit(api, 409, plan=review_plan("m1", session="tune"))["error"]
    assert refused["code"] == "session_exists"


def test_an_impossible_decision_is_refused(context: ConsoleContext, api: TestClient) -> None:
    session = submit(api, plan=review_plan(session="tune"))["session"]
    for path, status in (
        ("/api/edits/unknown/m5/approve", 404),
        ("/api/edits/deltas/m5/approve", 404),
        (f"/api/edits/{session}/m9/approve", 404),
        (f"/api/edits/{session}/m5/approve", 409),  # not planned yet
        ("/api/edits/unknown/rollback", 404),
        (f"/api/edits/{session}/m5/rollback", 409),
    ):
        post_json(api, path, status)
    work(context, session)
    post_json(api, f"/api/edits/{session}/m5/reject", 422)
    post_json(api, f"/api/edits/{session}/m5/reject", 422, note="  ")
    post_json(api, f"/api/edits/{session}/m5/reject", 200, note="no")
    again = post_json(api, f"/api/edits/{session}/m5/approve", 409)["error"]
    assert "rejected_by_user" in again["message"]


def test_a_rollback_refuses_to_overwrite_later_changes(
    context: ConsoleContext, api: TestClient, tree: Path
) -> None:
    session = submit(api, plan=plan_of("m1"))["session"]
    work(context, session)
    file = tree / "agents.toml"
    file.write_text(file.read_text().replace("temperature = 0.2 ", "temperature = 0.3 ", 1))
    refused = post_json(api, f"/api/edits/{session}/m1/rollback", 409)["error"]
    assert refused["code"] == "conflict"
    assert "agents.toml" in refused["details"][0]
    assert "temperature = 0.3 " in file.read_text()


# -- access ----------------------------------------------------------------------------------------


def test_access_to_edits_depends_on_role_tenant_and_texts(context: ConsoleContext) -> None:
    producer, ops, reader, bound = (
        client_of(context, new_token(context, **fields))
        for fields in (
            {"role": "producer"},
            {"role": "ops"},
            {"role": "ops", "texts": True},
            {"role": "producer", "tenant": "acme"},
        )
    )
    submit(bound, 403)
    session = submit(producer, plan=plan_of("m1", "m5"))["session"]
    work(context, session)
    post_json(producer, f"/api/edits/{session}/m5/approve", 403)
    post_json(producer, f"/api/edits/{session}/rollback", 403)
    for path in ("", "/reviews", "/history", f"/{session}"):
        assert producer.get(f"/api/edits{path}").status_code == 200
        assert bound.get(f"/api/edits{path}").status_code == 403
    for client, hidden in ((producer, False), (reader, False), (ops, True)):
        first = get_json(client, f"/api/edits/{session}")["records"][0]
        texts = (first["diff"], first["edit"]["rationale"], first["edit"]["payload"]["value"])
        assert (texts == ("[redacted]",) * 3) == hidden
        assert first["outcome"]["benchmark_delta"] > 0
    (review,) = get_json(ops, "/api/edits/reviews")["reviews"]
    assert review["diff"] == "[redacted]"
    post_json(ops, f"/api/edits/{session}/m5/reject", 200, note="no")


# -- the page --------------------------------------------------------------------------------------


def test_the_pages_show_edits_and_redact_their_texts(context: ConsoleContext) -> None:
    admin = client_of(context, new_token(context, role="admin"))
    ops = client_of(context, new_token(context, role="ops"))
    bound = client_of(context, new_token(context, role="ops", tenant="acme"))
    session = submit(admin, plan=plan_of("m2", "m5"))["session"]
    work(context, session)
    for path in ("/edits", f"/edits/{session}", f"/edits/{session}/m5", f"/edits/{session}/m2"):
        shown = admin.get(path)
        assert shown.status_code == 200, path
        assert "Undefined" not in shown.text
    review = admin.get(f"/edits/{session}/m5").text
    assert '<span class="add">+class = &#34;PlanAndAct&#34;</span>' in review
    assert f"/api/edits/{session}/m5/approve" in review
    hidden = ops.get(f"/edits/{session}/m5").text
    assert "PlanAndAct" not in hidden
    assert "may not read texts" in hidden
    assert admin.get("/edits/none").status_code == 404
    assert bound.get("/edits").status_code == 403
    assert 'href="/edits"' not in bound.get("/").text


def test_a_note_is_redacted_without_access_to_texts(context: ConsoleContext) -> None:
    """Given an edit that waits for review and could not be applied to the current tree."""
    admin = client_of(context, new_token(context, role="admin"))
    ops = client_of(context, new_token(context, role="ops"))
    edit = {"id": "gone", "op": "delete_file", "target": "nowhere.txt"}
    session = submit(admin, plan={"edits": [edit]})["session"]
    work(context, session)
    outcome = get_json(admin, f"/api/edits/{session}")["records"][0]["outcome"]
    assert "would be rejected_by_gate (apply_error): nowhere.txt" in outcome["notes"][0]
    assert "would be rejected_by_gate (apply_error)" in admin.get(f"/edits/{session}/gone").text
    hidden = get_json(ops, f"/api/edits/{session}")["records"][0]["outcome"]
    assert hidden["notes"] == ["[redacted]"]
    assert "nowhere.txt: " not in ops.get(f"/edits/{session}/gone").text
