"""What a provider's headers say about the next request. They come from outside."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.policies.jobs.provider_limits import Allowance, RateLimits
from mulligan.workers.runners.rate_limit_headers import LONGEST_RESET, asked_wait, told_limits

NOW = datetime(2025, 3, 14, 9, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-1"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "9" * 4000}, None),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Fri, 14 Mar 2025 09:30:30 GMT"}, 30.0),
        ({"retry-after": "Fri, 14 Mar 2025 09:00:00 GMT"}, 0.0),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 -9999"}, None),
    ],
)
def test_retry_after_is_read_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    assert asked_wait(headers, NOW) == seconds


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [
        ("1s", 1.0),
        ("20ms", 0.02),
        ("6m0s", LONGEST_RESET),  # 360 s: longer than a reset may count
        ("0h0m2.5s", 2.5),
        ("100µs", 0.0001),
        ("12", 12.0),
        ("24h", LONGEST_RESET),
        ("-5", 0.0),
        ("soon", None),
        ("1s and more", None),
        ("", None),
        ("9" * 4000 + "s", None),
    ],
)
def test_a_used_up_allowance_waits_for_its_reset(reset: str, seconds: float | None) -> None:
    headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": reset}
    found = asked_wait(headers, NOW)
    assert found == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    "headers",
    [
        {"x-ratelimit-remaining-requests": "1", "x-ratelimit-reset-requests": "1s"},
        {"x-ratelimit-remaining-requests": "many", "x-ratelimit-reset-requests": "1s"},
        {"x-ratelimit-remaining-requests": "0"},
        {"x-ratelimit-reset-requests": "1s"},
    ],
)
def test_an_allowance_that_is_not_used_up_asks_for_no_wait(headers: dict[str, str]) -> None:
    assert asked_wait(headers, NOW) is None


def test_retry_after_wins_over_a_reset_and_the_longer_reset_counts() -> None:
    used_up = {
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "3s",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "8s",
    }
    assert asked_wait(used_up, NOW) == 8.0
    assert asked_wait(used_up | {"retry-after": "2"}, NOW) == 2.0


@pytest.mark.parametrize(
    ("limit", "remaining", "reset", "expected"),
    [
        ("30000", "1200", "57.6s", Allowance(remaining=1200, reset=57.6, limit=30000)),
        ("30000", "0", "24h", Allowance(remaining=0, reset=86400, limit=30000)),
        # Without a limit that makes sense, the wait is short.
        (None, "5", "24h", Allowance(remaining=5, reset=LONGEST_RESET)),
        ("3", "5", "9s", Allowance(remaining=5, reset=9)),
        ("0", "0", "9s", Allowance(remaining=0, reset=9)),
        ("30000", "-1", "9s", None),
        ("30000", "many", "9s", None),
        ("30000", "5", "soon", None),
        ("30000", "5", None, None),
    ],
)
@pytest.mark.parametrize("what", ["requests", "tokens"])
def test_what_is_left_of_an_allowance_is_read(
    what: str,
    limit: str | None,
    remaining: str,
    reset: str | None,
    expected: Allowance | None,
) -> None:
    values = {"limit": limit, "remaining": remaining, "reset": reset}
    headers = {f"x-ratelimit-{k}-{what}": v for k, v in values.items() if v is not None}
    found = told_limits(headers)
    assert found == (RateLimits.model_validate({what: expected}) if expected else None)


_NAMES = (
    "retry-after",
    "retry-after-ms",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
)
_VALUES = st.text(max_size=80) | st.from_regex(r"-?[0-9.eE+]{1,20}(ms|s|m|h)?", fullmatch=True)


@given(st.dictionaries(st.sampled_from(_NAMES), _VALUES))
def test_no_header_raises_or_gives_a_senseless_wait(headers: dict[str, str]) -> None:
    found = asked_wait(headers, NOW)
    assert found is None or (math.isfinite(found) and found >= 0)
    assert told_limits(headers) is None or told_limits(headers)
