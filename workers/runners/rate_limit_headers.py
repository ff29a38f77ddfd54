"""Read how long a provider asks to wait, and what it still allows, from a response's headers.

Headers come from outside: a value that makes no sense is ignored, and nothing here raises.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from mulligan.policies.jobs.provider_limits import Allowance, RateLimits

#: A used-up allowance is no order to wait, and its reset is the time until the allowance is full
#: again, which may be a day away while the next request is allowed in seconds.
LONGEST_RESET = 60.0
_LONGEST_REFILL = 86400.0
#: More requests or tokens than any provider allows.
_MOST = 1e12
#: Longer than any duration or date that a provider sends.
_LONGEST_TEXT = 64
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h|d)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0,
            "d": 86400.0}  # fmt: skip


def asked_wait(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds until the next request is welcome; None if the headers do not say.

    Retry-After is an order. Without it, an allowance of requests or tokens that is used up says
    when it is renewed.
    """
    ordered = _retry_after(headers, now)
    if ordered is not None:
        return ordered
    resets = [_reset(headers, what) for what in ("requests", "tokens")]
    return max((reset for reset in resets if reset is not None), default=None)


def told_limits(headers: Mapping[str, str]) -> RateLimits | None:
    """Return what is left of the allowances of requests and tokens; None without such headers."""
    found = RateLimits(requests=_told(headers, "requests"), tokens=_told(headers, "tokens"))
    return found if found.requests or found.tokens else None


def _told(headers: Mapping[str, str], what: str) -> Allowance | None:
    remaining = _number(headers.get(f"x-ratelimit-remaining-{what}"))
    reset = _duration(headers.get(f"x-ratelimit-reset-{what}"))
    if remaining is None or reset is None or remaining < 0 or reset < 0:
        return None
    limit = _number(headers.get(f"x-ratelimit-limit-{what}"))
    known = limit is not None and limit >= max(1.0, remaining)
    # Without the whole allowance, nobody knows how fast it fills up: do not wait for all of it.
    longest = _LONGEST_REFILL if known else LONGEST_RESET
    return Allowance(
        remaining=min(remaining, _MOST),
        reset=min(reset, longest),
        limit=min(limit, _MOST) if limit is not None and known else None,
    )


def _retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Read ``retry-after-ms`` or ``retry-after`` (number or HTTP date); never negative."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return max(0.0, milliseconds / 1000)
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is None:
        seconds = _seconds_until(text, now)
    return None if seconds is None else max(0.0, seconds)


def _reset(headers: Mapping[str, str], what: str) -> float | None:
    """Return the capped time until a used-up allowance is renewed."""
    remaining = _number(headers.get(f"x-ratelimit-remaining-{what}"))
    if remaining is None or remaining > 0:
        return None
    seconds = _duration(headers.get(f"x-ratelimit-reset-{what}"))
    return None if seconds is None else min(max(0.0, seconds), LONGEST_RESET)


def _duration(text: str | None) -> float | None:
    """Read ``1s``, ``6m0s``, ``20ms`` or a number of seconds."""
    if not text or len(text) > _LONGEST_TEXT:
        return None
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        return _number(text)
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _number(text: str | None) -> float | None:
    if not text or len(text) > _LONGEST_TEXT:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _seconds_until(date: str | None, now: datetime) -> float | None:
    if not date or len(date) > _LONGEST_TEXT:
        return None
    try:
        moment = parsedate_to_datetime(date)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return (moment - now).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
