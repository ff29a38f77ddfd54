"""Failures over HTTP and the overview of the page, from jobs that really failed."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient
from support.console_server import client_of, get_json, new_token, post_json
from support.finished_jobs import run_jobs
from support.jobs import GOOD, WRONG_TYPE, failure_of, scripted
from support.ledger_scenario import SettingsMaker

from mulligan.console.http.broadcast import EventFilter
from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.console.reports.overview import overview
from mulligan.console.reports.overview_values import Overview
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.celery.heartbeat import Heartbeat
from mulligan.workers.figures.fold import Fold
from mulligan.workers.ledger.status_reads import StatusReads
from mulligan.workers.ledger.stores.beats import Beat

FENCED = "```json\n{broken\n```"


@pytest.fixture
def context(settings: SettingsMaker) -> ConsoleContext:
    return open_context(settings(allow_inline=True, quotas={"acme": {"tokens_per_day": 1000}}))


@pytest.fixture
def ran(context: ConsoleContext) -> list[JobView]:
    """One repaired job of a tenant, one repaired job without a tenant, one escalated job."""
    views = run_jobs(
        context,
        scripted(WRONG_TYPE, GOOD, labels={"tenant": "acme"}),
        scripted(WRONG_TYPE, GOOD, task_type="invoice"),
        scripted(FENCED, labels={"tenant": "rival"}),
    )
    Fold(context.ledger).run()
    return views


def failures(api: TestClient, **params: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = get_json(api, "/api/failures", **params)["failures"]
    return found


def signature_of(view: JobView) -> str:
    return str(failure_of(view.attempts[0]).coarse_signature)


def test_failures_are_ranked_with_their_repairs(
    context: ConsoleContext, ran: list[JobView]
) -> None:
    repaired, other, lost = ran
    api = client_of(context)
    found = {row["signature"]: row for row in failures(api, window="1h")}
    assert found.keys() == {signature_of(repaired), signature_of(lost)}
    types = found[signature_of(repaired)]
    assert (types["kind"], types["count"], types["before"]) == ("schema_invalid", 2, 0)
    assert (types["trend"], sum(types["series"]), len(types["series"])) == (1, 2, 60)
    assert types["task_types"] == {"extract_person": 1, "invoice": 1}
    assert (types["tried"], types["repaired"], types["repaired_share"]) == (2, 2, 1.0)
    assert sum(each["repaired"] for each in types["techniques"]) == 2
    assert types["example"] in (repaired.id, other.id)
    assert types["open_escalations"] == 0
    fence = found[signature_of(lost)]
    assert fence["open_escalations"] == 1
    assert fence["repaired"] == 0 < fence["tried"]
    counts = [row["count"] for row in failures(api)]
    assert counts == sorted(counts, reverse=True)
    assert len(failures(api, limit=1)) == 1


@pytest.mark.parametrize(
    ("params", "count"),
    [
        ({"kind": "schema_invalid"}, 1),
        ({"task_type": "invoice"}, 1),
        ({"task_type": "unknown"}, 0),
        ({"model": "unknown"}, 0),
    ],
)
def test_failures_are_filtered(
    context: ConsoleContext, ran: list[JobView], params: dict[str, str], count: int
) -> None:
    assert len(failures(client_of(context), **params)) == count


def test_a_signature_is_explained(context: ConsoleContext, ran: list[JobView]) -> None:
    signature = signature_of(ran[0])
    detail = get_json(client_of(context), f"/api/failures/{signature}")
    assert detail["place"] == "$.age"
    why = detail["explanation"]
    assert (why["coarse_signature"], why["kind"], why["matches"]) == (
        signature,
        "schema_invalid",
        True,
    )
    assert why["strict_parts"]["errors"]
    assert why["redacted"] is False
    ops = client_of(context, new_token(context, role="ops"))
    hidden = get_json(ops, f"/api/failures/{signature}")["explanation"]
    assert (hidden["redacted"], hidden["strict_parts"]) == (True, {})


MAP = {"type": "object", "properties": {"map": {"additionalProperties": {"type": "integer"}}}}


def run_secret_jobs(context: ConsoleContext) -> list[str]:
    """Run jobs whose answers, output, keys and reports contain SEK… and return their ids."""
    keys = scripted(
        '{"map": {"SEKKEY one": "x", "SEKKEY": "y"}}',
        verifiers=[{"id": "contract.schema", "schema": MAP}],
    )
    program = "import sys; sys.exit('SEKSTDERR')"
    command = scripted(
        "SEKANSWER",
        verifiers=[{"id": "command.subprocess", "argv": ["python3", "-c", program, "SEKARG"]}],
    )
    ids = [view.id for view in run_jobs(context, keys, command)]
    finding = {"message": "SEKMESSAGE", "path": "SEKPATH one", "code": "SEKCODE one"}
    report = {"subject": "mia", "task_type": "tense", "prompt": "SEKPROMPT", "score": 40,
              "answer": "SEKANSWER", "findings": [finding]}  # fmt: skip
    reported = post_json(client_of(context), "/api/attempts", 201, **report)
    Fold(context.ledger).run()
    return [*ids, reported["job_id"]]


def test_without_access_to_texts_no_text_of_an_answer_is_shown(context: ConsoleContext) -> None:
    ids = run_secret_jobs(context)
    signatures = [row["signature"] for row in failures(client_of(context))]
    assert len(signatures) == 3
    reader = client_of(context, new_token(context, role="ops", texts=True))
    ops = client_of(context, new_token(context, role="ops"))
    paths = ["/", "/jobs", "/failures", "/cycles", "/escalations", "/operations", "/metrics"]
    paths += ["/api/jobs", "/api/failures", "/api/escalations"]
    paths += ["/api/quality/self-repair-immediate-loop"]
    paths += [f"/api/failures/{each}" for each in signatures]
    paths += [f"/failures/{each}" for each in signatures]
    paths += [f"/api/jobs/{each}" for each in ids] + [f"/jobs/{each}" for each in ids]
    for path in paths:
        response = ops.get(path)
        assert response.status_code == 200, (path, response.text)
        assert "SEK" not in response.text, path
    pages = context.broadcast._replay(EventFilter(texts=False), ("0-0",), ("+",))
    events = b"".join(pages).decode()
    assert "reasoning_error" in events
    assert "SEK" not in events
    explained = [get_json(ops, f"/api/failures/{each}")["explanation"] for each in signatures]
    assert all(why["redacted"] for why in explained)
    parts = [why["coarse_parts"] for why in explained if why["kind"] == "command_failed"]
    assert parts == [{"outcome": "exit_code 1"}]
    quoted = "".join(reader.get(path).text for path in paths)
    for word in ("SEKKEY one", "SEKSTDERR", "SEKPATH one", "SEKCODE one"):
        assert word in quoted


def test_a_tenant_sees_only_its_own_failures(context: ConsoleContext, ran: list[JobView]) -> None:
    repaired, _, lost = ran
    acme = client_of(context, new_token(context, role="ops", tenant="acme"))
    (row,) = failures(acme)
    assert (row["signature"], row["count"], row["task_types"]) == (
        signature_of(repaired),
        1,
        {"extract_person": 1},
    )
    assert row["example"] == repaired.id
    assert acme.get(f"/api/failures/{signature_of(lost)}").status_code == 404
    assert get_json(acme, f"/api/failures/{signature_of(repaired)}")["example"] == repaired.id
    refused = acme.post(f"/api/failures/{signature_of(repaired)}/mute", json={"for": "4h"})
    assert refused.status_code == 403


def test_alerts_of_a_signature_are_muted_and_unmuted(
    context: ConsoleContext, ran: list[JobView]
) -> None:
    api = client_of(context)
    signature = signature_of(ran[2])
    path = f"/api/failures/{signature}/mute"
    left = post_json(api, path, 200, **{"for": "4h"})["muted_until"] - context.ledger.now()
    assert 4 * 3600 - 60 < left <= 4 * 3600
    assert get_json(api, f"/api/failures/{signature}")["muted"] is True
    assert api.post(path, json={"for": None}).json()["muted_until"] is None
    assert get_json(api, f"/api/failures/{signature}")["muted"] is False


@pytest.mark.parametrize("body", [{"for": "soon"}, {"for": "0s"}, {"until": 5}, {}])
def test_a_mute_needs_a_duration(context: ConsoleContext, body: dict[str, Any]) -> None:
    assert client_of(context).post("/api/failures/v1:x/mute", json=body).status_code == 422


def test_an_unknown_signature_is_not_found(context: ConsoleContext) -> None:
    api = client_of(context)
    assert api.get("/api/failures/v1:unknown").status_code == 404
    assert api.post("/api/failures/v1:unknown/mute", json={"for": "1h"}).status_code == 404
    assert api.get("/api/failures", params={"window": "1y"}).status_code == 422
    assert failures(api) == []


def test_a_producer_may_read_failures_but_not_mute_them(
    context: ConsoleContext, ran: list[JobView]
) -> None:
    producer = client_of(context, new_token(context, role="producer"))
    assert failures(producer)
    assert producer.post("/api/failures/v1:x/mute", json={"for": "1h"}).status_code == 403


# -- the overview ----------------------------------------------------------------------------------


def beat(
    context: ConsoleContext, *, queues: tuple[str, ...] = ("repair", "attempt", "verify", "control")
) -> None:
    """Send a worker's heartbeat."""
    sent = Beat(
        name="all@host", pool="all", host="host", pid=1, slots=4, active=1, queues=queues, at=0
    )
    Heartbeat(context.ledger.beats, lambda: sent).beat()


@pytest.fixture(autouse=True)
def _ledger_that_was_not_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StatusReads, "answering_for", lambda _: 3600.0)


def overview_of(context: ConsoleContext, **options: Any) -> Overview:
    return overview(context.services, context.app, **options)


def test_the_overview_of_a_stack_without_workers(context: ConsoleContext) -> None:
    shown = overview_of(context)
    assert shown.health.state == "down"
    assert "no worker has reported for 30 s: start workers" in shown.health.reasons
    assert shown.success.first_try.share is None
    assert shown.speed.retry_p50_ms is None
    assert (shown.failures, shown.techniques, shown.cost.tokens_per_success) == ((), (), None)
    assert len(shown.outcomes) == 60


def test_the_overview_shows_results_and_what_needs_attention(
    context: ConsoleContext, ran: list[JobView]
) -> None:
    beat(context)
    shown = overview_of(context, window="1h")
    assert (shown.health.state, shown.health.workers) == ("ok", 1), shown.health
    assert (shown.success.ended, shown.success.first_try.count) == (3, 0)
    assert shown.success.after_repair.share == pytest.approx(2 / 3)
    assert shown.success.escalated.share == pytest.approx(1 / 3)
    assert sum(step.repaired for step in shown.outcomes) == 2
    assert shown.speed.retry_p50_ms is not None
    assert shown.speed.jobs_per_minute > 0
    (need,) = shown.needs_attention
    assert (need.kind, need.count, need.key) == ("escalations", 1, signature_of(ran[2]))
    assert {each.signature for each in shown.failures} == {
        signature_of(ran[0]),
        signature_of(ran[2]),
    }
    (schema,) = [each for each in shown.failures if each.kind == "schema_invalid"]
    assert (schema.place, schema.count, schema.repaired) == ("$.age", 2, 1.0)
    assert shown.heat["schema_invalid"] == {"extract_person": 1, "invoice": 1}
    assert shown.tenants == ("acme", "rival")
    assert {lane.name: lane.slots for lane in shown.queues}["attempt"] == 4
    assert shown.cost.unknown > 0
    assert shown.cost.budget_used == 0


def test_the_overview_of_one_tenant(context: ConsoleContext, ran: list[JobView]) -> None:
    shown = overview_of(context, window="1h", tenant="acme")
    assert (shown.success.ended, shown.tenants) == (1, ("acme",))
    assert all(need.kind != "escalations" for need in shown.needs_attention)
    assert [each.count for each in shown.failures] == [1]
    assert overview_of(context, tenant="rival").success.escalated.count == 1


@pytest.mark.parametrize(("window", "steps"), [("1h", 60), ("24h", 24), ("7d", 56), ("30d", 60)])
def test_every_window_has_at_most_sixty_steps(
    context: ConsoleContext, ran: list[JobView], window: str, steps: int
) -> None:
    shown = overview_of(context, window=window)
    assert len(shown.outcomes) == steps
    assert sum(step.repaired for step in shown.outcomes) == 2
    assert len(shown.failures[0].series) <= 60


def test_the_overview_shows_a_pause_and_a_queue_without_a_worker(
    context: ConsoleContext, ran: list[JobView]
) -> None:
    beat(context, queues=("repair", "attempt", "control"))
    context.ledger.pause("queue:attempt")
    shown = overview_of(context)
    assert shown.health.state == "degraded"
    assert shown.health.reasons == ("no worker serves verify", "queue:attempt is paused")
    assert {lane.name for lane in shown.queues if lane.paused} == {"attempt"}


def test_the_overview_takes_as_many_round_trips_for_any_number_of_jobs(
    context: ConsoleContext, ran: list[JobView]
) -> None:
    before = context.ledger.round_trips
    overview_of(context)
    few = context.ledger.round_trips - before
    run_jobs(context, *(scripted(WRONG_TYPE, GOOD) for _ in range(10)))
    Fold(context.ledger).run()
    before = context.ledger.round_trips
    overview_of(context)
    assert context.ledger.round_trips - before == few


def test_an_unknown_window_is_refused(context: ConsoleContext) -> None:
    with pytest.raises(BadInput, match="window"):
        overview_of(context, window="ever")
