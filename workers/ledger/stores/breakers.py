"""What the ledger knows about providers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mulligan.policies.jobs.breaker import Breaker, BreakerState
from mulligan.workers.ledger.connection.calls import RedisCalls


class RedisBreakers:
    """The providers' breakers and limits, which the claims' scripts enforce."""

    def __init__(self, calls: RedisCalls, prefixes: Callable[[], Sequence[str]]) -> None:
        self._calls = calls
        self._prefixes = prefixes

    def all(self) -> dict[str, Breaker]:
        """Return every provider that was called in the last days."""
        # The first partition has them for all.
        found, now = self._calls.one("read_providers", self._prefixes()[0], read=True)
        breakers = {}
        for provider, flat, limit, in_flight, parked, per_minute, used, used_up in found:
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            rates = {
                "tokens_per_minute": int(per_minute) if per_minute else None,
                "tokens_used": int(used),
                "used_up": bool(used_up),
            }
            breakers[provider] = _read(fields, float(now)).model_copy(
                update={"limit": int(limit), "in_flight": in_flight, "parked": parked, **rates}
            )
        return breakers


def _read(fields: Mapping[str, str], now: float) -> Breaker:
    def number(name: str) -> float:
        return _number(fields, name)

    first, until = number("first_fault_at"), number("opens_at")
    last = number("last_fault_at")
    return Breaker(
        state=_state(fields, now),
        faults=int(number("faults")),
        first_fault_at=first / 1000 if first else None,
        until=until / 1000 if until > now else 0.0,
        openings=int(number("openings")),
        refusals=int(number("refusals")),
        last_fault=fields.get("last_fault") or None,
        last_fault_at=last / 1000 if last else None,
        out_of_credits_at=number("unpaid_since") / 1000 if number("credits") else None,
    )


def _number(fields: Mapping[str, str], name: str) -> float:
    """Return a number; a damaged one counts as missing, as it does for the scripts."""
    try:
        return float(fields.get(name) or 0)
    except ValueError:
        return 0.0


def _state(fields: Mapping[str, str], now: float) -> BreakerState:
    closed = _number(fields, "opens_at") > now
    if _number(fields, "credits"):
        return "out_of_credits"
    if _number(fields, "openings"):
        return "open" if closed else "half_open"
    held = _number(fields, "ceiling_until") > now
    return "limited" if closed or held else "closed"
