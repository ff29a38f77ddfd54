"""Loops that move between installations over HTTP: roles, tenants, rights and limits."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient
from support.console_server import client_of, error_of, get_json, new_token, post_json
from support.ledger_scenario import SettingsMaker
from support.loops import item, work_on_loop

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.console.mcp.tool_server import read_call
from mulligan.policies.loops.loop import LoopChange
from mulligan.tasks.loops import change
from mulligan.tasks.ports.ledger import Requester

GOOD = {"kind": "scripted", "answers": ["{}"]}
FILE = {"Content-Type": "application/gzip"}


@pytest.fixture
def here(settings: SettingsMaker) -> ConsoleContext:
    return open_context(settings(allow_inline=True, key_prefix="here"))


@pytest.fixture
def there(settings: SettingsMaker) -> ConsoleContext:
    return open_context(settings(allow_inline=True, key_prefix="there"))


def paused(context: ConsoleContext, **config: Any) -> bytes:
    """Create a loop, let its first item pass, pause it, and return its archive."""
    client = client_of(context)
    loop = {"name": "alpha", "runner": GOOD, **config}
    items = [item("one"), item("two", "one", verifiers=[{"id": "text.match", "contains": "x"}])]
    post_json(client, "/api/loops", 201, loop=loop, items=items)
    post_json(client, "/api/loops/alpha/start")
    work_on_loop(context)
    post_json(client, "/api/loops/alpha/pause")
    answer = client.get("/api/loops/alpha/export")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/gzip"
    assert 'filename="alpha.tar.gz"' in answer.headers["content-disposition"]
    return answer.content


def bring(client: TestClient, archive: bytes, **query: Any) -> Any:
    return client.post("/api/loops/import", content=archive, headers=FILE, params=query)


def test_a_loop_moves_over_http(here: ConsoleContext, there: ConsoleContext) -> None:
    archive = paused(here)
    client = client_of(there)
    made = bring(client, archive)
    assert (made.status_code, made.json()["status"]) == (201, "paused")
    assert made.headers["location"] == "/api/loops/alpha"
    again = bring(client, archive)
    assert (again.status_code, again.json()["id"]) == (200, "alpha")
    states = {
        each["id"]: each["state"] for each in get_json(client, "/api/loops/alpha/tests")["tests"]
    }
    assert states == {"one": "passed", "two": "failed"}
    assert get_json(client_of(here), "/api/loops/alpha")["status"] == "paused"


def test_an_imported_loop_can_go_on_at_once(here: ConsoleContext, there: ConsoleContext) -> None:
    made = bring(client_of(there), paused(here), start=True)
    assert (made.status_code, made.json()["status"]) == (201, "running")


def test_a_loop_that_moved_starts_only_if_that_is_meant(here: ConsoleContext) -> None:
    """Given a loop that moved away, neither start nor an import of its file here starts it."""
    archive, client = paused(here), client_of(here)
    moved = LoopChange(state="stopped", reason="moved to alpha.tar.gz")
    change.change_loop(here.services.loops, "alpha", Requester(by="ada"), lambda *_: moved)
    why = get_json(client, "/api/loops/alpha/why")
    assert (why["cause"], why["command"], why["remedy"]) == ("moved", None, None)
    assert error_of(client.post("/api/loops/alpha/start")) == (409, "conflict")
    assert error_of(bring(client, archive, start=True)) == (409, "conflict")
    assert 'data-call="/api/loops/alpha/start"' not in client.get("/loops/alpha").text
    call = read_call("start_loop", {"loop": "alpha", "despite_move": True}).request()
    answer = client.post(call.path)
    assert answer.json()["status"] == "running", answer.text


def test_a_loop_that_runs_is_not_exported(here: ConsoleContext) -> None:
    client = client_of(here)
    paused(here)
    post_json(client, "/api/loops/alpha/resume")
    assert error_of(client.get("/api/loops/alpha/export"))[0] == 409
    assert error_of(client.get("/api/loops/nothing/export"))[0] == 404


def test_who_may_export_and_import(here: ConsoleContext, there: ConsoleContext) -> None:
    archive = paused(here)
    for fields, status in (
        ({"role": "producer"}, 403),
        ({"role": "ops"}, 403),
        ({"role": "ops", "texts": True}, 200),
        ({"role": "ops", "texts": True, "tenant": "acme"}, 404),
    ):
        client = client_of(here, new_token(here, **fields))
        assert client.get("/api/loops/alpha/export").status_code == status, fields
    ops = client_of(there, new_token(there, role="ops"))
    assert error_of(bring(ops, archive))[0] == 403


def test_an_imported_loop_belongs_to_its_producer(
    here: ConsoleContext, there: ConsoleContext
) -> None:
    archive = paused(here)
    token = new_token(there, role="producer", tenant="acme")
    acme = client_of(there, token)
    assert error_of(bring(acme, archive, tenant="other"))[0] == 403
    assert bring(acme, archive).status_code == 201
    other = client_of(there, new_token(there, role="producer", tenant="other"))
    assert error_of(other.get("/api/loops/alpha"))[0] == 404
    reading = there.ledger.read_loop("alpha")
    assert reading is not None
    assert reading.snapshot.loop.tenant == "acme"
    assert reading.snapshot.loop.owner


def test_an_archive_brings_no_rights(here: ConsoleContext, settings: SettingsMaker) -> None:
    """Given a console that takes no inline runners, then an archive brings none."""
    strict = open_context(settings(key_prefix="strict"))
    status, said = error_of(bring(client_of(strict), paused(here)))
    assert (status, said) == (422, "invalid")
    assert strict.ledger.loops() == []


@pytest.mark.parametrize("body", [b"", b"{}", b"\x1f\x8b", b"\x00" * 100])
def test_what_is_no_archive_is_refused(there: ConsoleContext, body: bytes) -> None:
    answer = bring(client_of(there), body)
    assert answer.status_code == 422
    assert "archive" in answer.text


def test_an_archive_over_the_cap_is_refused(here: ConsoleContext, settings: SettingsMaker) -> None:
    small = open_context(settings(key_prefix="small", request_cap=1000))
    assert bring(client_of(small), paused(here)).status_code == 413


def test_a_loop_of_another_tenant_is_as_any_other_one(
    here: ConsoleContext, there: ConsoleContext
) -> None:
    """Given a loop of another tenant with that name, or with another one, then nobody learns that
    it is the same loop, and nothing of it changes."""
    archive = paused(here)
    acme = client_of(there, new_token(there, role="producer", tenant="acme"))
    other = client_of(there, new_token(there, role="producer", tenant="other"))
    post_json(acme, "/api/loops", 201, loop={"name": "beta", "runner": GOOD}, items=[item("one")])
    assert bring(acme, archive).status_code == 201
    said = [error_of(bring(other, archive, start=True, name=name)) for name in ("alpha", "beta")]
    assert said == [(409, "key_in_use")] * 2
    assert bring(other, archive, name="beta").text.replace("beta", "") == bring(
        other, archive, name="gamma"
    ).text.replace("gamma", "")
    assert get_json(acme, "/api/loops/alpha")["status"] == "paused"
    assert error_of(bring(acme, archive, name="gamma")) == (409, "conflict")
    assert bring(acme, archive).status_code == 200
