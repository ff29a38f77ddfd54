"""Access rules that need no server: origins, rate limits, tenants and redaction."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan.console.cli.commands.console import url_of
from mulligan.console.http.access import Caller, cross_site, origin_of
from mulligan.console.http.login_redirect import inside
from mulligan.console.http.models.job_models import REDACTED, redacted
from mulligan.console.http.rate_limit import RateLimit


@pytest.mark.parametrize(
    ("method", "headers", "foreign"),
    [
        ("POST", {"host": "localhost:8700"}, False),  # curl
        ("POST", {"host": "h", "sec-fetch-site": "same-origin", "origin": "http://h"}, False),
        ("POST", {"host": "h", "sec-fetch-site": "none"}, False),  # typed by a person
        ("POST", {"host": "h", "sec-fetch-site": "cross-site"}, True),
        ("DELETE", {"host": "h", "sec-fetch-site": "same-site"}, True),  # a sibling domain
        ("POST", {"host": "h", "origin": "http://evil.example"}, True),
        ("POST", {"host": "h:1", "origin": "http://h:2"}, True),  # another port is another site
        ("POST", {"host": "h", "origin": "null"}, True),
        ("POST", {"host": "h", "origin": "http://[broken"}, True),
        ("GET", {"host": "h", "sec-fetch-site": "cross-site"}, False),  # a link to us
    ],
)
def test_pages_of_other_sites_cannot_change_anything(
    method: str, headers: dict[str, str], foreign: bool
) -> None:
    assert cross_site(method, "/api/jobs", headers) is foreign
    claims = cross_site("GET", "/api/task/next", headers)
    assert claims is (foreign or headers.get("sec-fetch-site") == "cross-site")


@pytest.mark.parametrize(
    ("console_url", "origin", "foreign"),
    [
        ("https://ops.example", "https://ops.example", False),
        ("https://Ops.Example:443/", "https://ops.example", False),
        ("https://ops.example:8443", "https://ops.example:8443", False),
        ("https://[2001:db8::1]:443", "https://[2001:db8::1]", False),
        (
            "https://ops.example",
            "http://ops.example",
            True,
        ),  # without TLS the origin is not trustworthy
        ("https://ops.example", "https://ops.example:8443", True),
        ("https://ops.example", "https://evil.example", True),
        ("https://ops.example", "null", True),
        ("https://ops.example:x", "https://ops.example:x", True),
        (None, "https://ops.example", True),
    ],
)
def test_console_url_is_a_trusted_origin_behind_a_proxy(
    console_url: str | None, origin: str, foreign: bool
) -> None:
    headers = {"host": "127.0.0.1:8700", "sec-fetch-site": "same-origin", "origin": origin}
    ours = origin_of(console_url)
    assert cross_site("POST", "/api/jobs", headers, ours=ours) is foreign


def test_a_bucket_holds_a_minute_of_requests_and_refills() -> None:
    now = [0.0]
    limit = RateLimit(60, clock=lambda: now[0])
    assert [limit.take("a") for _ in range(60)] == [0.0] * 60
    assert limit.take("a") == pytest.approx(1.0)  # 60 a minute: one each second
    assert limit.take("b") == 0.0, "each caller has a separate bucket"
    now[0] = 1.0
    assert limit.take("a") == 0.0
    assert limit.take("a") > 0


def test_the_number_of_buckets_is_limited() -> None:
    limit = RateLimit(1)
    for number in range(20_000):
        limit.take(f"address:{number}")
    assert len(limit._buckets) == 10_000


@pytest.mark.parametrize(
    ("caller", "tenant", "sees"),
    [
        (None, None, True),
        (None, "a", True),
        ("a", "a", True),
        ("a", "b", False),
        ("a", None, False),
    ],
)
def test_a_caller_of_a_tenant_sees_only_that_tenant(
    caller: str | None, tenant: str | None, sees: bool
) -> None:
    assert Caller("x", "ops", caller).sees(tenant) is sees


@pytest.mark.parametrize(
    ("requested", "next_"),
    [
        ("/jobs?state=queued", "/jobs?state=queued"),
        ("", "/"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("/a\r\nSet-Cookie: x=1", "/"),
    ],
)
def test_the_login_redirects_only_to_the_console(requested: str, next_: str) -> None:
    assert inside(requested) == next_


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("0.0.0.0", "http://127.0.0.1:1"),  # noqa: S104
        ("::1", "http://[::1]:1"),
    ],
)
def test_the_printed_url_can_be_opened(host: str, url: str) -> None:
    assert url_of(host, 1) == url


def test_redaction_keeps_codes_and_places_and_drops_texts() -> None:
    secret = "Alice"
    finding = {"message": secret, "path": "$.age", "code": "type", "expected": 1, "actual": secret}
    attempt: dict[str, Any] = {
        "prompt": secret,
        "answer": secret,
        "last_fault": secret,
        "score": 40,
        "results": [
            {"status": "fail", "verifier_id": "v", "summary": secret, "errors": [finding],
             "evidence": {"text": secret}, "warnings": [secret]}
        ],
        "failure": {"kind": "schema_invalid", "message": secret, "findings": [finding],
                    "coarse_signature": "v1:x", "evidence": {"line": secret}},
        "instruction": {"action": "fix_type", "prompt_suffix": secret,
                        "minimal_next_step": secret},
    }  # fmt: skip
    job = {
        "id": "p00-1",
        "job": {
            "task_type": "t",
            "prompt": secret,
            "runner": {"kind": "scripted", "answers": [secret]},
            "verifiers": [{"id": "text.match", "pattern": secret}],
        },
        "detail": secret,
        "system": None,
        "answer": secret,
        "attempts": [attempt],
        "cycles": [{"id": "c", "metadata": {"prompt": secret, "taskType": "t"}}],
    }
    shown = redacted(job)
    assert secret not in str(shown)
    assert shown["system"] is None
    shown_attempt = shown["attempts"][0]
    assert (shown_attempt["score"], shown_attempt["prompt"]) == (40, REDACTED)
    assert shown_attempt["results"][0]["errors"][0]["path"] == "$.age"
    assert shown_attempt["results"][0]["evidence"] == {"text": REDACTED}
    assert shown_attempt["failure"]["kind"] == "schema_invalid"
    assert shown_attempt["failure"]["coarse_signature"] == "v1:x"
    assert shown_attempt["instruction"]["action"] == "fix_type"
    assert shown["cycles"][0]["metadata"] == {"prompt": REDACTED, "taskType": "t"}
