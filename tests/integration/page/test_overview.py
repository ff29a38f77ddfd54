"""The overview: its figures, and what each caller may see."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.console_server import client_of, new_token
from support.finished_jobs import run_jobs
from support.jobs import GOOD, WRONG_TYPE, scripted
from support.ledger_scenario import Scenario, SettingsMaker
from support.provider_calls import ask, fail_call, open_breaker, start_call, submit_for
from support.redis_server import RedisServer
from support.releases import NEXT, NEXT_WORKER, of_release

from mulligan.client.http_rows import view_of
from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.console.reports.overview import overview
from mulligan.console.reports.overview_now import CurrentState, health_of
from mulligan.workers.celery.factory import create_app
from mulligan.workers.celery.heartbeat import Heartbeat
from mulligan.workers.figures.fold import Fold
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.connection.calls import RedisCalls
from mulligan.workers.ledger.stores.beats import STALE, Beat
from mulligan.workers.settings.model import Settings


@pytest.fixture
def context(settings: SettingsMaker) -> Iterator[ConsoleContext]:
    opened = open_context(settings(allow_inline=True))
    yield opened
    opened.close()


def beat(context: ConsoleContext, pool: str, *queues: str, active: int = 0, slots: int = 4) -> None:
    """Send a worker's heartbeat."""
    sent = Beat(name=f"{pool}@host", pool=pool, host="host", pid=1, slots=slots, active=active,
                queues=queues or (pool,))  # fmt: skip
    Heartbeat(context.ledger.beats, lambda: sent).beat()


# -- running attempts ------------------------------------------------------------------------------


def test_an_attempt_is_counted_once_when_its_worker_serves_two_queues(
    context: ConsoleContext,
) -> None:
    beat(context, "control", "control", "mulligan.submit", active=1, slots=1)
    beat(context, "repair")
    beat(context, "attempt", "repair", "attempt", active=3, slots=16)
    beat(context, "verify", active=1)
    beat(context, "edit", "edit", "edit.host", slots=1)
    shown = overview(context.services, context.app)
    assert shown.running == 4
    assert {lane.name: (lane.active, lane.slots) for lane in shown.queues} == {
        "repair": (0, 4),
        "attempt": (3, 16),
        "verify": (1, 4),
        "edit": (0, 1),
        "control": (1, 1),
    }
    client = client_of(context)
    for lane in shown.queues:
        scale = client.get(f"/api/scale/{lane.name}").json()
        assert (scale["active"], scale["slots"]) == (lane.active, lane.slots), lane.name
    assert re.search(r"<span>4 running</span>", client.get("/").text)


@pytest.mark.parametrize(
    ("pool", "queues", "lane"),
    [
        ("work", ("repair", "verify", "attempt"), "attempt"),
        ("gpu", ("repair", "attempt"), "attempt"),
        ("slow", ("repair", "verify"), "verify"),
        ("quick", ("repair",), "repair"),
    ],
)
def test_a_pool_with_another_name_counts_for_its_main_queue(
    context: ConsoleContext, pool: str, queues: tuple[str, ...], lane: str
) -> None:
    beat(context, pool, *queues, active=2)
    shown = overview(context.services, context.app)
    assert {each.name: each.active for each in shown.queues if each.active} == {lane: 2}
    assert shown.running == 2


# -- health ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "ready", "state"), [(0, True, "ok"), (45, False, "degraded"), (400, False, "down")]
)
def test_readyz_and_the_page_agree_on_a_late_sweep(
    context: ConsoleContext, age: float, ready: bool, state: str
) -> None:
    beat(context, "work", "repair", "verify", "attempt", "control")
    ledger = context.ledger
    ledger.sweep(empty_queues=[])
    for prefix in ledger.prefixes():
        ledger.calls.run("SET", keys.swept_at(prefix), (ledger.now() - age) * 1000)
    assert client_of(context).get("/readyz").json()["ok"] is ready
    shown = overview(context.services, context.app)
    assert shown.health.state == state, shown.health.reasons
    assert ("sweep" in [need.kind for need in shown.needs_attention]) is not ready


def state_of(*queues: str, back: float, sweep_age: float | None = 40.0) -> CurrentState:
    """The state with one worker per queue, and a ledger that is back since these seconds."""
    beats = [
        Beat(name=f"{name}@host", pool=name, host="host", pid=1, slots=1, active=0, queues=(name,))
        for name in queues
    ]
    return CurrentState(
        at=1e9, beats=beats, queues={}, answering_for=back, sweep_age=sweep_age, sweep="ok"
    )


@pytest.mark.parametrize(
    ("now", "state", "reasons"),
    [
        (
            state_of(back=4),
            "degraded",
            ["the ledger has answered for only 4 s, and no worker has reported yet"],
        ),
        (
            state_of("control", "attempt", "verify", back=4),
            "degraded",
            ["the ledger has answered for only 4 s, and no worker for repair has reported yet"],
        ),
        (state_of(back=4, sweep_age=None), "degraded",
         ["the ledger has answered for only 4 s, and no worker has reported yet"]),
        (state_of("control", "attempt", "verify", "repair", back=4), "ok", []),
        (state_of(back=31), "down", ["no worker has reported for 30 s: start workers"]),
        (
            state_of("control", "attempt", "verify", back=31),
            "degraded",
            ["no worker serves repair"],
        ),
    ],
)  # fmt: skip
def test_the_headline_says_no_more_than_is_known_after_the_ledger_was_away(
    now: CurrentState, state: str, reasons: list[str]
) -> None:
    shown = health_of(now)
    assert (shown.state, list(shown.reasons)) == (state, reasons)


def test_a_ledger_that_was_away_is_back_since_the_last_call_that_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis knows that it was started, and a process that its calls waited for a frozen one."""
    server = RedisServer(tmp_path / "r")
    server.start()
    try:
        context = open_context(Settings(broker_url=server.url, home=tmp_path))
        assert context.ledger.answering_for() < STALE
        shown = overview(context.services, context.app)
        assert (shown.health.state, shown.health.settling) == ("degraded", True)
        assert "0 workers so far" in client_of(context).get("/").text
        context.close()
    finally:
        server.kill()
    monkeypatch.setattr(RedisCalls, "run", lambda *_, **__: {"uptime_in_seconds": 9e9})
    assert context.ledger.answering_for() > STALE
    waits = context.ledger.calls.waits
    call = waits.begin()
    waits.blocked(call, "cannot reach the ledger")
    waits.end(call)
    assert context.ledger.answering_for() < STALE


# -- access ----------------------------------------------------------------------------------------


@pytest.fixture
def shared(context: ConsoleContext) -> ConsoleContext:
    """Jobs of two tenants; a queue, two task types and a provider paused; an open breaker."""
    run_jobs(
        context,
        scripted(WRONG_TYPE, GOOD, task_type="acmes", labels={"tenant": "acme"}),
        scripted(GOOD, task_type="rivals", labels={"tenant": "rival"}),
    )
    Fold(context.ledger).run()
    open_breaker(context.ledger, "rival-ai")
    for what in ("queue:verify", "task_type:acmes", "task_type:rivals", "provider:rival-ai"):
        context.ledger.pause(what)
    return context


def test_a_tenant_sees_pauses_of_queues_and_of_its_own_task_types(shared: ConsoleContext) -> None:
    acme = client_of(shared, new_token(shared, role="ops", tenant="acme"))
    assert acme.get("/api/pauses").json()["paused"] == ["queue:verify", "task_type:acmes"]
    assert acme.get("/api/providers").json() == {"providers": []}
    for path in ("/", "/failures", "/operations"):
        text = acme.get(path, headers={"Accept": "text/html"}).text
        assert "rival" not in text, path
    shown = overview(shared.services, shared.app, tenant="acme", bound=True)
    assert shown.paused == ("queue:verify", "task_type:acmes")
    assert [need.kind for need in shown.needs_attention if need.kind == "breaker"] == []


def test_an_unbound_caller_sees_all_pauses_with_one_tenant_chosen(
    shared: ConsoleContext,
) -> None:
    ops = client_of(shared, new_token(shared, role="ops"))
    assert len(ops.get("/api/pauses").json()["paused"]) == 4
    rows = ops.get("/api/providers").json()["providers"]
    assert [row["provider"] for row in rows if row["state"] == "open"] == ["rival-ai"]
    shown = overview(shared.services, shared.app, tenant="acme")
    assert (len(shown.paused), shown.health.breakers_open) == (4, 1)


def test_the_retry_latency_is_the_tenant_s_own(shared: ConsoleContext) -> None:
    assert overview(shared.services, shared.app, tenant="acme").speed.retry_p50_ms is not None
    assert overview(shared.services, shared.app, tenant="rival").speed.retry_p50_ms is None
    assert overview(shared.services, shared.app).speed.retry_p50_ms is not None


def test_a_pause_is_offered_only_to_callers_who_may_set_it(shared: ConsoleContext) -> None:
    html = {"Accept": "text/html"}
    acme = client_of(shared, new_token(shared, role="ops", tenant="acme"))
    ops = client_of(shared, new_token(shared, role="ops"))
    for path in ("/", "/operations"):
        assert "/api/pauses/" not in acme.get(path, headers=html).text
        assert "/api/pauses/" in ops.get(path, headers=html).text


def test_the_page_can_pause_providers_and_task_types_without_failures(
    settings: SettingsMaker,
) -> None:
    runners = {"small": {"kind": "openai", "base_url": "http://models.example/v1", "model": "m"},
               "odd": {"kind": "unknown"}}  # fmt: skip
    context = open_context(settings(allow_inline=True, runners=runners))
    run_jobs(context, scripted(GOOD, task_type="never_failed"))
    Fold(context.ledger).run()
    html = {"Accept": "text/html"}
    text = client_of(context).get("/operations", headers=html).text
    assert 'data-call="/api/pauses/provider%3Amodels.example"' in text
    assert 'data-call="/api/pauses/task_type%3Anever_failed"' in text
    assert 'id="pause-form"' in text
    acme = client_of(context, new_token(context, role="ops", tenant="acme"))
    bound = acme.get("/operations", headers=html).text
    for hidden in ("models.example", "never_failed", 'id="pause-form"'):
        assert hidden not in bound
    context.close()


def test_an_unreachable_broker_is_reported_beside_the_figures(context: ConsoleContext) -> None:
    """Given a ledger that answers and a broker that does not."""
    app = create_app(context.settings.model_copy(update={"broker_url": "redis://127.0.0.1:1/0"}))
    beat(context, "attempt", "attempt", slots=2)
    shown = overview(context.services, app)
    assert shown.health.state == "down"
    assert "the broker cannot be reached" in shown.health.reasons
    assert shown.health.workers == 1


def test_an_open_breaker_shows_how_many_jobs_wait(context: ConsoleContext) -> None:
    scenario = Scenario(context.ledger, context.settings)
    context.ledger.requeue(scenario.claim(scenario.submit()).lease, delay=600, detail="away")
    open_breaker(context.ledger, "openai-eu", retry_after=300)
    for _ in range(2):
        ask(context.ledger, submit_for(context.ledger, "of-openai-eu"), "openai-eu")
    shown = overview(context.services, context.app)
    (need,) = [need for need in shown.needs_attention if need.kind == "breaker"]
    assert need.detail == "waiting before the next probe, 2 jobs waiting, 5 consecutive faults"
    text = client_of(context).get("/operations", headers={"Accept": "text/html"}).text
    assert "openai-eu: failed 5 times in a row, next try at" in text


# -- another release -------------------------------------------------------------------------------


def test_the_page_shows_releases_and_jobs_that_wait_for_a_later_one(
    context: ConsoleContext,
) -> None:
    scenario = Scenario(context.ledger, context.settings)
    beat(context, "attempt")
    html = {"Accept": "text/html"}
    client = client_of(context)
    shown = client.get("/operations", headers=html).text
    assert '<th scope="row">attempt@host</th><td data-name="version">unknown</td>' in shown
    job_id = of_release(scenario, NEXT).submit(labels={"a": "b"})
    scenario.refusal(job_id)
    assert f"for {NEXT_WORKER}" in client.get(f"/jobs/{job_id}", headers=html).text
    document = client.get(f"/api/jobs/{job_id}").json()
    assert (document["waiting_for"], document["needs_schema"]) == ("version", NEXT.number)
    assert document["needs_release"] == "9.1.0"
    live = client.get("/", headers=html)
    assert (live.status_code, f"waiting for {NEXT_WORKER}" in live.text) == (200, True)
    assert "for a worker of a later version" in client.get("/jobs", headers=html).text


def test_the_live_list_says_which_provider_a_job_waits_for(context: ConsoleContext) -> None:
    fail_call(context.ledger, start_call(context.ledger, "openai-eu"), status=429, retry_after=60)
    page = client_of(context).get("/", headers={"Accept": "text/html"}).text
    assert "waiting for provider openai-eu" in page


@pytest.mark.parametrize("body", ["{", '{"task_type": 5}'])
def test_a_job_that_cannot_be_read_has_a_page_and_hides_no_other(
    context: ConsoleContext, body: str
) -> None:
    scenario = Scenario(context.ledger, context.settings)
    job_id, other = scenario.submit(name="damaged"), scenario.submit()
    row = keys.job(keys.partition_prefix("mulligan", "p00"), job_id)
    context.ledger.calls.run("HSET", row, "body", body)
    html = {"Accept": "text/html"}
    client = client_of(context)
    page = client.get(f"/jobs/{job_id}", headers=html)
    assert page.status_code == 200
    assert "This release cannot read all of this job" in page.text
    document = client.get(f"/api/jobs/{job_id}").json()
    assert document["unreadable"].startswith("Job")
    listed = client.get("/jobs", headers=html).text
    assert job_id in listed
    assert other in listed
    assert view_of(document).job.label == "damaged"


# -- failures --------------------------------------------------------------------------------------


def add_failures(context: ConsoleContext, *, signatures: int) -> None:
    """Write the events of failed attempts, each with a different signature."""
    stream = keys.partition_prefix(context.settings.key_prefix, "p00") + "events"
    for number in range(signatures):
        data = {"type": "attempt", "state": "settled", "job": f"p00-x{number}", "attempt": 1,
                "mode": "initial", "kind": "unknown", "signature": f"v1:{number:03d}",
                "task_type": "t", "tenant": "acme", "next": "retry"}  # fmt: skip
        context.ledger.calls.run("XADD", stream, "*", "data", json.dumps(data))
    Fold(context.ledger).run()


def failures_on(context: ConsoleContext, path: str) -> tuple[int, str]:
    text = client_of(context).get(path, headers={"Accept": "text/html"}).text
    return len(set(re.findall(r'href="/failures/v1%3A(\d+)', text))), text


def test_the_overview_links_to_the_failures_it_omits(context: ConsoleContext) -> None:
    add_failures(context, signatures=8)
    count, text = failures_on(context, "/")
    assert count == 8
    assert "All failures" not in text
    add_failures(context, signatures=9)
    count, text = failures_on(context, "/?tenant=acme")
    assert count == 8
    assert 'href="/failures?window=1h&amp;tenant=acme">All failures</a>' in text


def test_the_failures_page_lists_a_hundred_and_mentions_more(
    context: ConsoleContext,
) -> None:
    add_failures(context, signatures=60)
    before = context.ledger.round_trips
    count, text = failures_on(context, "/failures")
    few = context.ledger.round_trips - before
    assert count == 60
    assert "most frequent are listed" not in text
    add_failures(context, signatures=101)
    before = context.ledger.round_trips
    count, text = failures_on(context, "/failures")
    assert count == 100
    assert "Only the 100 most frequent are listed" in text
    assert context.ledger.round_trips - before <= few + 2


# -- money -----------------------------------------------------------------------------------------

USED = {"text": GOOD, "usage": {"prompt_tokens": 900, "completion_tokens": 100}}
PRICE = {"prompt": 1.0, "completion": 1.0}


@pytest.mark.parametrize(
    ("prices", "answers", "expected"),
    [
        ({}, [USED], "– <small>no prices set</small>"),
        ({}, [], "– <small>no prices set</small>"),
        ({"scripted": PRICE}, [GOOD], "– <small>usage unknown</small>"),
        ({"other": PRICE}, [USED], "– <small>no price for these tokens</small>"),
        ({"scripted": PRICE}, [], "0.00 <small>/h</small>"),
        ({"scripted": PRICE}, [USED], "0.00"),  # a thousandth per hour, or more
    ],
)
def test_unknown_costs_say_why(
    settings: SettingsMaker, prices: dict[str, Any], answers: list[Any], expected: str
) -> None:
    context = open_context(settings(allow_inline=True, prices=prices))
    run_jobs(context, *(scripted(answer) for answer in answers))
    Fold(context.ledger).run()
    text = client_of(context).get("/", headers={"Accept": "text/html"}).text
    assert f"<dt>money</dt><dd>{expected}" in text
    usage = "usage unknown" if answers == [GOOD] else f"of {1000 * len(answers):,} tokens"
    assert f"<small>{usage}</small>" in text
    context.close()
