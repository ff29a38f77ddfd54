"""Edits over HTTP: a plan goes in, a worker does it, people decide, and it can be taken back."""

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
from support.console_server import client_of, new_token
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
    given = {"plan": plan(), "suite": suite(), "workspace": "shop", **body}
    answer = api.post("/api/edits", json=given)
    assert answer.status_code == status, answer.text
    found: Body = answer.json()
    return found


def post(api: TestClient, path: str, status: int, body: Body | None = None) -> Body:
    answer = api.post(path, json=body)
    assert answer.status_code == status, answer.text
    found: Body = answer.json()
    return found


def get(api: TestClient, path: str, **params: Any) -> Body:
    answer = api.get(path, params=params)
    assert answer.status_code == 200, answer.text
    found: Body = answer.json()
    return found


def work(context: ConsoleContext, session: str) -> None:
    """What an edit worker does, until nothing is left that needs no person."""
    engine = edit_engine(context)
    while engine.work(session).phase != "done":
        pass


def states(found: Body) -> dict[str, str]:
    return {
        record["edit"]["id"]: f"{record['outcome']['status']} {record['outcome']['reason']}"
        for record in found["records"]
    }


def some(*ids: str) -> Body:
    """A plan with these edits."""
    return {"edits": [each for each in plan()["edits"] if each["id"] in ids]}


def only_approval(edit: str = "m5", **more: Any) -> Body:
    """A plan with one edit that waits for a person."""
    return {**some(edit), **more}


# -- the story -------------------------------------------------------------------------------------


def test_a_plan_is_worked_on_reviewed_and_taken_back(
    context: ConsoleContext, api: TestClient, tree: Path
) -> None:
    untouched = snapshot(tree)
    answer = api.post(
        "/api/edits", json={"plan": plan(), "suite": suite(), "workspace": "shop", "mode": "tiered"}
    )
    assert answer.status_code == 202
    session = answer.json()["session"]
    assert answer.headers["Location"] == f"/api/edits/{session}"
    # Nothing is applied by handing it in: that is the edit worker's.
    assert (answer.json()["phase"], answer.json()["workspace"]) == ("ready", "shop")
    assert snapshot(tree) == untouched
    work(context, session)

    found = get(api, f"/api/edits/{session}")
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

    (row,) = get(api, "/api/edits")["sessions"]
    assert (row["session"], row["waiting"], row["phase"]) == (session, 2, "done")
    reviews = get(api, "/api/edits/reviews")["reviews"]
    assert [review["edit"]["id"] for review in reviews] == ["m5", "m6"]

    # An approved edit still passes the gate, and this one betters nothing.
    approved = post(api, f"/api/edits/{session}/m5/approve", 202, {"note": "try it"})
    assert (approved["outcome"], approved["approved_by"]) == (None, "loopback")
    work(context, session)
    judged = get(api, f"/api/edits/{session}")
    assert states(judged)["m5"] == "rejected_by_gate no_improvement"
    rejected = post(api, f"/api/edits/{session}/m6/reject", 200, {"note": "not here"})
    assert rejected["outcome"]["status"] == "rejected_by_user"
    assert (rejected["note"], rejected["decided_by"]) == ("not here", "loopback")

    history = get(api, "/api/edits/history", cluster="extraction")["deltas"]
    assert [delta["edit_id"] for delta in history] == ["m5", "m3", "m2", "m1"]
    assert get(api, "/api/edits/history", session="other")["deltas"] == []

    one = post(api, f"/api/edits/{session}/m1/rollback", 200)
    assert "rolled back" in one["said"]
    assert states(one)["m1"] == "rolled_back rolled_back"
    done = post(api, f"/api/edits/{session}/rollback", 200, {"note": "all of it"})
    assert states(done)["m3"] == "rolled_back rolled_back"
    assert snapshot(tree) == untouched


def test_a_session_that_a_command_left_is_handed_to_the_worker(
    context: ConsoleContext, api: TestClient, tree: Path
) -> None:
    from mulligan.policies.edits.edit import AutonomyMode, EditPlan

    engine = edit_engine(context)
    made = EditPlan.model_validate(only_approval())
    begun = engine.begin(made, tree, AutonomyMode.TIERED, suite=None, inline=True)
    engine.drive(begun.id)
    post(api, f"/api/edits/{begun.id}/m5/approve", 202)
    session = engine.sessions.get(begun.id).session
    assert (session.inline, session.phase) == (False, "ready")


@pytest.mark.parametrize("host", [None, "elsewhere"])
def test_what_only_a_command_may_measure_is_approved_by_a_command(
    settings: Callable[..., Settings], tree: Path, tmp_path: Path, host: str | None
) -> None:
    """Its suite has commands, which a worker may not run here: nothing is lost by asking."""
    from mulligan.policies.edits.edit import AutonomyMode, EditPlan
    from mulligan.policies.edits.suite import Suite

    chosen = settings(workspaces={"shop": tree}, home=tmp_path / "home")
    strict = open_context(chosen)
    engine = build_edit_engine(chosen, strict.ledger, None, commands=True)
    if host is not None:
        engine = replace(engine, host=host)
    made = EditPlan.model_validate(only_approval())
    begun = engine.begin(
        made, tree, AutonomyMode.TIERED, suite=Suite.model_validate(suite()), inline=True
    )
    waits = engine.drive(begun.id)
    assert waits.outcomes[0].benchmark_delta is not None
    refused = post(client_of(strict), f"/api/edits/{begun.id}/m5/approve", 409)["error"]
    told = f"approve it with `mulligan edits review approve {begun.id}/m5`"
    assert told in refused["message"]
    assert "a suite may bring no commands here" in refused["details"][0]
    assert engine.sessions.get(begun.id).session == waits


# -- what is refused -------------------------------------------------------------------------------

TWICE = {"edits": [plan()["edits"][0]] * 2}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"workspace": "shp"}, "did you mean 'shop'?"),
        ({"workspace": "/etc"}, "a path cannot be given here"),
        ({"root": "/etc"}, "root: there is no such field"),
        ({"suite": None}, "plan.benchmark.suite: no file can be named here"),
        ({"config": "../.."}, ".."),
        ({"plan": TWICE}, "plan.edits[1].id: 'm1' is given twice"),
        ({"plan": {"edits": []}}, "edits"),
        ({"plan": only_approval(session="history")}, "means something else here"),
        ({"mode": "yolo"}, "mode"),
        ({"suite": {"tasks": [{"id": "x", "command": ["no-such-program"]}]}}, "no-such-program"),
    ],
)
def test_what_cannot_be_done_is_said(api: TestClient, body: Body, said: str) -> None:
    refused = submit(api, 422, **body)["error"]
    assert said in "\n".join(refused["details"]), refused


def test_half_a_character_is_refused_wherever_it_stands(api: TestClient) -> None:
    half = "\ud800"
    (edit,) = some("m5")["edits"]
    for broken in (
        {**edit, "rationale": half},
        {**edit, "payload": {"agent": half}},
        {**edit, "payload": {"agent": [{"deep": half}]}},
        {**edit, "target": half},
    ):
        body = json.dumps({"plan": {"edits": [broken]}, "workspace": "shop"})
        answer = api.post("/api/edits", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422, (broken, answer.text)
    session = submit(api, plan=some("m5"))["session"]
    for what in ("approve", "reject", "rollback"):
        answer = api.post(
            f"/api/edits/{session}/m5/{what}",
            content=json.dumps({"note": half}),
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code == 422, (what, answer.text)


def test_a_suite_brings_no_programs_where_jobs_may_not(
    settings: Callable[..., Settings], tree: Path, tmp_path: Path
) -> None:
    strict = open_context(settings(workspaces={"shop": tree}, home=tmp_path / "home"))
    refused = submit(client_of(strict), 422)["error"]
    assert "a suite may bring no commands here" in refused["details"][0]


def test_a_name_stands_for_one_session(api: TestClient) -> None:
    first = submit(api, plan=only_approval(session="tune"))
    assert submit(api, plan=only_approval(session="tune"))["created_at"] == first["created_at"]
    refused = submit(api, 409, plan=only_approval("m1", session="tune"))["error"]
    assert refused["code"] == "session_exists"


def test_a_decision_that_cannot_be_taken_is_a_conflict(
    context: ConsoleContext, api: TestClient
) -> None:
    session = submit(api, plan=only_approval(session="tune"))["session"]
    for path, status in (
        ("/api/edits/nobody/m5/approve", 404),
        ("/api/edits/deltas/m5/approve", 404),
        (f"/api/edits/{session}/m9/approve", 404),
        (f"/api/edits/{session}/m5/approve", 409),  # nobody has looked at it yet
        ("/api/edits/nobody/rollback", 404),
        (f"/api/edits/{session}/m5/rollback", 409),
    ):
        post(api, path, status)
    work(context, session)
    post(api, f"/api/edits/{session}/m5/reject", 422)
    post(api, f"/api/edits/{session}/m5/reject", 422, {"note": "  "})
    post(api, f"/api/edits/{session}/m5/reject", 200, {"note": "no"})
    again = post(api, f"/api/edits/{session}/m5/approve", 409)["error"]
    assert "rejected_by_user" in again["message"]


def test_later_changes_are_a_conflict_and_stay(
    context: ConsoleContext, api: TestClient, tree: Path
) -> None:
    session = submit(api, plan=some("m1"))["session"]
    work(context, session)
    file = tree / "agents.toml"
    file.write_text(file.read_text().replace("temperature = 0.2 ", "temperature = 0.3 ", 1))
    refused = post(api, f"/api/edits/{session}/m1/rollback", 409)["error"]
    assert refused["code"] == "conflict"
    assert "agents.toml" in refused["details"][0]
    assert "temperature = 0.3 " in file.read_text()


# -- who may what ----------------------------------------------------------------------------------


def test_roles_tenants_and_texts(context: ConsoleContext, tree: Path) -> None:
    producer, ops, reader, bound = (
        client_of(context, new_token(context, **fields))
        for fields in (
            {"role": "producer"},
            {"role": "ops"},
            {"role": "ops", "texts": True},
            {"role": "producer", "tenant": "acme"},
        )
    )
    submit(ops, 403)
    submit(bound, 403)
    session = submit(producer, plan=some("m1", "m5"))["session"]
    work(context, session)
    post(producer, f"/api/edits/{session}/m5/approve", 403)
    post(producer, f"/api/edits/{session}/rollback", 403)
    for path in ("", "/reviews", "/history", f"/{session}"):
        assert producer.get(f"/api/edits{path}").status_code == 200
        assert bound.get(f"/api/edits{path}").status_code == 403
    for client, hidden in ((producer, False), (reader, False), (ops, True)):
        first = get(client, f"/api/edits/{session}")["records"][0]
        texts = (first["diff"], first["edit"]["rationale"], first["edit"]["payload"]["value"])
        assert (texts == ("[redacted]",) * 3) == hidden
        assert first["outcome"]["benchmark_delta"] > 0
    (review,) = get(ops, "/api/edits/reviews")["reviews"]
    assert review["diff"] == "[redacted]"
    post(ops, f"/api/edits/{session}/m5/reject", 200, {"note": "no"})


# -- the page --------------------------------------------------------------------------------------


def test_the_pages_show_it_and_hide_what_may_not_be_read(context: ConsoleContext) -> None:
    admin = client_of(context, new_token(context, role="admin"))
    ops = client_of(context, new_token(context, role="ops"))
    bound = client_of(context, new_token(context, role="ops", tenant="acme"))
    session = submit(admin, plan=some("m2", "m5"))["session"]
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


def test_a_note_is_shown_to_those_who_may_read_it(context: ConsoleContext, tree: Path) -> None:
    """An edit that waits, and that could not be applied as the tree is."""
    admin = client_of(context, new_token(context, role="admin"))
    ops = client_of(context, new_token(context, role="ops"))
    edit = {"id": "gone", "op": "delete_file", "target": "nowhere.txt"}
    session = submit(admin, plan={"edits": [edit]})["session"]
    work(context, session)
    outcome = get(admin, f"/api/edits/{session}")["records"][0]["outcome"]
    assert "would be rejected_by_gate (apply_error): nowhere.txt" in outcome["notes"][0]
    assert "would be rejected_by_gate (apply_error)" in admin.get(f"/edits/{session}/gone").text
    hidden = get(ops, f"/api/edits/{session}")["records"][0]["outcome"]
    assert hidden["notes"] == ["[redacted]"]
    assert "nowhere.txt: " not in ops.get(f"/edits/{session}/gone").text
