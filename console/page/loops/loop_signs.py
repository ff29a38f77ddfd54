"""Signs of life on the page: a status, and in a few words which sign is missing since when."""

from __future__ import annotations

from dataclasses import dataclass

from mulligan.policies.loops.health import HealthCheck, ItemHealth, LoopHealth, missing_words

_WAITS = {"model": "its model", "tool": "a tool", "worker": "a worker"}


@dataclass(frozen=True, kw_only=True)
class HealthSign:
    """The health of an item or a loop, in words."""

    status: LoopHealth
    text: str


def item_sign(health: ItemHealth, now: float, *, texts: bool) -> HealthSign:
    """Say how an item that has a slot is. ``texts``: also what its agent repeats."""
    if health.finding:
        said = health.finding if texts else "its agent repeats itself"
        status: LoopHealth = "degraded" if health.status == "healthy" else health.status
        return HealthSign(status=status, text=said)
    if health.waits_on == "verifier":
        return HealthSign(status=health.status, text="verifying")
    waits = f", waits for {_WAITS[health.waits_on]}" if health.waits_on else ""
    if health.missing:
        text = missing_words(health.missing, health.since, now)
        return HealthSign(status=health.status, text=text + waits)
    if health.waits_on == "worker":
        return HealthSign(status="idle", text="waits for a worker")
    return HealthSign(status=health.status, text=health.status)


def loop_sign(check: HealthCheck, now: float) -> HealthSign:
    """Say how a loop is, and which item or signal decides it."""
    if not check.missing:
        return HealthSign(status=check.status, text=check.status)
    text = missing_words(check.missing, check.since, now)
    return HealthSign(status=check.status, text=f"{check.item}: {text}" if check.item else text)
