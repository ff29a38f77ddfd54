"""A producer sees, streams, cancels and claims only what it submitted itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient
from support.console_server import (
    RunningConsole,
    client_of,
    error_of,
    get_json,
    new_token,
    post_json,
    running_console,
)
from support.ledger_scenario import ScenarioMaker, SettingsMaker
from support.loops import item, work_on_loop
from support.waiting import wait_for

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.console.http.routes.edit_routes import edit_engine
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.ports.ledger import Entry
from mulligan.workers.figures.fold import Fold
from mulligan.workers.ledger import keys

Body = dict[str, Any]
SECRET = "the secret of"
FIELDS: Body = {"allow_inline": True}


@pytest.fixture
def context(settings: SettingsMaker, tmp_path: Path) -> ConsoleContext:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "notes.txt").write_text("before\n")
    return open_context(settings(**FIELDS, workspaces={"shop": tree}, home=tmp_path / "home"))


class Callers:
    """Two producers of one tenant, a third with the name of the first, and who watches them."""

    def __init__(self, context: ConsoleContext, tenant: str | None = "acme") -> None:
        def client(role: str, name: str, tenant: str | None = tenant) -> TestClient:
            fields = {"role": role, "name": name, "tenant": tenant, "texts": True}
            return client_of(context, new_token(context, **fields))

        self.shop, self.lab = client("producer", "shop"), client("producer", "lab")
        self.shop_again = client("producer", "shop")
        self.unbound_shop = client("producer", "shop", None if tenant else "other")
        self.ops, self.admin = client("ops", "shop"), client("admin", "ada")

    @property
    def strangers(self) -> tuple[TestClient, ...]:
        return self.lab, self.unbound_shop

    @property
    def insiders(self) -> tuple[TestClient, ...]:
        return self.shop, self.shop_again, self.ops, self.admin


@pytest.fixture
def callers(context: ConsoleContext) -> Callers:
    return Callers(context)


def job(who: str = "shop", **fields: Any) -> Body:
    return {
        "task_type": "extract",
        "name": f"of {who}",
        "prompt": f"{SECRET} {who}",
        "runner": {"kind": "scripted", "answers": [f"no JSON, but {SECRET} {who}"]},
        "verifiers": ["json.object"],
        "policy": {"max_attempts": 2},
        **fields,
    }


def submit(client: TestClient, **fields: Any) -> str:
    (accepted,) = post_json(client, "/api/jobs", 202, **job(**fields))["jobs"]
    return str(accepted["id"])


def fail(context: ConsoleContext, job_id: str) -> None:
    for number in (1, 2):
        run_attempt(context.services.context, Entry("attempt", job_id, number))


# -- jobs ------------------------------------------------------------------------------------------


def test_producers_list_read_and_cancel_only_their_own_jobs(callers: Callers) -> None:
    mine, other = submit(callers.shop), submit(callers.lab, who="lab")
    for client in callers.insiders:
        ids = {each["id"] for each in get_json(client, "/api/jobs")["jobs"]}
        assert mine in ids
        assert (other in ids) == (client in (callers.ops, callers.admin))
        assert get_json(client, f"/api/jobs/{mine}")["id"] == mine
    for client in callers.strangers:
        assert mine not in client.get("/api/jobs").text
        assert client.get(f"/api/jobs?ids={mine},{other}").text.count(mine) == 0
        for method, path in (
            ("GET", f"/api/jobs/{mine}"),
            ("POST", f"/api/jobs/{mine}/cancel"),
            ("GET", f"/api/jobs/{mine}/events"),
            ("GET", f"/jobs/{mine}"),
            ("GET", f"/jobs/{mine}/job.yaml"),
        ):
            refused = client.request(method, path)
            assert (refused.status_code, SECRET in refused.text) == (404, False), path
    assert callers.shop.get(f"/api/jobs/{mine}").json()["state"] == "queued"
    post_json(callers.shop_again, f"/api/jobs/{mine}/cancel", 200)


def test_a_job_that_no_producer_submitted_is_for_ops_only(
    context: ConsoleContext, callers: Callers
) -> None:
    """Given jobs of an admin's token and of an earlier release, which recorded no producer."""
    found = submit(callers.admin)
    for client in (callers.shop, callers.lab):
        assert client.get(f"/api/jobs/{found}").status_code == 404
    assert callers.ops.get(f"/api/jobs/{found}").status_code == 200
    assert context.ledger.job_owner(found) == ("acme", None, None)


def test_the_same_key_of_two_producers_is_two_jobs(callers: Callers) -> None:
    first = submit(callers.shop, idempotency_key="order-7")
    second = submit(callers.lab, who="lab", idempotency_key="order-7")
    assert first != second
    again = post_json(callers.shop_again, "/api/jobs", 202, **job(idempotency_key="order-7"))
    assert again["jobs"] == [{"id": first, "status": "seen"}]
    other = callers.shop.post("/api/jobs", json=job(prompt="another", idempotency_key="order-7"))
    assert error_of(other) == (409, "key_in_use")
    # Neither the tenant's keys nor a key that spells another producer's is the same.
    forged = submit(callers.lab, idempotency_key="/acme/shop/order-7")
    assert len({submit(callers.admin, idempotency_key="order-7"), first, second, forged}) == 4


def test_the_pages_name_no_job_of_another_producer(
    context: ConsoleContext, callers: Callers
) -> None:
    mine = submit(callers.shop)
    fail(context, mine)
    for path in ("/", "/jobs", "/jobs?name=of", "/cycles", "/failures", "/loops"):
        assert mine not in callers.lab.get(path).text, path
    for path in ("/", "/jobs", "/cycles"):
        assert mine in callers.shop.get(path).text, path
        assert mine in callers.ops.get(path).text, path
    assert callers.lab.get(f"/jobs?name={mine}").headers["location"] == f"/jobs/{mine}"
    assert callers.lab.get(f"/jobs/{mine}").status_code == 404


def test_reports_quote_no_answer_of_another_producer(
    context: ConsoleContext, callers: Callers
) -> None:
    mine = submit(callers.shop)
    fail(context, mine)
    Fold(context.ledger).run()
    (row,) = get_json(callers.shop, "/api/failures")["failures"][:1]
    assert row["example"] == mine
    (same,) = get_json(callers.lab, "/api/failures")["failures"][:1]
    assert (same["signature"], same["example"]) == (row["signature"], None)
    path = f"/api/failures/{row['signature']}"
    assert get_json(callers.shop, path)["explanation"]["redacted"] is False
    assert get_json(callers.lab, path)["explanation"]["redacted"] is True
    assert mine not in callers.lab.get(path).text


@pytest.mark.parametrize("scope", ["task_type", "input"])
def test_no_tenant_teaches_the_failures_of_another(
    scope: str, new_fake_scenario: ScenarioMaker
) -> None:
    """Given a shared memory of failures: with it, one tenant could let another's jobs escalate."""
    scenario = new_fake_scenario()

    def memory(**labels: str) -> str | None:
        job_id = scenario.submit(memory_scope=scope, labels=labels)
        (row,) = scenario.ledger.calls.hashes([keys.job(scenario.ledger.prefixes()[0], job_id)])
        return row.get("memory")

    found = [memory(tenant="a"), memory(tenant="a"), memory(tenant="b"), memory()]
    assert found[0] == found[1]
    assert len(set(found)) == 3


# -- loops -----------------------------------------------------------------------------------------


def test_producers_see_and_change_only_their_own_loops(
    context: ConsoleContext, callers: Callers
) -> None:
    runner = {"kind": "scripted", "answers": [f"no JSON, but {SECRET} shop"]}
    body = {"loop": {"name": "nightly", "runner": runner, "max_attempts": 2}, "start": True}
    items = [item("one", prompt=f"{SECRET} shop")]
    post_json(callers.shop, "/api/loops", 201, **body, items=items)
    work_on_loop(context, "nightly")
    (run,) = get_json(callers.shop, "/api/loops/nightly/transcripts")["transcripts"][:1]
    assert context.ledger.job_owner(run["job_id"])[2] == "acme/shop"
    for client in callers.insiders:
        assert get_json(client, "/api/loops/nightly")["id"] == "nightly"
        assert client.get(f"/api/jobs/{run['job_id']}").status_code == 200
        assert "nightly" in client.get("/api/loops").text
    for client in callers.strangers:
        assert "nightly" not in client.get("/api/loops").text
        assert client.get(f"/api/jobs/{run['job_id']}").status_code == 404
        for method, path in (
            ("GET", ""), ("GET", "/health"), ("GET", "/why"), ("GET", "/why?test=one"),
            ("GET", "/log"), ("GET", "/tests"), ("GET", "/tests/one"), ("GET", "/transcripts"),
            ("GET", "/transcripts/stream"), ("POST", "/pause"), ("POST", "/resume"),
            ("POST", "/stop"), ("POST", "/start"), ("DELETE", ""), ("POST", "/tests/one/reset"),
            ("POST", "/tests/one/skip"), ("PATCH", ""), ("POST", "/tests"),
        ):  # fmt: skip
            content: Any = {"priority": 1} if method == "PATCH" else item("two")
            sent = {"json": content} if path in ("", "/tests") and method != "GET" else {}
            refused = client.request(method, f"/api/loops/nightly{path}", **sent)
            assert refused.status_code == 404, (method, path, refused.text)
        assert client.get("/loops/nightly").status_code == 404
        # A similar name is not suggested either.
        assert "nightly" not in client.get("/api/loops/nightlx").text
        again = client.post("/api/loops", json={**body, "items": items})
        assert again.status_code == 409
    assert get_json(callers.ops, "/api/loops/nightly")["status"] != "stopped"


# -- external work ---------------------------------------------------------------------------------


def test_producers_claim_and_report_only_their_own_external_work(callers: Callers) -> None:
    external = {
        "runner": {"kind": "external"},
        "subject": "mia",
        "verifiers": ["external.score"],
        "delayed_verification": {"mode": "reformulate"},
    }
    mine = submit(callers.shop, **external)
    assert callers.lab.post("/api/task/next?subject=mia").status_code == 204
    task = post_json(callers.shop_again, "/api/task/next?subject=mia", 200)
    assert task["jobId"] == mine
    # What another one holds is not handed out, and its token is of no use.
    assert callers.lab.post("/api/task/next?subject=mia").status_code == 204
    stolen = callers.lab.post("/api/attempts", json={"token": task["token"], "score": 100})
    assert stolen.status_code == 404
    other = submit(callers.lab, who="lab", **external)
    assert post_json(callers.lab, "/api/task/next?subject=mia", 200)["jobId"] == other
    post_json(callers.shop, "/api/attempts", 201, token=task["token"], answer="x", score=100)


def test_work_that_no_producer_submitted_is_handed_out_to_all(callers: Callers) -> None:
    external = {
        "runner": {"kind": "external"},
        "subject": "mia",
        "verifiers": ["external.score"],
        "delayed_verification": {"mode": "reformulate"},
    }
    found = submit(callers.admin, **external)
    task = post_json(callers.lab, "/api/task/next?subject=mia", 200)
    assert task["jobId"] == found
    post_json(callers.lab, "/api/attempts", 201, token=task["token"], answer="x", score=100)
    assert callers.lab.get(f"/api/jobs/{found}").status_code == 404


def test_reports_with_one_key_are_two_producers_two_jobs(callers: Callers) -> None:
    report = {"subject": "mia", "task_type": "past", "prompt": "Say it.", "score": 90}
    first, second, again = (
        post_json(client, "/api/attempts", 201, **report, idempotency_key="k")["job_id"]
        for client in (callers.shop, callers.lab, callers.shop_again)
    )
    assert first == again != second


# -- edits -----------------------------------------------------------------------------------------


def test_producers_see_only_their_own_edits(context: ConsoleContext) -> None:
    callers = Callers(context, tenant=None)
    edit = {"id": "e1", "op": "delete_file", "target": "notes.txt", "rationale": SECRET}
    body: Body = {"plan": {"session": "tune", "edits": [edit]}, "workspace": "shop"}
    post_json(callers.shop, "/api/edits", 202, **body)
    engine = edit_engine(context)
    while engine.work("tune").phase != "done":
        pass
    paths = ("/api/edits/tune", "/edits/tune", "/edits/tune/e1")
    lists = ("/api/edits", "/api/edits/reviews", "/edits")
    for client in callers.insiders:
        assert [client.get(path).status_code for path in paths] == [200] * 3
        assert ["tune" in client.get(path).text for path in lists] == [True] * 3
    assert [callers.lab.get(path).status_code for path in paths] == [404] * 3
    assert [SECRET in callers.lab.get(path).text for path in lists] == [False] * 3
    # The same plan again: the producer's own session, and not another one's.
    assert post_json(callers.shop_again, "/api/edits", 202, **body)["session"] == "tune"
    assert error_of(callers.lab.post("/api/edits", json=body)) == (409, "session_exists")


def test_no_plan_names_another_producer_s_job_as_its_author(context: ConsoleContext) -> None:
    callers = Callers(context, tenant=None)
    mine = submit(callers.shop)
    edit = {"id": "e1", "op": "write_file", "target": "a.txt", "payload": {"content": "x"}}
    body: Body = {"plan": {"author": mine, "edits": [edit]}, "workspace": "shop"}
    refused = callers.lab.post("/api/edits", json=body)
    assert refused.status_code == 422
    assert f"plan.author: there is no job '{mine}'" in refused.text
    post_json(callers.shop, "/api/edits", 202, **body)


# -- events ----------------------------------------------------------------------------------------


@pytest.fixture
def console(context: ConsoleContext) -> Iterator[RunningConsole]:
    with running_console(context.settings) as found:
        yield found


def test_producers_hear_only_of_their_own_jobs_and_loops(console: RunningConsole) -> None:
    shop, lab, ops = (
        console.client(new_token(console.context, role=role, name=name, tenant="acme"))
        for role, name in (("producer", "shop"), ("producer", "lab"), ("ops", "ops"))
    )
    heard: dict[str, str] = {"lab": "", "shop": "", "ops": ""}

    def listen(name: str, client: httpx2.Client) -> None:
        try:
            with client.stream("GET", "/api/events") as response:
                for line in response.iter_lines():
                    heard[name] += line + "\n"
        except httpx2.HTTPError:
            return

    for name, client in (("lab", lab), ("shop", shop), ("ops", ops)):
        threading.Thread(target=listen, args=(name, client), daemon=True).start()
    wait_for(lambda: console.context.broadcast.count == 3, "the listeners")
    (mine,) = shop.post("/api/jobs", json=job()).json()["jobs"]
    loop = {"name": "nightly", "runner": {"kind": "scripted", "answers": ["{}"]}}
    assert shop.post("/api/loops", json={"loop": loop, "items": [item("one")]}).status_code == 201
    (other,) = lab.post("/api/jobs", json=job("lab")).json()["jobs"]
    wait_for(lambda: other["id"] in heard["lab"] and other["id"] in heard["ops"], "the last event")
    assert mine["id"] in heard["shop"]
    assert "nightly" in heard["shop"]
    assert other["id"] not in heard["shop"]
    assert mine["id"] not in heard["lab"]
    assert "nightly" not in heard["lab"]
    assert mine["id"] in heard["ops"]
    with lab.stream("GET", "/api/events?after=0") as replayed:
        lines = replayed.iter_lines()
        seen = ""
        while other["id"] not in seen:
            seen += next(lines)
    assert mine["id"] not in seen
