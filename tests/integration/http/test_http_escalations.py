"""Escalations over HTTP: alike ones are one row, and a group is ended by one request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
import redis
from starlette.testclient import TestClient
from support.console_server import client_of, new_token, running_console
from support.ledger_scenario import Scenario
from support.settlements import escalates
from support.waiting import wait_for

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.tasks.escalations.end_escalations import (
    EndAction,
    EndedCounts,
    EscalationFilter,
    select,
    work,
)
from mulligan.tasks.ports.ledger import Publication
from mulligan.workers.ledger.stores.bulk_actions import BATCH, RedisBulkActions, run_bulks
from mulligan.workers.settings.model import Settings

ALIKE = "v1:a1b2c3"
ANN = EndAction(how="resolved", by="ann")
GROUP = f"/api/escalations/{quote(ALIKE, safe='')}"


@pytest.fixture
def context(settings: Callable[..., Settings]) -> ConsoleContext:
    return open_context(settings())


@pytest.fixture
def api(context: ConsoleContext) -> TestClient:
    return client_of(context)


def escalate(
    context: ConsoleContext, count: int = 1, group_signature: str | None = ALIKE, **fields: Any
) -> list[str]:
    scenario = Scenario(context.ledger, context.settings)
    ids = []
    for _ in range(count):
        job_id = scenario.submit(**fields)
        claim = scenario.claim(job_id)
        scenario.settle(claim, escalates(claim, group_signature=group_signature))
        ids.append(f"{job_id}:1")
    return ids


def bulks_of(context: ConsoleContext, **options: Any) -> RedisBulkActions:
    return RedisBulkActions(context.ledger.calls, prefix=context.settings.key_prefix, **options)


def control(context: ConsoleContext) -> None:
    """What a control worker does each second, until nothing is left."""
    bulks = bulks_of(context)
    wait_for(lambda: not run_bulks(context.ledger, bulks, context.services.publish))


def get(api: TestClient, path: str, **params: Any) -> dict[str, Any]:
    answer = api.get(path, params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def post(api: TestClient, path: str, status: int = 200, **body: Any) -> dict[str, Any]:
    answer = api.post(path, json=body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


# -- the story -------------------------------------------------------------------------------------


def test_forty_alike_are_one_row_and_are_queued_again_by_one_request(
    context: ConsoleContext, api: TestClient
) -> None:
    ids = escalate(context, 40)
    (row,) = get(api, "/api/escalations")["groups"]
    assert (row["signature"], row["open"], row["total"]) == (ALIKE, 40, 40)
    assert (row["reason"], row["task_types"]) == ("max_attempts", {"extract": 40})
    assert row["runbook_url"].endswith("/runbook#escalated")

    dry = post(api, f"{GROUP}/requeue", dry_run=True)
    assert (dry["total"], dry["task_types"], len(dry["first"])) == (40, {"extract": 40}, 20)
    assert get(api, GROUP)["group"]["open"] == 40

    answer = api.post(f"{GROUP}/requeue", json={"prompt": "As JSON, please.", "note": "new words"})
    assert answer.status_code == 202
    bulk = answer.json()
    assert (bulk["total"], bulk["state"], bulk["how"]) == (40, "running", "requeued")
    assert "As JSON" not in answer.text
    assert answer.headers["Location"] == f"/api/bulk/{bulk['id']}"
    control(context)
    bulk = get(api, answer.headers["Location"])
    assert (bulk["state"], bulk["done"], bulk["failed"], bulk["skipped"]) == ("done", 40, 0, 0)

    detail = get(api, GROUP, limit=100)
    assert (detail["group"]["open"], detail["group"]["total"]) == (0, 40)
    ended = {(e["state"], e["ended_by"], e["note"]) for e in detail["escalations"]}
    assert ended == {("requeued", "loopback", "new words")}
    assert all(e["ended_at"] >= e["at"] for e in detail["escalations"])
    claim = Scenario(context.ledger, context.settings).claim(ids[0].partition(":")[0], 2)
    assert claim.plan.prompt == "As JSON, please."

    again = post(api, f"{GROUP}/requeue")
    assert (again["total"], again["done"], again["state"]) == (0, 0, "done")
    assert get(api, "/api/escalations")["groups"] == []
    assert len(get(api, "/api/escalations", state="all")["groups"]) == 1


def test_a_small_group_is_ended_at_once(context: ConsoleContext, api: TestClient) -> None:
    escalate(context, BATCH)
    told = post(api, f"{GROUP}/resolve", note="the provider was down")
    assert (told["state"], told["done"]) == ("done", BATCH)


def test_some_of_a_group_by_id_by_filter_and_across_groups(
    context: ConsoleContext, api: TestClient
) -> None:
    ids = escalate(context, 3)
    escalate(context, 2, task_type="translate")
    escalate(context, 1, group_signature="v1:ff", task_type="translate")
    assert post(api, f"{GROUP}/resolve", ids=ids[:1])["done"] == 1
    assert post(api, f"{GROUP}/resolve", older_than="1h")["total"] == 0
    assert post(api, f"{GROUP}/resolve", task_type="translate", dry_run=True)["total"] == 2
    assert post(api, "/api/escalations/resolve", task_type="translate")["done"] == 3
    assert post(api, "/api/escalations/cancel", signature=ALIKE, newer_than=3600)["done"] == 2
    assert get(api, "/api/escalations")["groups"] == []


def test_one_escalation_is_ended_by_its_id(context: ConsoleContext, api: TestClient) -> None:
    one, other = escalate(context, 2)
    path = f"/api/escalations/{quote(one, safe='')}"
    strategy = {"fallback": 1, "temperature": 0.2, "max_tokens": 50, "constrained": True}
    assert post(api, f"{path}/requeue", strategy=strategy)["done"] == 1
    assert post(api, f"{path}/requeue")["total"] == 0, "the same again is harmless"
    refused = post(api, f"{path}/resolve", 409, note="no")
    assert refused["error"]["message"] == "it was requeued already, by loopback"
    claim = Scenario(context.ledger, context.settings).claim(one.partition(":")[0], 2)
    assert claim.plan.decoding.model_dump() == strategy
    assert get(api, GROUP, state="open")["escalations"][0]["id"] == other


def test_a_job_that_is_no_longer_kept_is_told_and_can_be_resolved(
    context: ConsoleContext, api: TestClient, redis_client: redis.Redis
) -> None:
    one, two, _ = escalate(context, 3)
    for gone in (one, two):
        job_id = gone.partition(":")[0]
        redis_client.delete(f"mulligan:{{p00}}:job:{job_id}")
    told = post(api, f"{GROUP}/requeue")
    assert (told["done"], told["failed"], told["state"]) == (1, 2, "done")
    assert {problem["id"] for problem in told["problems"]} == {one, two}
    assert "no longer kept" in told["problems"][0]["why"]
    alone = post(api, f"/api/escalations/{one}/requeue", 409)
    assert "no longer kept" in alone["error"]["message"]
    assert post(api, f"{GROUP}/resolve", note="too old")["done"] == 2


# -- bulk actions ----------------------------------------------------------------------------------


def test_a_worker_that_died_is_followed_by_the_next_where_it_stopped(
    context: ConsoleContext, api: TestClient
) -> None:
    escalate(context, 50)
    bulk = post(api, f"{GROUP}/requeue", 202)
    hasty = bulks_of(context, lease=0.001)
    published: list[Publication] = []
    work(context.ledger, hasty, published.extend, bulk["id"], token="first", go_on=lambda: False)
    # The next batch is half done when its worker is killed.
    batch = hasty.take(bulk["id"], token="killed")
    for escalation_id in batch.ids[:7]:
        context.ledger.end_escalation(escalation_id, how="requeued", by="loopback")
    assert get(api, f"/api/bulk/{bulk['id']}")["done"] == BATCH
    control(context)
    hasty.commit(bulk["id"], token="killed", count=BATCH, tally=EndedCounts(done=BATCH))
    bulk = get(api, f"/api/bulk/{bulk['id']}")
    assert (bulk["state"], bulk["done"], bulk["skipped"], bulk["failed"]) == ("done", 50, 0, 0)
    assert context.ledger.escalations(signature=ALIKE) == []


def test_two_workers_do_not_hold_one_batch(context: ConsoleContext, api: TestClient) -> None:
    escalate(context, 50)
    bulk_id = post(api, f"{GROUP}/resolve", 202)["id"]
    bulks = bulks_of(context)
    assert len(bulks.take(bulk_id, token="one").ids) == BATCH
    waiting = bulks.take(bulk_id, token="two")
    assert waiting.ids == ()
    assert waiting.wait is not None
    assert waiting.wait > 0


@pytest.mark.parametrize(
    ("per_second", "at_first"), [(5, 5), (1000, BATCH), (0.1, 1)]
)  # a second's worth, a batch at most, one at least
def test_a_rate_begins_with_a_second_s_worth(
    context: ConsoleContext, per_second: float, at_first: int
) -> None:
    bulks = bulks_of(context)
    ids = [f"p00-x:{number}" for number in range(30)]
    bulk = bulks.create(ANN, EscalationFilter(signature=ALIKE), ids, per_second=per_second)
    assert len(bulks.take(bulk.id, token="one").ids) == at_first


def test_the_rate_is_one_for_all_who_work_on_it(context: ConsoleContext) -> None:
    bulks = bulks_of(context)
    bulk = bulks.create(
        ANN, EscalationFilter(signature=ALIKE), ["p00-x:1", "p00-y:1"], per_second=0.1
    )
    bulks.take(bulk.id, token="one")
    bulks.commit(bulk.id, token="one", count=1, tally=EndedCounts(done=1))
    waiting = bulks.take(bulk.id, token="two")
    assert waiting.ids == ()
    assert waiting.wait is not None
    assert 0 < waiting.wait <= 10, "the next one may be done 10 s after the first"


def test_a_slow_rate_is_kept_by_a_small_group_too(context: ConsoleContext, api: TestClient) -> None:
    escalate(context, 10)
    told = post(api, f"{GROUP}/resolve", 202, per_second=0.1)
    assert (told["done"], told["state"]) == (1, "running")


def test_a_bulk_action_can_be_stopped_and_what_it_did_stays_done(
    context: ConsoleContext, api: TestClient
) -> None:
    escalate(context, 50)
    bulk_id = post(api, f"{GROUP}/resolve", 202)["id"]
    bulks = bulks_of(context)
    batch = bulks.take(bulk_id, token="one")
    assert post(api, f"/api/bulk/{bulk_id}/cancel")["state"] == "stopped"
    bulks.commit(bulk_id, token="one", count=len(batch.ids), tally=EndedCounts(done=len(batch.ids)))
    told = post(api, f"/api/bulk/{bulk_id}/cancel")
    assert (told["state"], told["done"]) == ("stopped", BATCH)
    assert bulks.running() == []
    control(context)
    assert len(context.ledger.escalations(signature=ALIKE, limit=100)) == 50


def test_jobs_that_escalate_again_meanwhile_are_not_met_twice(
    context: ConsoleContext, api: TestClient
) -> None:
    ids = escalate(context, 30)
    bulk_id = post(api, f"{GROUP}/requeue", 202)["id"]
    bulks = bulks_of(context)
    work(
        context.ledger,
        bulks,
        context.services.publish,
        bulk_id,
        token="one",
        go_on=lambda: False,
    )
    scenario = Scenario(context.ledger, context.settings)
    for escalation_id in ids[:BATCH]:
        claim = scenario.claim(escalation_id.partition(":")[0], 2)
        scenario.settle(claim, escalates(claim, group_signature=ALIKE))
    control(context)
    assert get(api, f"/api/bulk/{bulk_id}")["done"] == 30
    assert len(select(context.ledger, EscalationFilter(signature=ALIKE))) == BATCH


def test_the_record_of_a_bulk_action_ends_after_a_week(
    context: ConsoleContext, api: TestClient, redis_client: redis.Redis
) -> None:
    escalate(context, 30)
    bulk_id = post(api, f"{GROUP}/resolve", 202)["id"]
    for name in (f"bulk:{bulk_id}", f"bulk:{bulk_id}:todo"):
        assert 0 < redis_client.pttl(f"mulligan:{{fleet}}:{name}") <= 7 * 86400_000
    redis_client.delete(f"mulligan:{{fleet}}:bulk:{bulk_id}")
    control(context)
    assert bulks_of(context).running() == []


# -- who may ---------------------------------------------------------------------------------------


def test_a_tenant_s_caller_sees_and_ends_its_own_alone(context: ConsoleContext) -> None:
    (mine,) = escalate(context, 1, labels={"tenant": "acme"})
    (theirs,) = escalate(context, 1, labels={"tenant": "globex"}, task_type="secret_project")
    escalate(context, 1, group_signature="v1:theirs", labels={"tenant": "globex"})
    token = new_token(context, role="ops", tenant="acme", name="acme-ops")
    admin = client_of(context, new_token(context, role="admin", name="root"))
    api = client_of(context, token)

    (row,) = get(api, "/api/escalations")["groups"]
    assert (row["open"], row["total"], row["tenants"]) == (1, 1, {"acme": 1})
    assert row["task_types"] == {"extract": 1}
    assert [e["id"] for e in get(api, GROUP)["escalations"]] == [mine]
    assert api.get("/api/escalations/v1:theirs").status_code == 404
    assert api.get("/api/escalations", params={"tenant": "globex"}).status_code == 404
    assert api.post("/api/escalations/v1:theirs/resolve", json={}).status_code == 404
    assert api.post(f"/api/escalations/{theirs}/resolve", json={}).status_code == 404
    assert post(api, f"{GROUP}/resolve", 422, ids=[theirs])["error"]["details"] == [
        f"ids: there is no escalation {theirs}"
    ]
    assert post(api, "/api/escalations/resolve", 422)["error"]["details"][0].startswith("say which")
    done = post(api, f"{GROUP}/resolve")
    assert (done["done"], done["by"]) == (1, "acme-ops")
    assert [e.id for e in context.ledger.escalations(signature=ALIKE)] == [theirs]

    others = post(admin, "/api/escalations/resolve", tenant="globex")
    assert (others["done"], others["by"]) == (2, "root")
    assert api.get(f"/api/bulk/{others['id']}").status_code == 404
    assert get(api, f"/api/bulk/{done['id']}")["state"] == "done"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/escalations"),
        ("GET", GROUP),
        ("POST", f"{GROUP}/requeue"),
        ("POST", "/api/escalations/resolve"),
        ("GET", "/api/bulk/b0123456789ab"),
        ("POST", "/api/bulk/b0123456789ab/cancel"),
    ],
)
def test_a_producer_may_not(context: ConsoleContext, method: str, path: str) -> None:
    api = client_of(context, new_token(context, role="producer"))
    answer = api.request(method, path, json={"signature": ALIKE} if method == "POST" else None)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


def test_details_are_hidden_from_those_who_may_not_read_texts(context: ConsoleContext) -> None:
    escalate(context, 1)
    api = client_of(context, new_token(context, role="ops"))
    assert get(api, "/api/escalations")["groups"][0]["detail"] == "[redacted]"
    assert get(api, GROUP)["escalations"][0]["detail"] == "[redacted]"
    assert post(api, f"{GROUP}/cancel", dry_run=True)["first"][0]["detail"] == "[redacted]"
    reader = client_of(context, new_token(context, role="ops", texts=True))
    assert get(reader, GROUP)["group"]["detail"] == "it went wrong"


# -- what cannot be --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"per_second": 0, "note": 3}, ["per_second", "note"]),
        ({"strategy": {"fallback": -1, "temperature": 3, "max_tokens": 0, "heat": 1}},
         ["strategy.fallback", "strategy.temperature", "strategy.max_tokens", "strategy.heat"]),
        ({"prompt": "", "older_than": "soon", "newer_than": -1},
         ["prompt", "older_than", "newer_than"]),
        ({"ids": [], "everything": True}, ["ids", "everything"]),
        ({"ids": ["no id"]}, ["ids"]),
        ({"signature": "v1:other"}, ["signature"]),
    ],
)  # fmt: skip
def test_every_error_of_a_body_is_named(
    context: ConsoleContext, api: TestClient, body: dict[str, Any], fields: list[str]
) -> None:
    escalate(context, 1)
    details = post(api, f"{GROUP}/requeue", 422, **body)["error"]["details"]
    assert len(details) == len(fields)
    for field in fields:
        assert any(field in line for line in details), (field, details)
    assert context.ledger.escalations(signature=ALIKE)[0].state == "open"


def test_only_a_requeue_takes_a_prompt(context: ConsoleContext, api: TestClient) -> None:
    escalate(context, 1)
    post(api, f"{GROUP}/resolve", 422, prompt="In JSON!")


@pytest.mark.parametrize(
    "path", ["/api/escalations/v1:nobody", "/api/bulk/b0123456789ab", "/api/bulk/zset"]
)
def test_what_is_not_there_is_404(api: TestClient, path: str) -> None:
    assert api.get(path).status_code == 404


def test_names_with_colons_pass_a_real_server(settings: Callable[..., Settings]) -> None:
    with running_console(settings()) as console, console.client() as client:
        (one,) = escalate(console.context, 1, group_signature=None)
        escalate(console.context, 1, group_signature="v1:schema|$.a b")
        for signature in ("reason:max_attempts", "v1:schema|$.a b"):
            for name in (quote(signature, safe=""), quote(signature, safe=":|$")):
                found = client.get(f"/api/escalations/{name}")
                assert found.status_code == 200, found.text
                assert found.json()["group"]["signature"] == signature
        ended = client.post(f"/api/escalations/{quote(one, safe='')}/resolve", json={"note": "ok"})
        assert (ended.status_code, ended.json()["done"]) == (200, 1)
