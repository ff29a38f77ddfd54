"""What a waiting job waits for, in words."""

from __future__ import annotations

import pytest

from mulligan.policies.figures.waiting_words import provider_words, waiting_words
from mulligan.policies.jobs.breaker import Breaker

#: 2026-11-17 12:30:00 UTC.
NOON = 1794918600.0


@pytest.mark.parametrize(
    ("waiting_for", "behind", "expected"),
    [
        ("delay", None, "its next try"),
        ("version", None, "a worker of a later version"),
        ("budget", None, "its quota"),
        (None, None, "a worker"),
        ("pause", "queue:attempt", "queue attempt, which is paused"),
        ("pause", "task_type:extract_person", "task type extract_person, which is paused"),
        ("pause", "provider:127.0.0.1:8080", "127.0.0.1:8080, which is paused"),
        ("budget", "quota:acme", "the quota of acme"),
        ("provider", "provider:127.0.0.1:8080", "provider 127.0.0.1:8080"),
        ("breaker", "provider:api.example", "provider api.example"),
        ("credits", "provider:api.example", "provider api.example"),
    ],
)
def test_every_reason_to_wait_has_words(
    waiting_for: str | None, behind: str | None, expected: str
) -> None:
    assert waiting_words(waiting_for, behind) == expected


@pytest.mark.parametrize(
    ("provider", "expected"),
    [
        (Breaker(limit=8, in_flight=3), "takes calls"),
        (Breaker(limit=5, in_flight=5), "5 calls at once are running"),
        (Breaker(limit=1, in_flight=1), "1 call at once is running"),
        (
            Breaker(state="limited", limit=5, in_flight=5, until=NOON + 5),
            "paused by the provider until 12:30:05 UTC",
        ),
        (Breaker(state="limited", limit=5, until=NOON - 5), "takes calls"),
        (
            Breaker(state="open", limit=1, faults=5, until=NOON + 5),
            "failed 5 times in a row, next try at 12:30:05 UTC",
        ),
        (
            Breaker(state="half_open", limit=1, in_flight=1, faults=5),
            "failed, one call is trying it again",
        ),
        (
            Breaker(state="out_of_credits", limit=1, until=NOON + 60),
            "out of credits, next try at 12:31:00 UTC",
        ),
        (
            Breaker(state="out_of_credits", limit=1, in_flight=1, until=NOON - 5),
            "out of credits, one call is trying it again",
        ),
        (
            Breaker(limit=8, in_flight=1, tokens_per_minute=9000, tokens_used=8500, used_up=True),
            "8,500 of 9,000 tokens a minute are used, running calls need the rest",
        ),
        (
            Breaker(limit=8, tokens_per_minute=9000, tokens_used=9100, used_up=True),
            "9,100 of 9,000 tokens a minute are used",
        ),
        (Breaker(limit=8, in_flight=2, used_up=True), "running calls need what it still allows"),
    ],
)
def test_the_state_of_a_provider_has_words(provider: Breaker, expected: str) -> None:
    assert provider_words(provider, NOON) == expected
    waits = waiting_words("provider", "provider:api.example", provider=provider, now=NOON)
    assert waits == f"api.example: {expected}"
