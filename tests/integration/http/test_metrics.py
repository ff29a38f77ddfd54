"""`/metrics`, read by Prometheus's own parser."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.console_server import client_of, new_token
from support.finished_jobs import run_jobs
from support.jobs import GOOD, WRONG_TYPE, scripted
from support.ledger_scenario import SettingsMaker
from support.provider_calls import open_breaker

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.workers.celery.heartbeat import Heartbeat
from mulligan.workers.figures.fold import Fold
from mulligan.workers.ledger.stores.beats import Beat

#: Every name that alert rules and dashboards use.
NAMES = {
    "mulligan_attempts_total", "mulligan_jobs_total", "mulligan_score",
    "mulligan_retry_latency_seconds", "mulligan_cycles_total", "mulligan_queue_depth",
    "mulligan_queue_oldest_seconds", "mulligan_slots", "mulligan_active", "mulligan_workers",
    "mulligan_tokens_total", "mulligan_breaker_state", "mulligan_escalations_open",
    "mulligan_escalation_groups_open", "mulligan_ledger_round_trips_total",
    "mulligan_sweep_age_seconds", "mulligan_fold_lag_seconds", "mulligan_webhook_deliveries",
    "mulligan_paused", "mulligan_outbox_quarantined", "mulligan_submissions_refused",
    "mulligan_ledger_stores", "mulligan_ledger_waiting",
    "mulligan_provider_limit", "mulligan_provider_in_flight", "mulligan_parked",
    "mulligan_parked_oldest_seconds", "mulligan_worker_releases", "mulligan_waiting_for_version",
}  # fmt: skip
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def context(settings: SettingsMaker) -> ConsoleContext:
    return open_context(settings(allow_inline=True))


def scrape(context: ConsoleContext, token: str | None = None) -> Samples:
    response = client_of(context, token).get("/metrics")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def test_attempts_jobs_and_cycles_are_counted(context: ConsoleContext) -> None:
    run_jobs(context, scripted(WRONG_TYPE, GOOD), scripted(GOOD), scripted("no", GOOD))
    Fold(context.ledger).run()
    found = scrape(context)
    attempts = "mulligan_attempts_total"
    retried = {"mode": "initial", "outcome": "retried"}
    assert value(found, attempts, **retried, kind="schema_invalid") == 1
    assert value(found, attempts, **retried, kind="json_invalid") == 1
    assert value(found, attempts, mode="immediate_retry", outcome="success", kind="") == 2
    assert value(found, "mulligan_jobs_total", state="accepted") == 3
    assert value(found, "mulligan_jobs_total", state="succeeded") == 3
    assert value(found, "mulligan_score_bucket", le="+Inf") == 5
    assert value(found, "mulligan_score_count") == 5
    below = [value(found, "mulligan_score_bucket", le=f"{le}.0") for le in range(10, 101, 10)]
    assert below == sorted(below)  # cumulative
    assert below[-1] == 5
    assert value(found, "mulligan_retry_latency_seconds_count") == 2
    assert value(found, "mulligan_retry_latency_seconds_sum") >= 0
    assert value(found, "mulligan_cycles_total", status="pending_immediate_retry") == 2


def test_every_metric_is_exported(context: ConsoleContext) -> None:
    """Given an open breaker, a worker and a pause, without which their metrics are absent."""
    run_jobs(context, scripted(GOOD))
    open_breaker(context.ledger, "openai-eu", retry_after=300)
    Fold(context.ledger).run()
    context.ledger.pause("task_type:slow")
    beat = Beat(name="a@h", pool="a", host="h", pid=1, slots=8, active=3, round_trips=7)
    Heartbeat(context.ledger.beats, lambda: beat).beat()
    found = scrape(context)
    text = client_of(context).get("/metrics").text
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    assert names >= NAMES
    assert value(found, "mulligan_breaker_state", provider="openai-eu") == 2
    assert value(found, "mulligan_paused", what="task_type:slow") == 1
    assert value(found, "mulligan_slots", pool="a") == 8
    assert value(found, "mulligan_active", pool="a") == 3
    assert value(found, "mulligan_workers", pool="a") == 1
    assert value(found, "mulligan_worker_releases", release="unknown") == 1
    assert value(found, "mulligan_waiting_for_version") == 0
    assert value(found, "mulligan_ledger_round_trips_total", worker="a@h") == 7
    assert value(found, "mulligan_queue_depth", queue="attempt", priority="0") == 0
    assert value(found, "mulligan_webhook_deliveries", state="dead") == 0
    assert value(found, "mulligan_outbox_quarantined") == 0
    assert value(found, "mulligan_fold_lag_seconds") == 0
    assert value(found, "mulligan_sweep_age_seconds") >= 0


def test_open_escalations_are_counted(context: ConsoleContext) -> None:
    run_jobs(context, scripted("no"), scripted("no"))
    found = scrape(context)
    assert value(found, "mulligan_escalations_open") == 2
    assert value(found, "mulligan_escalation_groups_open") == 1
    assert value(found, "mulligan_fold_lag_seconds") >= 0  # not folded yet


def test_metrics_need_the_ops_role_without_a_tenant(context: ConsoleContext) -> None:
    assert scrape(context, new_token(context, role="ops"))
    for fields in ({"role": "producer"}, {"role": "ops", "tenant": "acme"}):
        assert client_of(context, new_token(context, **fields)).get("/metrics").status_code == 403
    assert client_of(context).get("/metrics").status_code == 401
