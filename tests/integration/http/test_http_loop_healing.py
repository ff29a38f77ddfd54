"""Healing loops over HTTP: what may be asked for, by whom, and what everybody may read of it."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient
from support.console_server import client_of, get_json, new_token, post_json
from support.ledger_scenario import SettingsMaker
from support.loops import item, work_on_loop

from mulligan.console.http.context import ConsoleContext, open_context

SECRET = "a secret that the answer quotes"
BAD = {"kind": "scripted", "answers": [SECRET]}


@pytest.fixture
def context(settings: SettingsMaker) -> ConsoleContext:
    return open_context(settings(allow_inline=True))


@pytest.fixture
def client(context: ConsoleContext) -> TestClient:
    return client_of(context)


@pytest.fixture
def failed(client: TestClient, context: ConsoleContext) -> str:
    """A loop whose first item failed; the second one waits for it."""
    loop: dict[str, Any] = {"name": "alpha", "runner": BAD, "concurrency": 10}
    items = [item("one"), item("two", "one")]
    post_json(client, "/api/loops", 201, loop=loop, items=items, start=True)
    work_on_loop(context)
    assert get_json(client, "/api/loops/alpha")["status"] == "blocked"
    return "alpha"


def test_an_item_is_analysed_and_healed(
    client: TestClient, context: ConsoleContext, failed: str
) -> None:
    found = get_json(client, "/api/loops/alpha/tests/one/analysis")
    assert found["pattern"] == "same"
    assert found["command"] == "mulligan loops heal alpha one --action change_strategy"
    made = post_json(client, "/api/loops/alpha/tests/one/heal")
    assert (made["action"], made["outcome"], made["test"]) == ("change_strategy", "pending", "one")
    work_on_loop(context)
    work_on_loop(context)
    listed = get_json(client, "/api/loops/alpha/heals")["heals"]
    assert [(each["action"], each["outcome"]) for each in listed] == [
        ("escalate", "pending"),
        ("change_strategy", "failed"),
        ("escalate", "failed"),
    ]
    # the same again is not the next step
    again = post_json(client, "/api/loops/alpha/heal")["heals"]
    assert [each["action"] for each in again] == ["split"]


def test_nothing_is_left_out_unless_somebody_says_so(
    client: TestClient, context: ConsoleContext, failed: str
) -> None:
    actions = []
    for _ in range(4):
        answer = client.post("/api/loops/alpha/tests/one/heal")
        if answer.status_code == 200:
            actions.append(answer.json()["action"])
        for _ in range(3):
            work_on_loop(context)
    assert "skip" not in actions
    assert states_of(client)["one"] == "failed"


def states_of(client: TestClient) -> dict[str, str]:
    found = get_json(client, "/api/loops/alpha/tests")["tests"]
    return {each["id"]: each["state"] for each in found}


def test_only_failures_are_analysed(client: TestClient, failed: str) -> None:
    answer = client.get("/api/loops/alpha/tests/two/analysis")
    assert answer.status_code == 409
    assert "two is blocked: there is no failure to analyse" in answer.text


def test_an_item_is_escalated_to_the_orchestrator_if_there_is_no_stronger_runner(
    client: TestClient, failed: str
) -> None:
    path = "/api/loops/alpha/tests/one/heal"
    made = post_json(client, path, action="escalate", to_human=False, reason="asked for")
    assert (made["parameter"], made["reason"]) == ("the orchestrator", "asked for")


@pytest.mark.parametrize(
    ("path", "fields", "status", "message"),
    [
        ("tests/two/heal", {}, 409, "two is blocked: there is nothing to heal"),
        ("tests/three/heal", {}, 404, "no item 'three'"),
        ("tests/one/heal", {"action": "magic"}, 422, "action"),
        ("tests/one/heal", {"action": "rollback"}, 409, "has no repository"),
        ("tests/one/heal", {"to_checkpoint": "HEAD"}, 422, "to_checkpoint"),
        ("tests/one/heal", {"action": "escalate", "to_checkpoint": "abcd"}, 422, "rollback"),
        ("tests/one/heal", {"reason": "a\nb"}, 422, "reason"),
    ],
)
def test_what_cannot_be_done_is_refused(
    client: TestClient, failed: str, path: str, fields: dict[str, Any], status: int, message: str
) -> None:
    answer = client.post(f"/api/loops/alpha/{path}", json=fields)
    assert answer.status_code == status
    assert message in answer.text
    assert len(get_json(client, "/api/loops/alpha/heals")["heals"]) == 1


def test_quotations_need_the_right_to_read_texts(
    context: ConsoleContext, client: TestClient, failed: str
) -> None:
    post_json(client, "/api/loops/alpha/tests/one/heal", reason=SECRET)
    token = new_token(context, role="ops", texts=False)
    blind = client_of(context, token)
    for path in ("heals", "tests/one/analysis", "log"):
        text = blind.get(f"/api/loops/alpha/{path}").text
        assert SECRET not in text, path
    row, _ = get_json(blind, "/api/loops/alpha/heals")["heals"]
    assert (row["action"], row["reason"], row["advice"]) == ("change_strategy", None, None)


def test_another_tenants_loop_is_not_there(
    context: ConsoleContext, client: TestClient, failed: str
) -> None:
    stranger = client_of(context, new_token(context, role="ops", tenant="acme"))
    for path in ("heals", "tests/one/analysis"):
        assert stranger.get(f"/api/loops/alpha/{path}").status_code == 404
    for path in ("heal", "tests/one/heal"):
        assert stranger.post(f"/api/loops/alpha/{path}").status_code == 404
