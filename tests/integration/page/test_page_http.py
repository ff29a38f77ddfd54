"""The page without a browser: content, access and cost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient
from support.console_server import client_of, new_token
from support.jobs import make_job
from support.ledger_scenario import Scenario, SettingsMaker
from support.settlements import escalates, retries_immediately, succeeds

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.policies import (
    FailureKind,
    FailureRecord,
    Finding,
    RepairInstruction,
    Verdict,
    VerificationResult,
    VerificationStatus,
)
from mulligan.policies.jobs.job import Output
from mulligan.tasks.ports.ledger import ClaimRefused, Submission
from mulligan.workers.ledger.stored import job_ids

HTML = {"Accept": "text/html"}
PATHS = (
    "/",
    "/jobs",
    "/loops",
    "/failures",
    "/cycles",
    "/escalations",
    "/operations",
    "/runbook",
    "/login",
)
SECRET = "<b>a secret</b>"


@pytest.fixture
def context(settings: SettingsMaker) -> Iterator[ConsoleContext]:
    opened = open_context(settings(allow_inline=True))
    yield opened
    opened.close()


@pytest.fixture
def scenario(context: ConsoleContext) -> Scenario:
    return Scenario(context.ledger, context.settings)


def repaired(scenario: Scenario, **fields: Any) -> str:
    """Return a repaired job of a tenant, with recognisable texts."""
    job_id = scenario.submit(prompt=SECRET, labels={"tenant": "acme"}, **fields)
    first = scenario.claim(job_id)
    stored = scenario.ledger.store_output(first.lease, Output(text=f"first {SECRET}"))
    assert not isinstance(stored, ClaimRefused)
    finding = Finding(message=SECRET, path="$.age", code="type")
    verdict = Verdict(
        score=40.0,
        failure=FailureRecord(
            kind=FailureKind.SCHEMA_INVALID,
            classification_signature="v1:abcd",
            coarse_signature="v1:abc",
            message=f"quotes {SECRET}",
            source="verify",
            findings=(finding,),
        ),
        instruction=RepairInstruction(
            action="fix_type", prompt_suffix=SECRET, minimal_next_step=SECRET
        ),
        results=(
            VerificationResult(
                status=VerificationStatus.FAIL,
                verifier_id="contract.schema",
                summary=SECRET,
                errors=(finding, finding),
            ),
        ),
    )
    scenario.settle(first, retries_immediately(first, verdict=verdict))
    second = scenario.claim(job_id, 2)
    scenario.ledger.store_output(second.lease, Output(text=SECRET))
    scenario.settle(second, succeeds(second))
    return job_id


def page(client: TestClient, path: str, **headers: str) -> str:
    response = client.get(path, headers={**HTML, **headers})
    assert response.status_code == 200, (path, response.text)
    assert "script-src 'self'; style-src 'self'" in response.headers["content-security-policy"]
    return response.text


class _Inline(HTMLParser):
    """Finds everything that a strict content security policy refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        if "style" in names or tag == "style" or (tag == "script" and "src" not in names):
            self.found.append(tag)
        self.found += [name for name in names if name.startswith("on")]
        sources = [names.get("src"), names.get("href") if tag == "link" else None]
        self.found += [source for source in sources if source and not source.startswith("/")]


def test_no_page_has_inline_code_or_external_sources(
    context: ConsoleContext, scenario: Scenario
) -> None:
    job_id = repaired(scenario)
    failed = scenario.submit()
    claim = scenario.claim(failed)
    scenario.settle(claim, escalates(claim))
    group = context.ledger.groups()[0].signature
    client = client_of(context)
    for path in (*PATHS, f"/jobs/{job_id}", f"/jobs/{failed}", f"/escalations/{group}"):
        parser = _Inline()
        parser.feed(page(client, path))
        assert parser.found == [], path


def test_texts_are_escaped_and_redacted_without_access(
    context: ConsoleContext, scenario: Scenario
) -> None:
    job_id = repaired(scenario)
    read = page(client_of(context), f"/jobs/{job_id}")
    assert SECRET not in read
    assert "&lt;b&gt;a secret&lt;/b&gt;" in read
    ops = client_of(context, new_token(context, role="ops"))
    for path in (f"/jobs/{job_id}", "/", "/jobs", "/cycles"):
        assert "a secret" not in page(ops, path), path
    assert "$.age" in page(ops, f"/jobs/{job_id}")
    assert ops.get(f"/jobs/{job_id}/job.yaml").status_code == 403
    reader = client_of(context, new_token(context, role="ops", texts=True))
    assert "a secret" in page(reader, f"/jobs/{job_id}")


def test_a_tenant_sees_only_its_own_jobs(context: ConsoleContext, scenario: Scenario) -> None:
    job_id = repaired(scenario, name="of-acme")
    acme = client_of(context, new_token(context, role="ops", tenant="acme"))
    other = client_of(context, new_token(context, role="ops", tenant="globex"))
    assert "of-acme" in page(acme, "/jobs")
    assert job_id in page(acme, "/cycles")
    for path in ("/", "/jobs", "/cycles"):
        text = page(other, path)
        assert job_id not in text
        assert "of-acme" not in text
    assert other.get(f"/jobs/{job_id}", headers=HTML).status_code == 404


def test_a_tenant_s_live_list_reaches_back_past_other_tenants_events(
    context: ConsoleContext, scenario: Scenario
) -> None:
    scenario.submit(name="of-beta", labels={"tenant": "beta"})
    others = [make_job(name=f"job-{n}", labels={"tenant": "zeta"}) for n in range(600)]
    context.ledger.accept([Submission(id=job_ids.job_id(partitions=1), job=job) for job in others])
    client = client_of(context)
    assert "of-beta" not in page(client, "/")
    text = page(client, "/?tenant=beta")
    assert re.findall(r'class="who">([^<]+)<', text) == ["of-beta"]
    assert 'data-tenant="beta"' in text
    nothing = page(client, "/?tenant=unknown%26co")
    assert "No event of unknown&amp;co is among the last" in nothing
    assert 'href="/jobs?label=tenant%3Aunknown%26co"' in nothing


def test_an_empty_window_names_the_tenant(context: ConsoleContext) -> None:
    client = client_of(context)
    assert "mulligan init" in page(client, "/")
    chosen = page(client, "/?tenant=beta&window=24h")
    assert "beta had no jobs in the last 24h" in chosen
    assert "mulligan init" not in chosen


def test_the_chosen_tenant_is_kept_in_links_to_its_escalations(
    context: ConsoleContext, scenario: Scenario
) -> None:
    for tenant in ("beta", "beta", "zeta"):
        claim = scenario.claim(scenario.submit(labels={"tenant": tenant}))
        scenario.settle(claim, escalates(claim))
    client = client_of(context)
    group = quote(context.ledger.groups()[0].signature, safe="")
    address = f"/escalations/{group}?tenant=beta"
    for path in ("/?tenant=beta", "/escalations?tenant=beta"):
        assert f'href="{address}"' in page(client, path), path
    text = page(client, address)
    assert set(re.findall(r'data-group-tenant="([^"]*)"', text)) == {"beta"}
    assert "beta only" in text
    assert "zeta" not in text
    assert '?show=all&amp;tenant=beta"' in text
    assert set(
        re.findall(r'data-group-tenant="([^"]*)"', page(client, f"/escalations/{group}"))
    ) == {""}


@pytest.mark.parametrize("url", [None, "https://flower.example/"])
def test_pages_link_to_flower_only_if_its_address_is_known(
    settings: SettingsMaker, url: str | None
) -> None:
    context = open_context(settings(flower_url=url))
    text = page(client_of(context), "/")
    context.close()
    assert ('href="https://flower.example"' in text) is (url is not None)
    assert (">Flower<" in text) is (url is not None)


@pytest.mark.parametrize(
    ("task", "anchor"),
    [("-2", "#attempt-2"), ("-1-v0", "#attempt-1"), ("-1-c1", "#attempt-1"), ("-done", "")],
)
def test_a_flower_task_id_redirects_to_its_attempt(
    context: ConsoleContext, scenario: Scenario, task: str, anchor: str
) -> None:
    job_id = repaired(scenario)
    client = client_of(context)
    for path in (f"/jobs/{job_id}{task}", f"/jobs?name={job_id}{task}"):
        response = client.get(path, headers=HTML)
        assert response.headers["location"] == f"/jobs/{job_id}{anchor}", path
    assert not anchor or f'id="{anchor[1:]}"' in page(client, f"/jobs/{job_id}")


def test_the_id_of_a_user_s_task_redirects_to_its_job(context: ConsoleContext) -> None:
    root = "0b9e6fc1-8a59-4a5d-9a34-0c6b1d8b8f11"
    job_id = job_ids.user_task_job_id(root, partitions=1)
    job = make_job(labels={"tenant": "acme"})
    context.ledger.accept([Submission(id=job_id, job=job)])
    client = client_of(context)
    for task, anchor in ((root, ""), (f"{root}-2", "#attempt-2")):
        response = client.get(f"/jobs/{task}", headers=HTML)
        assert response.headers["location"] == f"/jobs/{job_id}{anchor}"
    other = client_of(context, new_token(context, role="producer", tenant="globex"))
    assert other.get(f"/jobs/{root}", headers=HTML).status_code == 404


def test_jobs_are_found_by_a_prefix_of_their_name(
    context: ConsoleContext, scenario: Scenario
) -> None:
    for name in ("invoice-1", "invoice-2", "person"):
        scenario.submit(name=name)
    client = client_of(context)
    assert re.findall(r'id="job-[^>]+>([^<]+)<', page(client, "/jobs?name=invoice")) == [
        "invoice-2",
        "invoice-1",
    ]
    assert "No jobs match" in page(client, "/jobs?name=voice")


def test_a_producer_sees_only_links_it_may_open(context: ConsoleContext) -> None:
    producer = client_of(context, new_token(context, role="producer"))
    text = page(producer, "/")
    assert 'href="/jobs"' in text
    assert 'href="/operations"' not in text
    refused = producer.get("/operations", headers=HTML)
    assert refused.status_code == 403
    assert "this needs the role ops" in refused.text.lower()


def test_an_error_page_keeps_the_navigation_of_a_known_caller(context: ConsoleContext) -> None:
    new_token(context, role="admin")
    producer = client_of(context, new_token(context, role="producer"))
    for path, status in (("/jobs/p00-gone", 404), ("/nowhere", 404), ("/operations", 403),
                         ("/jobs?state=odd", 422)):  # fmt: skip
        response = producer.get(path, headers=HTML)
        assert response.status_code == status
        assert '<nav aria-label="Pages">' in response.text, path
    anonymous = client_of(context).get("/nowhere", headers=HTML)
    assert anonymous.status_code == 404
    assert "<nav" not in anonymous.text


@pytest.mark.parametrize(
    ("token", "offered"),
    [
        ({"role": "ops"}, True),
        ({"role": "ops", "tenant": "acme"}, False),
        ({"role": "producer"}, False),
    ],
)
def test_metrics_are_linked_only_for_callers_who_may_read_them(
    context: ConsoleContext, token: dict[str, Any], offered: bool
) -> None:
    client = client_of(context, new_token(context, **token))
    assert ('href="/metrics"' in page(client, "/")) is offered
    assert (client.get("/metrics").status_code == 200) is offered


def test_without_a_session_every_page_redirects_to_the_login(context: ConsoleContext) -> None:
    new_token(context, role="ops")
    anonymous = client_of(context)
    for path in set(PATHS) - {"/login"}:
        response = anonymous.get(path, headers=HTML)
        query = "" if path == "/" else f"?next={quote(path, safe='')}"
        assert (response.status_code, response.headers["location"]) == (303, f"/login{query}")


def test_a_wrong_token_keeps_the_requested_page(context: ConsoleContext) -> None:
    new_token(context, role="ops")
    form = {"token": "mul_wrong", "next": "/jobs?state=escalated"}
    again = client_of(context).post("/login", data=form, headers=HTML)
    assert again.status_code == 403
    assert 'value="/jobs?state=escalated"' in again.text


def test_a_fragment_is_the_page_without_its_layout(context: ConsoleContext) -> None:
    client = client_of(context)
    for path in set(PATHS) - {"/login"}:
        whole, part = page(client, path), page(client, path, **{"X-Fragment": "1"})
        assert "<html" in whole
        assert "<html" not in part
        assert "<h1" in part or path in ("/jobs", "/loops")


def test_static_files_are_cached_by_version(
    context: ConsoleContext,
) -> None:
    client = client_of(context)
    addresses = re.findall(r'"(/static/[^"]+)"', page(client, "/"))
    assert len(addresses) == 3
    for address in addresses:
        response = client.get(address)
        assert response.status_code == 200
        assert "immutable" in response.headers["cache-control"]
        assert client.get(address.partition("?")[0]).headers["cache-control"] == "no-cache"
    assert client.get("/static/../routes.py").status_code == 404


def test_pages_take_as_many_round_trips_for_any_number_of_jobs(context: ConsoleContext) -> None:
    client = client_of(context)

    def cost(path: str) -> int:
        before = context.ledger.round_trips
        page(client, path)
        return context.ledger.round_trips - before

    def add(count: int) -> None:
        jobs = [make_job(name=f"job-{n}") for n in range(count)]
        context.ledger.accept(
            [Submission(id=job_ids.job_id(partitions=1), job=job) for job in jobs]
        )

    add(5)
    paths = ("/", "/jobs", "/failures", "/cycles", "/operations", "/escalations")
    for path in paths:
        page(client, path)  # scripts are loaded once
    few = [cost(path) for path in paths]
    add(1000)
    many = [cost(path) for path in paths]
    # Caches that last seconds (settings, tokens) may expire in between: one or two more.
    assert all(now <= before + 2 for before, now in zip(few, many, strict=True)), (few, many)
