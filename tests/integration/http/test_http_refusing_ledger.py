"""What people see of a Redis that answers and stores nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from support.cli_process import invoke
from support.console_server import client_of
from support.jobs import GOOD, scripted
from support.redis_server import RedisServer

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.console.reports.overview_now import health_of, read_current_state
from mulligan.workers.ledger.stores.beats import Beat
from mulligan.workers.settings.model import Settings


def _full(redis: Any) -> None:
    redis.config_set("maxmemory", 1)


def _read_only(redis: Any) -> None:
    redis.execute_command("REPLICAOF", "127.0.0.1", "1")


REFUSALS = [
    pytest.param(_full, "the ledger is full (maxmemory)", "Raise its maxmemory", id="full"),
    pytest.param(_read_only, "the ledger is read-only", "Connect to the master", id="read-only"),
]
Refuse = Callable[[Any], None]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    found = RedisServer(tmp_path / "r")
    found.start()
    yield found
    found.kill()


@pytest.fixture
def context(server: RedisServer, tmp_path: Path) -> ConsoleContext:
    settings = Settings(
        broker_url=server.url, home=tmp_path, submit_patience=0.1, allow_inline=True
    )
    context = open_context(settings)
    context.ledger.sweep(empty_queues=())
    return context


@pytest.fixture
def client(context: ConsoleContext) -> TestClient:
    client = client_of(context)
    assert client.get("/readyz").status_code == 200
    return client


@pytest.mark.parametrize(("refuse", "said", "advice"), REFUSALS)
def test_the_console_says_that_the_ledger_refuses(
    client: TestClient, server: RedisServer, refuse: Refuse, said: str, advice: str
) -> None:
    refuse(server.client())
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()["why"]) == (503, "ledger")
    assert said in ready.json()["detail"]
    refused = client.post("/api/jobs", json=scripted(GOOD))
    assert refused.status_code == 503
    assert said in refused.json()["error"]["message"]
    page = client.get("/", headers={"Accept": "text/html"})
    assert page.status_code == 200
    assert said in page.text
    found = {family.name: family for family in text_string_to_metric_families(_metrics(client))}
    assert [sample.value for sample in found["mulligan_ledger_stores"].samples] == [0.0]


def _metrics(client: TestClient) -> str:
    return client.get("/metrics").text


@pytest.mark.parametrize(("refuse", "said", "advice"), REFUSALS)
def test_doctor_says_that_the_ledger_refuses(
    context: ConsoleContext,
    server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    refuse: Refuse,
    said: str,
    advice: str,
) -> None:
    monkeypatch.setenv("MULLIGAN_BROKER_URL", server.url)
    refuse(server.client())
    printed = invoke("doctor", code=1).output
    assert f"fail ledger         {said}" in printed
    assert advice in printed
    assert "script" not in printed


def test_workers_that_wait_for_the_ledger_are_shown(
    context: ConsoleContext, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat = Beat(name="a@h", pool="attempt", host="h", pid=1, slots=8, active=8, waiting=3,
                waiting_reason="the ledger is full (maxmemory)")  # fmt: skip
    context.ledger.beats.write(beat)
    now = read_current_state(context.services, context.app, tenant=None, bound=False)
    expected = "1 worker waiting for the ledger: the ledger is full (maxmemory)"
    assert expected in health_of(now).reasons
    text = _metrics(client_of(context))
    assert 'mulligan_ledger_waiting{pool="attempt"} 3.0' in text
    monkeypatch.setenv("MULLIGAN_BROKER_URL", server.url)
    printed = invoke("doctor", code=1).output
    assert "a@h: 3 calls waiting for the ledger: the ledger is full (maxmemory)" in printed
    assert "see the runbook, section Ledger refuses" in printed
