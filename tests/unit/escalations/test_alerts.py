"""Alerts: texts, links, signatures and the time between two tries."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.policies.escalations.alerts import (
    Alert,
    AlertLinks,
    alert_body,
    alert_text,
    delivery_delay,
    hook_name,
    runbook_link,
    sign,
    verify_signature,
)

LINKS = AlertLinks(console="http://127.0.0.1:8700")
GROUP: dict[str, Any] = {
    "signature": "v1:schema_invalid|$.age",
    "reason": "repeated_failure",
    "kind": "schema_invalid",
    "task_types": {"extract": 3},
}
BUDGET: dict[str, Any] = {
    "loop": "alpha",
    "scope": "day",
    "resource": "tokens",
    "percent": 80,
    "used": 8000,
    "limit": 10000,
}
ALARM: dict[str, Any] = {
    "loop": "alpha",
    "step": "notify",
    "severity": 2,
    "signal": "progress",
    "item": "CP-1",
    "since": 1.0,
    "reason": "CP-1: there is no sign of progress for 6 min",
}
HEALED: dict[str, Any] = {
    "loop": "alpha",
    "action": "change_strategy",
    "outcome": "pending",
    "item": "CP-1",
    "reason": "the same error 3 times",
}


def alert(event: str, count: int = 1, **about: Any) -> Alert:
    return Alert.model_validate(
        {"id": "p00-1-1", "event": event, "at": 1000.5, "count": count, "about": about}
    )


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (alert("escalated", 1, **GROUP), "1 job escalated: schema_invalid (extract)"),
        (alert("escalated", 4000, **GROUP), "4,000 jobs escalated: schema_invalid (extract)"),
        (
            alert("escalated", 2, signature="reason:deadline", reason="deadline", task_types={}),
            "2 jobs escalated: deadline",
        ),
        (
            alert("escalated", 9, **{**GROUP, "task_types": dict.fromkeys("abcd", 1)}),
            "9 jobs escalated: schema_invalid (4 task types)",
        ),
        (
            alert("budget_exhausted", 2, **{**GROUP, "reason": "budget_tokens"}),
            "2 jobs ran out of budget: budget_tokens (extract)",
        ),
        (alert("breaker_opened", provider="openai-eu"), "the breaker of openai-eu opened"),
        (alert("breaker_opened", 3, provider="eu"), "the breaker of eu opened 3 times"),
        (
            alert("out_of_credits", 3, provider="eu", reason="credits"),
            "eu is out of credits: its jobs wait",
        ),
        (
            alert("breaker_opened", provider="eu", reason="credits"),
            "eu is out of credits: its jobs wait",
        ),
        (alert("job_finished", job_id="p00-a", state="succeeded"), "job p00-a succeeded"),
        (
            alert("job_finished", job_id="p00-a", state="escalated", reason="deadline"),
            "job p00-a escalated (deadline)",
        ),
        (alert("loop_changed", loop="alpha", state="running"), "loop alpha is running"),
        (
            alert("loop_changed", loop="alpha", state="blocked", reason="CP-1 failed"),
            "loop alpha is blocked: CP-1 failed",
        ),
        (alert("loop_completed", loop="alpha", state="completed"), "loop alpha is completed"),
        (
            alert("loop_budget", **BUDGET),
            "loop alpha has used 80 % of its day budget of tokens (8,000 of 10,000)",
        ),
        (alert("loop_health", **ALARM), "loop alpha: CP-1: there is no sign of progress for 6 min"),
        (
            alert("loop_escalated", **{**ALARM, "step": "escalate"}),
            "loop alpha: needs somebody: CP-1: there is no sign of progress for 6 min",
        ),
        (
            alert("loop_healed", **HEALED),
            "loop alpha/CP-1: change strategy, pending (the same error 3 times)",
        ),
        (
            alert("loop_escalated", **{**HEALED, "action": "escalate", "item": None}),
            "loop alpha: escalate, pending (the same error 3 times)",
        ),
        (
            alert(
                "loop_regression",
                loop="alpha",
                item="CP-1",
                status="rolling_back",
                culprit="0123456789abcdef",
                culprit_item="CP-2",
            ),
            "loop alpha/CP-1: regression rolling back, since 0123456789 (CP-2)",
        ),
        (
            alert("loop_regression", loop="alpha", item="CP-1", status="flake", culprit=""),
            "loop alpha/CP-1: regression flake",
        ),
        (alert("test"), "a test: this webhook works"),
    ],
)
def test_an_alert_is_one_line_for_people(message: Alert, text: str) -> None:
    assert alert_text(message) == text
    assert alert_body(message, LINKS)["text"] == text


@pytest.mark.parametrize(
    ("message", "link"),
    [
        (alert("escalated", **GROUP), "/escalations?signature=v1%3Aschema_invalid%7C%24.age"),
        (alert("job_finished", job_id="p00-a", state="succeeded"), "/jobs/p00-a"),
        (alert("breaker_opened", provider="eu"), "/"),
        (alert("loop_budget", **BUDGET), "/loops/alpha"),
        (alert("loop_changed", loop="alpha", state="deleted"), "/"),
        (alert("loop_health", **ALARM), "/loops/alpha"),
        (alert("loop_healed", **HEALED), "/loops/alpha"),
    ],
)
def test_an_alert_links_to_the_console(message: Alert, link: str) -> None:
    assert alert_body(message, LINKS)["console_url"] == f"http://127.0.0.1:8700{link}"


def test_an_alert_links_to_its_section_of_the_runbook() -> None:
    wiki = AlertLinks(console="http://127.0.0.1:8700", runbook="https://wiki.example/ops")
    assert runbook_link("breaker_opened", wiki) == "https://wiki.example/ops#breaker_opened"
    assert runbook_link("escalated", LINKS) == "http://127.0.0.1:8700/runbook#escalated"


def test_a_body_has_the_event_and_its_count() -> None:
    body = alert_body(alert("escalated", 7, **GROUP), LINKS)
    fields = {name: body[name] for name in ("id", "event", "at", "count", *GROUP)}
    assert fields == {"id": "p00-1-1", "event": "escalated", "at": 1000.5, "count": 7, **GROUP}


def test_the_name_of_a_webhook_shows_only_its_host() -> None:
    name = hook_name("https://user:pw@hooks.example/services/T0/secret", "KEY")
    assert name.startswith("hooks.example#")
    assert "secret" not in name
    assert "pw" not in name
    assert name != hook_name("https://hooks.example/services/T0/other", "KEY")
    assert name != hook_name("https://user:pw@hooks.example/services/T0/secret", "OTHER")


# -- signatures ------------------------------------------------------------------------------------

BODY = b'{"event": "escalated"}'
SIGNED = sign("secret", BODY, 1000.9)


def test_the_signature_of_a_known_request() -> None:
    """printf '1000.{"event": "escalated"}' | openssl dgst -sha256 -hmac secret"""
    mac = "35cd67a0c80aebcb740b78fce40138961b34368a49c554db24e32ceeee80661a"
    assert f"t=1000,v1={mac}" == SIGNED


@pytest.mark.parametrize(
    ("secret", "header", "body", "now", "valid"),
    [
        ("secret", SIGNED, BODY, 1000, True),
        ("secret", SIGNED, BODY, 1300, True),  # the maximum age
        ("secret", SIGNED, BODY, 1301, False),  # a replay
        ("secret", SIGNED, BODY, 699, False),  # from the future
        ("Secret", SIGNED, BODY, 1000, False),
        ("secret", SIGNED, BODY + b" ", 1000, False),
        ("secret", SIGNED.replace("t=1000", "t=1001"), BODY, 1000, False),
        ("secret", SIGNED.replace(",", ", "), BODY, 1000, True),
        ("secret", f"{SIGNED},v1=0000", BODY, 1000, True),  # a secret that is being changed
        ("secret", f"t=1,{SIGNED}", BODY, 1000, False),  # two times
        ("secret", "", BODY, 1000, False),
        ("secret", "t=1000", BODY, 1000, False),
        ("secret", "t=1000,v1=", BODY, 1000, False),
        ("secret", "t=,v1=0", BODY, 1000, False),
        ("secret", "t=²,v1=0", BODY, 1000, False),
        ("secret", "t=" + "9" * 9999 + ",v1=ü", BODY, 1000, False),
    ],
)
def test_which_signatures_are_valid(
    secret: str, header: str, body: bytes, now: float, valid: bool
) -> None:
    assert verify_signature(secret, header, body, now) is valid


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.binary(), st.integers(0, 2**40))
def test_a_signature_is_valid_for_its_body_only(secret: str, body: bytes, at: int) -> None:
    assert verify_signature(secret, sign(secret, body, at), body, at)
    assert not verify_signature(secret, sign(secret, body, at), body + b"!", at)


@given(st.text())
def test_any_other_header_is_refused_without_an_error(header: str) -> None:
    assert verify_signature("secret", header, BODY, 1000) is False


# -- tries -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tries", "randomness", "delay"),
    [
        (1, 0.0, 7.5),  # 15 / 2
        (1, 0.5, 11.25),  # 7.5 + 7.5 / 2
        (2, 0.0, 15),
        (4, 0.0, 60),
        (8, 0.0, 960),  # 15 * 2**7 / 2
        (9, 0.0, 1800),  # the cap of an hour, halved
        (10**6, 0.5, 2700),
    ],
)
def test_the_delay_doubles_up_to_an_hour(tries: int, randomness: float, delay: float) -> None:
    assert delivery_delay(tries, randomness=randomness) == delay


@pytest.mark.parametrize(("tries", "randomness"), [(0, 0.5), (1, 1.0), (1, -0.1)])
def test_an_impossible_delay_is_refused(tries: int, randomness: float) -> None:
    with pytest.raises(ValueError, match="is"):
        delivery_delay(tries, randomness=randomness)
