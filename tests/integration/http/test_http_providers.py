"""What people see of providers and of waiting work: the API, the page, metrics and commands."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.cli_process import invoke
from support.console_server import client_of, get_json, new_token
from support.ledger_scenario import SettingsMaker
from support.provider_calls import ask, fail_call, open_breaker, start_call, submit_for

from mulligan.console.cli.doctor_checks import check_parked
from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.policies.jobs.job import Output, Usage
from mulligan.tasks.ports.ledger import ClaimRefused

PROVIDER = "models.example"
HTML = {"Accept": "text/html"}


@pytest.fixture
def context(settings: SettingsMaker) -> ConsoleContext:
    """A provider that is configured for two calls at once."""
    profile = {"kind": "openai", "base_url": f"http://{PROVIDER}/v1", "model": "m"}
    return open_context(settings(runners={f"of-{PROVIDER}": {**profile, "concurrency": 2}}))


def wait_for_provider(context: ConsoleContext) -> str:
    """Start the two calls that are allowed, and return a third job, which waits."""
    start_call(context.ledger, PROVIDER)
    start_call(context.ledger, PROVIDER)
    job_id = submit_for(context.ledger, f"of-{PROVIDER}")
    assert isinstance(ask(context.ledger, job_id, PROVIDER), ClaimRefused)
    return job_id


def provider_row(context: ConsoleContext) -> dict[str, Any]:
    (row,) = get_json(client_of(context), "/api/providers")["providers"]
    return dict(row)


def test_a_configured_provider_is_listed_before_its_first_call(context: ConsoleContext) -> None:
    row = provider_row(context)
    assert (row["provider"], row["state"], row["ceiling"]) == (PROVIDER, "closed", 2)
    assert (row["limit"], row["in_flight"], row["parked"], row["until"]) == (None, 0, 0, None)


def test_a_busy_provider_shows_its_limit_and_what_waits(context: ConsoleContext) -> None:
    wait_for_provider(context)
    row = provider_row(context)
    assert (row["limit"], row["in_flight"], row["parked"]) == (2, 2, 1)
    assert row["text"] == "2 calls at once are running"
    assert row["oldest_seconds"] >= 0
    (parked,) = get_json(client_of(context), "/api/queues")["parked"]
    assert (parked["reason"], parked["entries"]) == (f"provider:{PROVIDER}", 1)


def test_a_refusal_shows_until_when_the_provider_asked_to_wait(context: ConsoleContext) -> None:
    fail_call(context.ledger, start_call(context.ledger, PROVIDER), status=429, retry_after=30)
    row = provider_row(context)
    assert row["state"] == "limited"
    assert row["text"].startswith("paused by the provider until ")
    assert row["until"] > context.ledger.now()
    assert (row["last_fault"], row["faults"]) == ("answered 429", 0)
    assert row["last_fault_at"] <= context.ledger.now()


def test_an_open_breaker_is_listed(context: ConsoleContext) -> None:
    open_breaker(context.ledger, "other.example", retry_after=300)
    _, row = get_json(client_of(context), "/api/providers")["providers"]
    assert (row["state"], row["faults"], row["last_fault"]) == ("open", 5, "answered 503")
    assert row["text"].startswith("failed 5 times in a row, next try at ")


def test_a_provider_without_credits_is_shown_as_such(context: ConsoleContext) -> None:
    call = start_call(context.ledger, PROVIDER)
    fail_call(context.ledger, call, status=402)
    row = provider_row(context)
    assert (row["state"], row["limit"]) == ("out_of_credits", 1)
    assert row["text"].startswith("out of credits, next try at ")
    assert row["last_fault"] == "answered 402: out of credits"
    browser = client_of(context)
    assert get_json(browser, f"/api/jobs/{call.job_id}")["waiting_for"] == "credits"
    assert "out of credits" in browser.get("/operations", headers=HTML).text
    assert f"provider {PROVIDER}: out of credits" in browser.get("/", headers=HTML).text
    assert f'mulligan_breaker_state{{provider="{PROVIDER}"}} 3.0' in browser.get("/metrics").text
    (warning,) = check_parked(context.services)
    assert f"mulligan queue resume provider:{PROVIDER}" in str(warning.fix)


def test_tokens_a_minute_are_shown(settings: SettingsMaker) -> None:
    profile = {"kind": "openai", "base_url": f"http://{PROVIDER}/v1", "model": "m"}
    limited = {**profile, "tokens_per_minute": 1000}
    context = open_context(settings(runners={f"of-{PROVIDER}": limited}))
    assert provider_row(context)["tokens_per_minute"] == 1000
    call = start_call(context.ledger, PROVIDER)
    context.ledger.store_output(call.lease, Output(text="x", usage=Usage(total_tokens=990)))
    assert isinstance(
        ask(context.ledger, submit_for(context.ledger, f"of-{PROVIDER}"), PROVIDER), ClaimRefused
    )
    row = provider_row(context)
    assert (row["tokens_used"], row["tokens_per_minute"], row["parked"]) == (990, 1000, 1)
    assert row["text"] == "990 of 1,000 tokens a minute are used"
    page = client_of(context).get("/operations", headers=HTML).text
    assert "990 of 1,000 tokens a minute" in page
    env = {
        "MULLIGAN_BROKER_URL": context.settings.broker_url or "",
        "MULLIGAN_RUNNERS": json.dumps(context.settings.runners),
        "COLUMNS": "200",
    }
    printed = invoke("providers", env=env).output
    assert "tokens a minute" in printed
    assert "990 of 1,000" in printed


def test_sessions_of_programs_that_share_an_account_are_limited(settings: SettingsMaker) -> None:
    agent = {"kind": "command", "argv": ["agent"], "provider": "account"}
    profiles = {"coder": {**agent, "concurrency": 2}, "reviewer": agent}
    ledger = open_context(settings(runners=profiles)).ledger
    claims = [
        ask(ledger, submit_for(ledger, profile), "account")
        for profile in ("coder", "reviewer", "reviewer")
    ]
    assert claims[2] == ClaimRefused("provider_busy", "provider:account")
    assert ledger.breakers.all()["account"].in_flight == 2


def test_a_person_s_pause_is_told_from_the_provider_s(context: ConsoleContext) -> None:
    context.ledger.pause(f"provider:{PROVIDER}")
    row = provider_row(context)
    assert (row["paused"], row["text"]) == (True, "paused by a person")


def test_a_job_of_a_paused_provider_is_promised_no_next_try(context: ConsoleContext) -> None:
    """Given a job that waited for an open breaker before a person paused its provider."""
    other = "other.example"
    open_breaker(context.ledger, other, retry_after=300)
    job_id = submit_for(context.ledger, f"of-{other}")
    assert isinstance(ask(context.ledger, job_id, other), ClaimRefused)
    browser = client_of(context)
    assert "next try at" in browser.get(f"/jobs/{job_id}", headers=HTML).text
    context.ledger.pause(f"provider:{other}")
    text = browser.get(f"/jobs/{job_id}", headers=HTML).text
    assert f"provider {other}" in text
    assert "next try at" not in text


def test_a_waiting_job_says_what_it_waits_for(context: ConsoleContext) -> None:
    job_id = wait_for_provider(context)
    client = client_of(context)
    document = get_json(client, f"/api/jobs/{job_id}")
    assert (document["state"], document["waiting_for"]) == ("waiting", "provider")
    assert document["waiting_behind"] == f"provider:{PROVIDER}"
    (listed,) = get_json(client, "/api/jobs", state="waiting")["jobs"]
    assert listed["waiting_behind"] == f"provider:{PROVIDER}"
    page = client.get(f"/jobs/{job_id}", headers=HTML).text
    assert f"for {PROVIDER}: 2 calls at once are running" in page
    assert f"for provider {PROVIDER}" in client.get("/jobs", headers=HTML).text


def test_the_page_shows_providers_and_parked_work(context: ConsoleContext) -> None:
    wait_for_provider(context)
    page = client_of(context).get("/operations", headers=HTML).text
    assert "2 calls at once are running" in page
    assert f"{PROVIDER}: 2 calls at once are running" in page
    assert "Waiting outside the queues" in page


def test_a_tenant_sees_no_provider_and_only_its_own_quota(context: ConsoleContext) -> None:
    job_id = wait_for_provider(context)
    acme = client_of(context, new_token(context, role="ops", tenant="acme"))
    assert get_json(acme, "/api/providers")["providers"] == []
    assert get_json(acme, "/api/queues")["parked"] == []
    assert "calls at once" not in acme.get("/operations", headers=HTML).text
    assert acme.get(f"/api/jobs/{job_id}").status_code == 404


def test_metrics_have_limits_running_calls_and_parked_entries(context: ConsoleContext) -> None:
    wait_for_provider(context)
    text = client_of(context).get("/metrics").text
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["mulligan_provider_limit", PROVIDER] == 2
    assert found["mulligan_provider_in_flight", PROVIDER] == 2
    assert found["mulligan_breaker_state", PROVIDER] == 0
    assert found["mulligan_parked", f"provider:{PROVIDER}"] == 1
    assert found["mulligan_parked_oldest_seconds", f"provider:{PROVIDER}"] >= 0


def test_parked_work_of_all_tenants_is_one_metric(settings: SettingsMaker) -> None:
    context = open_context(settings(quotas={"*": {"concurrency": 1}}))
    for tenant in ("acme", "globex"):
        start_call(context.ledger, PROVIDER, labels={"tenant": tenant})
        waiting = submit_for(context.ledger, f"of-{PROVIDER}", labels={"tenant": tenant})
        assert isinstance(ask(context.ledger, waiting, PROVIDER), ClaimRefused)
    text = client_of(context).get("/metrics").text
    assert 'mulligan_parked{reason="quota"} 2.0' in text
    assert "acme" not in text
    parked = {each.reason: each.count for each in context.ledger.parked()}
    assert parked == {"quota:acme": 1, "quota:globex": 1}
    acme = client_of(context, new_token(context, role="ops", tenant="acme"))
    assert [row["reason"] for row in get_json(acme, "/api/queues")["parked"]] == ["quota:acme"]


def test_doctor_names_what_is_stuck_and_the_command_that_frees_it(context: ConsoleContext) -> None:
    wait_for_provider(context)
    assert list(check_parked(context.services)) == [], "a limit that is reached is no problem"
    context.ledger.pause(f"provider:{PROVIDER}")
    (check,) = check_parked(context.services)
    assert (check.status, check.fix) == ("warn", f"`mulligan queue resume provider:{PROVIDER}`")
    assert check.said.startswith("1 entry waits (longest ")
    context.ledger.resume(f"provider:{PROVIDER}")
    open_breaker(context.ledger, "openai-eu", retry_after=300)
    ask(context.ledger, submit_for(context.ledger, "of-openai-eu"), "openai-eu")
    said = [(check.said, check.fix) for check in check_parked(context.services)]
    assert any("openai-eu: failed 5 times" in text for text, _ in said), said
    assert any(fix.startswith("`mulligan queue resume provider:openai-eu`") for _, fix in said)


def test_the_commands_print_what_the_api_says(context: ConsoleContext) -> None:
    job_id = wait_for_provider(context)
    env = {
        "MULLIGAN_BROKER_URL": context.settings.broker_url or "",
        "MULLIGAN_RUNNERS": json.dumps(context.settings.runners),
        "COLUMNS": "200",
    }

    def run(*argv: str) -> str:
        return invoke(*argv, env=env).output

    (row,) = json.loads(run("providers", "--json"))["providers"]
    expected = provider_row(context)
    assert {**row, "oldest_seconds": 0} == {**expected, "oldest_seconds": 0}
    assert "2 (configured)" in run("providers")
    listed = run("queue", "list")
    assert "1 entry waits (longest " in listed
    assert f") for {PROVIDER}: 2 calls at once are running" in listed
    (parked,) = json.loads(run("queue", "list", "--json"))["parked"]
    assert (parked["reason"], parked["entries"]) == (f"provider:{PROVIDER}", 1)
    assert f"waiting for {PROVIDER}: 2 calls at once are running" in run("jobs", "show", job_id)
    assert f"provider {PROVIDER}" in run("jobs", "list", "--state", "waiting")
