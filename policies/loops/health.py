"""Whether a loop is alive, from its newest sign of life."""

from __future__ import annotations

from typing import Literal

from mulligan.policies.loops.loop import LoopRecord

#: ``idle``: nothing is expected of it, because it was not started, is paused or has ended.
LoopHealth = Literal["healthy", "degraded", "dead", "idle"]
#: Seconds without a sign of life.
HEALTHY = 60.0
DEGRADED = 300.0


def loop_health(loop: LoopRecord, last_heartbeat: float | None, now: float) -> LoopHealth:
    """Return a loop's health. A loop that was just started has as long as any other."""
    if loop.state != "running":
        return "idle"
    silent = now - max(loop.since, last_heartbeat or 0.0)
    if silent < HEALTHY:
        return "healthy"
    return "degraded" if silent < DEGRADED else "dead"
