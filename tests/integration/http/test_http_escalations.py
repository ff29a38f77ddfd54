"""Escalations over HTTP: grouped by signature, and a group is ended by one request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
import redis
from starlette.testclient import TestClient
from support.console_server import client_of, get_json, new_token, post_json, running_console
from support.ledger_scenario import Scenario
from support.settlements import escalates
from support.waiting import wait_for

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.tasks.escalations.end_escalations import (
    EndAction,
    EndedCounts,
    EscalationFilter,
    run_bulk_action,
    select,
)
from mulligan.tasks.ports.ledger import Publication
from mulligan.workers.ledger.stores.bulk_actions import BATCH, RedisBulkActions, run_bulks
from mulligan.workers.settings.model import Settings

SIGNATURE = "v1:a1b2c3"
ANN = EndAction(how="resolved", by="ann")
GROUP = f"/api/escalations/{quote(SIGNATURE, safe='')}"


@pytest.fixture
def context(settings: Callable[..., Settings]) -> ConsoleContext:
    return open_context(settings())


@pytest.fixture
def api(context: ConsoleContext) -> TestClient:
    return client_of(context)


def escalate(
    context: ConsoleContext, count: int = 1, group_signature: str | None = SIGNATURE, **fields: Any
) -> list[str]:
    scenario = Scenario(context.ledger, context.settings)
    fields["group_signature"] = group_signature
    return [f"{scenario.escalated_job(**fields)}:1" for _ in range(count)]


def bulks_of(context: ConsoleContext, **options: Any) -> RedisBulkActions:
    return RedisBulkActions(context.ledger.calls, prefix=context.settings.key_prefix, **options)


def run_control_worker(context: ConsoleContext) -> None:
    """Do what a control worker does every second, until no bulk action is left."""
    bulks = bulks_of(context)
    wait_for(lambda: not run_bulks(context.ledger, bulks, context.services.publish))


# -- one group -------------------------------------------------------------------------------------


def test_forty_similar_escalations_are_one_row_and_one_request_requeues_them(
    context: ConsoleContext, api: TestClient
) -> None:
    ids = escalate(context, 40)
    (row,) = get_json(api, "/api/escalations")["groups"]
    assert (row["signature"], row["open"], row["total"]) == (SIGNATURE, 40, 40)
    assert (row["reason"], row["task_types"]) == ("max_attempts", {"extract": 40})
    assert row["runbook_url"].endswith("/runbook#escalated")

    dry = post_json(api, f"{GROUP}/requeue", dry_run=True)
    assert (dry["total"], dry["task_types"], len(dry["first"])) == (40, {"extract": 40}, 20)
    assert get_json(api, GROUP)["group"]["open"] == 40

    response = api.post(
        f"{GROUP}/requeue", json={"prompt": "As JSON, please.", "note": "new words"}
    )
    assert response.status_code == 202
    bulk = response.json()
    assert (bulk["total"], bulk["state"], bulk["how"]) == (40, "running", "requeued")
    assert "As JSON" not in response.text
    assert response.headers["Location"] == f"/api/bulk/{bulk['id']}"
    run_control_worker(context)
    bulk = get_json(api, response.headers["Location"])
    assert (bulk["state"], bulk["done"], bulk["failed"], bulk["skipped"]) == ("done", 40, 0, 0)

    detail = get_json(api, GROUP, limit=100)
    assert (detail["group"]["open"], detail["group"]["total"]) == (0, 40)
    ended = {(e["state"], e["ended_by"], e["note"]) for e in detail["escalations"]}
    assert ended == {("requeued", "loopback", "new words")}
    assert all(e["ended_at"] >= e["at"] for e in detail["escalations"])
    claim = Scenario(context.ledger, context.settings).claim(ids[0].partition(":")[0], 2)
    assert claim.plan.prompt == "As JSON, please."

    again = post_json(api, f"{GROUP}/requeue")
    assert (again["total"], again["done"], again["state"]) == (0, 0, "done")
    assert get_json(api, "/api/escalations")["groups"] == []
    assert len(get_json(api, "/api/escalations", state="all")["groups"]) == 1


def test_a_small_group_is_ended_at_once(context: ConsoleContext, api: TestClient) -> None:
    escalate(context, BATCH)
    result = post_json(api, f"{GROUP}/resolve", note="the provider was down")
    assert (result["state"], result["done"]) == ("done", BATCH)


def test_escalations_are_ended_by_id_by_filter_and_across_groups(
    context: ConsoleContext, api: TestClient
) -> None:
    ids = escalate(context, 3)
    escalate(context, 2, task_type="translate")
    escalate(context, 1, group_signature="v1:ff", task_type="translate")
    assert post_json(api, f"{GROUP}/resolve", ids=ids[:1])["done"] == 1
    assert post_json(api, f"{GROUP}/resolve", older_than="1h")["total"] == 0
    assert post_json(api, f"{GROUP}/resolve", task_type="translate", dry_run=True)["total"] == 2
    assert post_json(api, "/api/escalations/resolve", task_type="translate")["done"] == 3
    assert (
        post_json(api, "/api/escalations/cancel", signature=SIGNATURE, newer_than=3600)["done"] == 2
    )
    assert get_json(api, "/api/escalations")["groups"] == []


def test_one_escalation_is_ended_by_its_id(context: ConsoleContext, api: TestClient) -> None:
    one, other = escalate(context, 2)
    path = f"/api/escalations/{quote(one, safe='')}"
    strategy = {"fallback": 1, "temperature": 0.2, "max_tokens": 50, "constrained": True}
    assert post_json(api, f"{path}/requeue", strategy=strategy)["done"] == 1
    assert post_json(api, f"{path}/requeue")["total"] == 0, "repeating it is harmless"
    refused = post_json(api, f"{path}/resolve", 409, note="no")
    assert refused["error"]["message"] == "it was already requeued by loopback"
    claim = Scenario(context.ledger, context.settings).claim(one.partition(":")[0], 2)
    assert claim.plan.decoding.model_dump() == strategy
    assert get_json(api, GROUP, state="open")["escalations"][0]["id"] == other


def test_an_expired_job_cannot_be_requeued_but_can_be_resolved(
    context: ConsoleContext, api: TestClient, redis_client: redis.Redis
) -> None:
    one, two, _ = escalate(context, 3)
    for gone in (one, two):
        job_id = gone.partition(":")[0]
        redis_client.delete(f"mulligan:{{p00}}:job:{job_id}")
    result = post_json(api, f"{GROUP}/requeue")
    assert (result["done"], result["failed"], result["state"]) == (1, 2, "done")
    assert {problem["id"] for problem in result["problems"]} == {one, two}
    assert "no longer kept" in result["problems"][0]["why"]
    alone = post_json(api, f"/api/escalations/{one}/requeue", 409)
    assert "no longer kept" in alone["error"]["message"]
    assert post_json(api, f"{GROUP}/resolve", note="too old")["done"] == 2


# -- bulk actions ----------------------------------------------------------------------------------


def test_the_next_worker_continues_where_a_killed_one_stopped(
    context: ConsoleContext, api: TestClient
) -> None:
    escalate(context, 50)
    bulk = post_json(api, f"{GROUP}/requeue", 202)
    hasty = bulks_of(context, lease=0.001)
    published: list[Publication] = []
    run_bulk_action(
        context.ledger, hasty, published.extend, bulk["id"], token="first", keep_going=lambda: False
    )
    # A worker is killed halfway through the next batch.
    batch = hasty.take(bulk["id"], token="killed")
    for escalation_id in batch.ids[:7]:
        context.ledger.end_escalation(escalation_id, how="requeued", by="loopback")
    assert get_json(api, f"/api/bulk/{bulk['id']}")["done"] == BATCH
    run_control_worker(context)
    hasty.commit(bulk["id"], token="killed", count=BATCH, tally=EndedCounts(done=BATCH))
    bulk = get_json(api, f"/api/bulk/{bulk['id']}")
    assert (bulk["state"], bulk["done"], bulk["skipped"], bulk["failed"]) == ("done", 50, 0, 0)
    assert context.ledger.escalations(signature=SIGNATURE) == []


def test_two_workers_never_take_the_same_batch(context: ConsoleContext, api: TestClient) -> None:
    escalate(context, 50)
    bulk_id = post_json(api, f"{GROUP}/resolve", 202)["id"]
    bulks = bulks_of(context)
    assert len(bulks.take(bulk_id, token="one").ids) == BATCH
    waiting = bulks.take(bulk_id, token="two")
    assert waiting.ids == ()
    assert waiting.wait is not None
    assert waiting.wait > 0


@pytest.mark.parametrize(
    ("per_second", "at_first"), [(5, 5), (1000, BATCH), (0.1, 1)]
)  # one second's worth, at most a batch, at least one
def test_a_rate_limited_bulk_starts_with_one_second_s_worth(
    context: ConsoleContext, per_second: float, at_first: int
) -> None:
    bulks = bulks_of(context)
    ids = [f"p00-x:{number}" for number in range(30)]
    bulk = bulks.create(ANN, EscalationFilter(signature=SIGNATURE), ids, per_second=per_second)
    assert len(bulks.take(bulk.id, token="one").ids) == at_first


def test_all_workers_of_a_bulk_action_share_its_rate(context: ConsoleContext) -> None:
    bulks = bulks_of(context)
    bulk = bulks.create(
        ANN, EscalationFilter(signature=SIGNATURE), ["p00-x:1", "p00-y:1"], per_second=0.1
    )
    bulks.take(bulk.id, token="one")
    bulks.commit(bulk.id, token="one", count=1, tally=EndedCounts(done=1))
    waiting = bulks.take(bulk.id, token="two")
    assert waiting.ids == ()
    assert waiting.wait is not None
    assert 0 < waiting.wait <= 10, "one every 10 s"


def test_a_slow_rate_applies_to_a_small_group_too(context: ConsoleContext, api: TestClient) -> None:
    escalate(context, 10)
    result = post_json(api, f"{GROUP}/resolve", 202, per_second=0.1)
    assert (result["done"], result["state"]) == (1, "running")


def test_stopping_a_bulk_action_keeps_what_it_has_done(
    context: ConsoleContext, api: TestClient
) -> None:
    escalate(context, 50)
    bulk_id = post_json(api, f"{GROUP}/resolve", 202)["id"]
    bulks = bulks_of(context)
    batch = bulks.take(bulk_id, token="one")
    assert post_json(api, f"/api/bulk/{bulk_id}/cancel")["state"] == "stopped"
    bulks.commit(bulk_id, token="one", count=len(batch.ids), tally=EndedCounts(done=len(batch.ids)))
    result = post_json(api, f"/api/bulk/{bulk_id}/cancel")
    assert (result["state"], result["done"]) == ("stopped", BATCH)
    assert bulks.running() == []
    run_control_worker(context)
    assert len(context.ledger.escalations(signature=SIGNATURE, limit=100)) == 50


def test_jobs_that_escalate_again_meanwhile_are_not_requeued_twice(
    context: ConsoleContext, api: TestClient
) -> None:
    ids = escalate(context, 30)
    bulk_id = post_json(api, f"{GROUP}/requeue", 202)["id"]
    bulks = bulks_of(context)
    run_bulk_action(
        context.ledger,
        bulks,
        context.services.publish,
        bulk_id,
        token="one",
        keep_going=lambda: False,
    )
    scenario = Scenario(context.ledger, context.settings)
    for escalation_id in ids[:BATCH]:
        claim = scenario.claim(escalation_id.partition(":")[0], 2)
        scenario.settle(claim, escalates(claim, group_signature=SIGNATURE))
    run_control_worker(context)
    assert get_json(api, f"/api/bulk/{bulk_id}")["done"] == 30
    assert len(select(context.ledger, EscalationFilter(signature=SIGNATURE))) == BATCH


def test_the_record_of_a_bulk_action_expires_after_a_week(
    context: ConsoleContext, api: TestClient, redis_client: redis.Redis
) -> None:
    escalate(context, 30)
    bulk_id = post_json(api, f"{GROUP}/resolve", 202)["id"]
    for name in (f"bulk:{bulk_id}", f"bulk:{bulk_id}:todo"):
        assert 0 < redis_client.pttl(f"mulligan:{{fleet}}:{name}") <= 7 * 86400_000
    redis_client.delete(f"mulligan:{{fleet}}:bulk:{bulk_id}")
    run_control_worker(context)
    assert bulks_of(context).running() == []


# -- access ----------------------------------------------------------------------------------------


def test_a_tenant_sees_and_ends_only_its_own_escalations(context: ConsoleContext) -> None:
    (mine,) = escalate(context, 1, labels={"tenant": "acme"})
    (theirs,) = escalate(context, 1, labels={"tenant": "globex"}, task_type="secret_project")
    escalate(context, 1, group_signature="v1:theirs", labels={"tenant": "globex"})
    token = new_token(context, role="ops", tenant="acme", name="acme-ops")
    admin = client_of(context, new_token(context, role="admin", name="root"))
    api = client_of(context, token)

    (row,) = get_json(api, "/api/escalations")["groups"]
    assert (row["open"], row["total"], row["tenants"]) == (1, 1, {"acme": 1})
    assert row["task_types"] == {"extract": 1}
    assert [e["id"] for e in get_json(api, GROUP)["escalations"]] == [mine]
    assert api.get("/api/escalations/v1:theirs").status_code == 404
    assert api.get("/api/escalations", params={"tenant": "globex"}).status_code == 404
    assert api.post("/api/escalations/v1:theirs/resolve", json={}).status_code == 404
    assert api.post(f"/api/escalations/{theirs}/resolve", json={}).status_code == 404
    assert post_json(api, f"{GROUP}/resolve", 422, ids=[theirs])["error"]["details"] == [
        f"ids: there is no escalation {theirs!r}"
    ]
    assert post_json(api, "/api/escalations/resolve", 422)["error"]["details"][0].startswith(
        "set at least one filter: signature, ids"
    )
    done = post_json(api, f"{GROUP}/resolve")
    assert (done["done"], done["by"]) == (1, "acme-ops")
    assert [e.id for e in context.ledger.escalations(signature=SIGNATURE)] == [theirs]

    others = post_json(admin, "/api/escalations/resolve", tenant="globex")
    assert (others["done"], others["by"]) == (2, "root")
    assert api.get(f"/api/bulk/{others['id']}").status_code == 404
    assert get_json(api, f"/api/bulk/{done['id']}")["state"] == "done"


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
def test_a_producer_has_no_access_to_escalations(
    context: ConsoleContext, method: str, path: str
) -> None:
    api = client_of(context, new_token(context, role="producer"))
    response = api.request(
        method, path, json={"signature": SIGNATURE} if method == "POST" else None
    )
    assert (response.status_code, response.json()["error"]["code"]) == (403, "forbidden")


def test_details_are_redacted_without_access_to_texts(context: ConsoleContext) -> None:
    escalate(context, 1)
    api = client_of(context, new_token(context, role="ops"))
    assert get_json(api, "/api/escalations")["groups"][0]["detail"] == "[redacted]"
    assert get_json(api, GROUP)["escalations"][0]["detail"] == "[redacted]"
    assert post_json(api, f"{GROUP}/cancel", dry_run=True)["first"][0]["detail"] == "[redacted]"
    reader = client_of(context, new_token(context, role="ops", texts=True))
    assert get_json(reader, GROUP)["group"]["detail"] == "it went wrong"


# -- invalid input ---------------------------------------------------------------------------------


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
def test_every_error_of_a_body_is_reported(
    context: ConsoleContext, api: TestClient, body: dict[str, Any], fields: list[str]
) -> None:
    escalate(context, 1)
    details = post_json(api, f"{GROUP}/requeue", 422, **body)["error"]["details"]
    assert len(details) == len(fields)
    for field in fields:
        assert any(field in line for line in details), (field, details)
    assert context.ledger.escalations(signature=SIGNATURE)[0].state == "open"


def test_only_a_requeue_takes_a_prompt(context: ConsoleContext, api: TestClient) -> None:
    escalate(context, 1)
    post_json(api, f"{GROUP}/resolve", 422, prompt="In JSON!")


@pytest.mark.parametrize(
    "path", ["/api/escalations/v1:unknown", "/api/bulk/b0123456789ab", "/api/bulk/zset"]
)
def test_an_unknown_group_or_bulk_action_is_404(api: TestClient, path: str) -> None:
    assert api.get(path).status_code == 404


def test_signatures_with_special_characters_work_on_a_real_server(
    settings: Callable[..., Settings],
) -> None:
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
