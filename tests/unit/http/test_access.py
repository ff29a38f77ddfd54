"""Access rules that need no server: origins, rate limits, tenants and redaction."""

from __future__ import annotations

import pytest
from support.jobs import make_job

from mulligan.console.cli.console_url import url_of
from mulligan.console.http.access import Caller, cross_site, origin_of
from mulligan.console.http.login_redirect import local_path
from mulligan.console.http.models.job_models import REDACTED, redacted
from mulligan.console.http.rate_limit import RateLimit
from mulligan.policies.cycles.cycle import SelfRepairCycle
from mulligan.policies.failures.failure import (
    FailureKind,
    FailureRecord,
    Finding,
    VerificationResult,
    VerificationStatus,
)
from mulligan.policies.jobs.job import AttemptPlan, Output
from mulligan.policies.repair.instruction import RepairInstruction
from mulligan.policies.repair.verdict import Verdict
from mulligan.tasks.ports.ledger import AttemptView, JobView


@pytest.mark.parametrize(
    ("method", "headers", "foreign"),
    [
        ("POST", {"host": "localhost:8700"}, False),  # curl
        ("POST", {"host": "h", "sec-fetch-site": "same-origin", "origin": "http://h"}, False),
        ("POST", {"host": "h", "sec-fetch-site": "none"}, False),  # typed into the address bar
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
        ),  # without TLS
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
    console_origin = origin_of(console_url)
    assert cross_site("POST", "/api/jobs", headers, console_origin=console_origin) is foreign


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
    assert local_path(requested) == next_


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
    finding = Finding(message=secret, path="$.age", code="type", expected=1, actual=secret)
    failure = FailureRecord(
        kind=FailureKind.SCHEMA_INVALID, classification_signature="v1:y", coarse_signature="v1:x",
        message=secret, source="verify", findings=(finding,), evidence={"line": secret},
    )  # fmt: skip
    result = VerificationResult(
        status=VerificationStatus.FAIL, verifier_id="v", summary=secret, errors=(finding,),
        evidence={"text": secret}, warnings=(secret,),
    )  # fmt: skip
    instruction = RepairInstruction(
        action="fix_type", prompt_suffix=secret, minimal_next_step=secret
    )
    attempt = AttemptView(
        plan=AttemptPlan(prompt=secret), state="settled", output=Output(text=secret),
        verdict=Verdict(score=40, results=(result,), failure=failure, instruction=instruction),
        queued_at=1.0, started_at=2.0, settled_at=3.0, worker="w", claims=1, faults=1,
        last_fault=secret,
    )  # fmt: skip
    cycle = SelfRepairCycle(
        id="c", job_id="p00-1", source_attempt=1, loop_index=1, created_at=3.0,
        metadata={"prompt": secret, "taskType": "t"},
    )  # fmt: skip
    job = make_job(
        prompt=secret,
        runner={"kind": "scripted", "answers": [secret]},
        verifiers=[{"id": "text.match", "pattern": secret}],
    )
    view = JobView(
        id="p00-1", job=job, state="escalated", waiting_for=None, reason="r", detail=secret,
        created_at=1.0, finished_at=3.0, best_attempt=1, tokens=3, seconds=1.0,
        attempts=(attempt,), cycles=(cycle,),
    )  # fmt: skip
    shown = redacted(view)
    assert secret not in str(shown)
    assert shown.job.system is None
    (shown_attempt,) = shown.attempts
    assert (shown_attempt.score, shown_attempt.plan.prompt) == (40, REDACTED)
    assert shown_attempt.verdict is not None
    assert shown_attempt.verdict.results[0].errors[0].path == "$.age"
    assert shown_attempt.verdict.results[0].evidence == {"text": REDACTED}
    assert shown_attempt.verdict.failure is not None
    assert shown_attempt.verdict.failure.kind is FailureKind.SCHEMA_INVALID
    assert shown_attempt.verdict.failure.coarse_signature == "v1:x"
    assert shown_attempt.verdict.instruction is not None
    assert shown_attempt.verdict.instruction.action == "fix_type"
    assert shown.cycles[0].metadata == {"prompt": REDACTED, "taskType": "t"}
