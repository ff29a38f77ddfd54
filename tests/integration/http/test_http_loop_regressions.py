"""Regressions over HTTP: what was found, asking for a check, and what everybody may read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.console_server import client_of, get_json, new_token, post_json
from support.git_repositories import UserRepository
from support.ledger_scenario import SettingsMaker
from support.loops import item

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.policies.loops.loop import ItemRecord, LoopChange
from mulligan.policies.regressions.record import ALL_ITEMS, CommitCheck, Regression, RegressionLog
from mulligan.tasks.ports.ledger import LoopReading, LoopWrite, Written

SECRET = "a secret that a check quotes"


@pytest.fixture
def context(settings: SettingsMaker) -> ConsoleContext:
    return open_context(settings(allow_inline=True))


@pytest.fixture
def client(context: ConsoleContext) -> TestClient:
    return client_of(context)


def read(context: ConsoleContext) -> LoopReading:
    reading = context.ledger.read_loop("alpha")
    assert reading is not None
    return reading


@pytest.fixture
def found(client: TestClient, context: ConsoleContext, tmp_path: Path) -> str:
    """A loop with a repository, a regression and a running check."""
    user = UserRepository.make(tmp_path / "user")
    agent = {"kind": "command", "argv": ["true"]}
    loop: dict[str, Any] = {"name": "alpha", "repo": str(user.path), "runner": agent}
    checked = item("one", verifiers=[{"id": "command.subprocess", "argv": ["true"]}])
    post_json(client, "/api/loops", 201, loop=loop, items=[checked], start=True)
    check = CommitCheck(
        number=1, commit="c" * 40, reason="merge", items=("one",), job_id="j", at=1.0
    )
    regression = Regression(
        number=2, item="one", runs=1, at=2.0, good="g", bad="b", seen="b", summary=SECRET,
        checks="pytest", culprit="c" * 40, culprit_kind="merge", culprit_item="<b>two</b>",
        status="reopened", difference=SECRET,
    )  # fmt: skip
    log = RegressionLog(check=check).with_found(regression)
    write = LoopWrite(reading=read(context), change=LoopChange(regressions=log, note="found"))
    assert isinstance(context.ledger.write_loop(write), Written)
    return "alpha"


def test_regressions_and_the_running_check_are_listed(client: TestClient, found: str) -> None:
    listed = get_json(client, "/api/loops/alpha/regressions")
    assert (listed["check"]["commit"], listed["check"]["tests"]) == ("c" * 40, ["one"])
    (row,) = listed["regressions"]
    assert (row["test"], row["status"], row["summary"]) == ("one", "reopened", SECRET)
    assert (row["culprit"], row["culprit_kind"]) == ("c" * 40, "merge")
    assert "difference" not in row


def test_the_board_links_the_culprit_and_escapes_texts(client: TestClient, found: str) -> None:
    html = client.get("/loops/alpha").text
    assert 'id="regressions"' in html
    assert f'href="/loops/alpha/checkpoints/{"c" * 40}"' in html
    assert "<b>two</b>" not in html


def test_quotations_need_the_right_to_read_texts(
    context: ConsoleContext, client: TestClient, found: str
) -> None:
    blind = client_of(context, new_token(context, role="ops", texts=False))
    for path in ("/api/loops/alpha/regressions", "/api/loops/alpha/log", "/loops/alpha"):
        assert SECRET not in blind.get(path).text, path
    (row,) = get_json(blind, "/api/loops/alpha/regressions")["regressions"]
    assert row["summary"] is None


def test_a_check_is_asked_for(client: TestClient, context: ConsoleContext, found: str) -> None:
    passed = {"one": ItemRecord(state="passed", runs=1, job_id="p00-1")}
    write = LoopWrite(reading=read(context), change=LoopChange(items=passed))
    assert isinstance(context.ledger.write_loop(write), Written)
    assert post_json(client, "/api/loops/alpha/verify", test="one")["asked"] == ["one"]
    assert post_json(client, "/api/loops/alpha/verify")["asked"] == [ALL_ITEMS, "one"]


def test_where_everything_was_good_last_is_said(
    client: TestClient, context: ConsoleContext, found: str
) -> None:
    assert get_json(client, "/api/loops/alpha/regressions")["good"] is None
    log = RegressionLog(good_commit="c" * 40, good_at=3.0)
    write = LoopWrite(reading=read(context), change=LoopChange(regressions=log))
    assert isinstance(context.ledger.write_loop(write), Written)
    good = get_json(client, "/api/loops/alpha/regressions")["good"]
    assert good == {"commit": "c" * 40, "at": 3.0}


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"test": "one"}, 409, "one has not passed"),
        ({}, 409, "no item has passed yet"),
        ({"test": "two"}, 404, "no item 'two'"),
        ({"test": "a b"}, 422, "test"),
        ({"tests": "one"}, 422, "tests"),
    ],
)
def test_what_cannot_be_verified_is_refused(
    client: TestClient, found: str, fields: dict[str, Any], status: int, message: str
) -> None:
    answer = client.post("/api/loops/alpha/verify", json=fields)
    assert answer.status_code == status
    assert message in answer.text


def test_another_tenants_loop_is_not_there(
    context: ConsoleContext, client: TestClient, found: str
) -> None:
    stranger = client_of(context, new_token(context, role="ops", tenant="acme"))
    assert stranger.get("/api/loops/alpha/regressions").status_code == 404
    assert stranger.post("/api/loops/alpha/verify").status_code == 404
