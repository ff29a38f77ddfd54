"""Queues, breakers and pauses over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.console_server import client_of, new_token
from support.jobs import GOOD, read_job, scripted
from support.ledger_scenario import SettingsMaker
from support.redis_server import RedisServer

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.tasks.ports.ledger import Entry
from mulligan.workers.settings.model import Settings


@pytest.fixture
def context(settings: SettingsMaker) -> ConsoleContext:
    return open_context(settings(allow_inline=True))


def test_queues_show_waiting_entries_and_pauses(context: ConsoleContext) -> None:
    client = client_of(context)
    client.post("/api/jobs", json=[scripted(GOOD), scripted(GOOD)]).raise_for_status()
    client.put("/api/pauses/queue:repair").raise_for_status()
    rows = {row["name"]: row for row in client.get("/api/queues").json()["queues"]}
    assert rows["attempt"]["waiting"] == 2
    assert (rows["repair"]["waiting"], rows["repair"]["paused"]) == (0, True)


@pytest.mark.parametrize(
    "what", ["queue:attempt", "task_type:extract/person v2", "provider:api.example:443"]
)
def test_a_pause_is_set_listed_and_lifted(context: ConsoleContext, what: str) -> None:
    client = client_of(context)
    assert client.put(f"/api/pauses/{what}").json() == {"paused": [what]}
    assert context.ledger.paused() == [what]
    assert client.get("/api/pauses").json() == {"paused": [what]}
    assert client.delete(f"/api/pauses/{what}").json() == {"paused": []}
    assert client.delete(f"/api/pauses/{what}").status_code == 200, "lifting it twice is no error"


@pytest.mark.parametrize(
    "what",
    [
        "queue:nope",
        "queue:control",
        "task_type:",
        "attempt",
        "x:y",
        "provider:a%1b[31m",
        "task_type:a%09b",
    ],
)
def test_an_invalid_pause_is_refused(context: ConsoleContext, what: str) -> None:
    response = client_of(context).put(f"/api/pauses/{what}")
    assert response.status_code == 422
    assert "queue:repair" in response.json()["error"]["details"][0]


def test_a_tenant_s_token_may_not_pause(context: ConsoleContext) -> None:
    client = client_of(context, new_token(context, role="ops", tenant="acme"))
    for method in ("PUT", "DELETE"):
        assert client.request(method, "/api/pauses/queue:attempt").status_code == 403
    assert context.ledger.paused() == []


def quarantine(context: ConsoleContext, job: dict[str, Any]) -> str:
    """Submit a job whose first attempt cannot be sent; return the entry."""
    (accepted,) = submit_jobs(context.services.intake, [read_job(job)])
    entry = Entry("attempt", accepted.id, 1)
    for _ in range(context.settings.publish_tries):
        context.ledger.fail({entry: "WRONGTYPE"})
    return str(entry)


def test_quarantined_entries_are_listed_sent_again_and_dropped(context: ConsoleContext) -> None:
    client = client_of(context)
    assert client.get("/api/outbox").json() == {"entries": []}
    first, second = (quarantine(context, scripted(GOOD)) for _ in range(2))
    rows = client.get("/api/outbox").json()["entries"]
    assert {row["id"] for row in rows} == {first, second}
    assert {(row["reason"], row["error"]) for row in rows} == {("unsendable", "WRONGTYPE")}
    done = client.post("/api/outbox/retry", json={"ids": [first, "a:p00-none/1"]}).json()
    assert done == {"entries": [first]}
    assert client.post("/api/outbox/drop", json={}).json() == {"entries": [second]}
    assert client.get("/api/outbox").json() == {"entries": []}
    assert client.post("/api/outbox/drop", json={"ids": []}).status_code == 422


def test_a_misspelled_field_does_not_drop_everything(context: ConsoleContext) -> None:
    entry = quarantine(context, scripted(GOOD))
    client = client_of(context)
    for verb in ("retry", "drop"):
        refused = client.post(f"/api/outbox/{verb}", json={"id": [entry]})
        assert (refused.status_code, "id" in refused.text) == (422, True)
    assert [row["id"] for row in client.get("/api/outbox").json()["entries"]] == [entry]


def test_the_page_has_buttons_for_quarantined_entries(context: ConsoleContext) -> None:
    html = {"Accept": "text/html"}
    ops = client_of(context, new_token(context, role="ops"))
    assert "Quarantined entries" not in ops.get("/operations", headers=html).text
    entry = quarantine(context, scripted(GOOD, labels={"tenant": "acme"}))
    shown = ops.get("/operations", headers=html).text
    for path in ("/api/outbox/retry", "/api/outbox/drop"):
        assert f'data-call="{path}"' in shown
    assert f'data-confirm="Drop {entry}?' in shown
    overview = ops.get("/", headers=html).text
    assert 'href="/operations#outbox"' in overview
    assert "no worker has reported" in overview, "the reasons stay visible beside other needs"
    own = client_of(context, new_token(context, role="ops", tenant="acme"))
    assert entry in own.get("/operations", headers=html).text
    other = client_of(context, new_token(context, role="ops", tenant="zeta"))
    assert entry not in other.get("/operations", headers=html).text
    producer = client_of(context, new_token(context, role="producer"))
    assert producer.get("/operations", headers=html).status_code == 403


def test_hostile_texts_of_an_entry_stay_text(context: ConsoleContext) -> None:
    """Whatever a broker's error or a queue's name contains."""
    (accepted,) = submit_jobs(context.services.intake, [read_job(scripted(GOOD))])
    hostile = "<script>alert(1)</script>\x1b[31m\n' onclick='x"
    for _ in range(context.settings.publish_tries):
        context.ledger.fail({Entry("attempt", accepted.id, 1): hostile})
    text = client_of(context).get("/operations", headers={"Accept": "text/html"}).text
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert" not in text
    assert "' onclick='x" not in text


def test_a_tenant_s_token_changes_only_its_own_entries(context: ConsoleContext) -> None:
    own = quarantine(context, scripted(GOOD, labels={"tenant": "acme"}))
    other = quarantine(context, scripted(GOOD, labels={"tenant": "zeta"}))
    client = client_of(context, new_token(context, role="ops", tenant="acme"))
    assert [row["id"] for row in client.get("/api/outbox").json()["entries"]] == [own]
    assert client.post("/api/outbox/drop", json={"ids": [other]}).json() == {"entries": []}
    assert client.post("/api/outbox/drop", json={}).json() == {"entries": [own]}
    producer = client_of(context, new_token(context, role="producer"))
    assert producer.get("/api/outbox").status_code == 403


def test_an_unreachable_ledger_is_503(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "r")
    server.start()
    try:
        settings = Settings(
            broker_url=server.url, home=tmp_path, submit_patience=0.1, allow_inline=True
        )
        context = open_context(settings)
        client = client_of(context)
        assert client.get("/api/pauses").status_code == 200
    finally:
        server.kill()
    for response in (client.get("/api/jobs"), client.post("/api/jobs", json=scripted(GOOD))):
        assert (response.status_code, response.json()["error"]["code"]) == (503, "unavailable")
        assert int(response.headers["retry-after"]) > 0
    page = client.get("/", headers={"Accept": "text/html"})
    assert (page.status_code, 'href="/runbook"' in page.text) == (503, True)
    runbook = client.get("/runbook", headers={"Accept": "text/html"})
    assert (runbook.status_code, "<h1" in runbook.text) == (200, True)
    assert client.get("/readyz").json() == {
        "ok": False,
        "why": "ledger",
        "detail": "the ledger cannot be reached",
    }
    assert client.get("/healthz").status_code == client.get("/livez").status_code == 200
