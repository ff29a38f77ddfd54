"""The size of a pool: it grows at once, and shrinks late and one process at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ScalingPolicy:
    """When a pool grows and shrinks. ``0 < low <= high <= 1``, so that it does not oscillate."""

    least: int
    most: int
    #: It grows until (active + queued) / slots is at most this.
    high: float = 0.9
    #: It shrinks if the load would still be at most this with one process less.
    low: float = 0.7
    #: While the oldest message has waited less, a pool at most doubles and leaves other pools
    #: their share: a short queue is often empty before a new process has started.
    patience: float = 2.0
    #: Seconds for which a process must be superfluous before the first one is stopped.
    quiet: float = 60.0
    #: Seconds until the next one is stopped, if there are still too many.
    pace: float = 10.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"1 <= least <= most, not {self.least} and {self.most}")
        if not 0 < self.low <= self.high <= 1:
            raise ValueError(f"0 < low <= high <= 1, not {self.low} and {self.high}")


@dataclass(frozen=True, kw_only=True)
class PoolLoad:
    """The state of a pool and of the queues that it serves."""

    slots: int
    #: Busy slots.
    active: int
    #: Waiting messages that it may take, repairs included.
    queued: int
    #: This pool's share of them in the fleet.
    share: int
    #: Mandatory retries that wait.
    repairs: int = 0
    #: Seconds that the oldest message has waited; 0 if unknown.
    oldest: float = 0.0

    @property
    def value(self) -> float:
        """(active + queued) / slots."""
        return (self.active + self.queued) / max(self.slots, 1)


@dataclass(frozen=True, kw_only=True)
class ScalingDecision:
    """What the next decision must know of the earlier ones."""

    #: Since when one process has been too many.
    calm_since: float | None = None


@dataclass(frozen=True, kw_only=True)
class PoolSize:
    """The size that the pool should have, why, and the state for the next decision."""

    slots: int
    reason: str
    state: ScalingDecision


def decide(
    state: ScalingDecision, load: PoolLoad, *, now: float, policy: ScalingPolicy
) -> PoolSize:
    """Return the size of the pool at ``now``, between ``least`` and ``most``."""
    needed, reason = _needed(load, policy)
    needed = min(max(needed, policy.least), policy.most)
    if needed > load.slots:
        return PoolSize(slots=needed, reason=reason, state=ScalingDecision())
    if load.slots > policy.most:  # the limit was lowered: shrink to it, but one at a time
        return PoolSize(slots=load.slots - 1, reason="above its limit", state=ScalingDecision())
    if load.slots <= policy.least or not _has_spare_slot(load, policy):
        return PoolSize(slots=load.slots, reason="it fits", state=ScalingDecision())
    since = now if state.calm_since is None else state.calm_since
    if now - since < policy.quiet:
        return PoolSize(slots=load.slots, reason="quiet", state=ScalingDecision(calm_since=since))
    after_pace = ScalingDecision(calm_since=now - policy.quiet + policy.pace)
    return PoolSize(slots=load.slots - 1, reason="quiet for long", state=after_pace)


def _needed(load: PoolLoad, policy: ScalingPolicy) -> tuple[int, str]:
    """Return the size that fits the load, and why, without regard to limits."""
    patient = load.oldest < policy.patience
    demand = load.active + (load.share if patient else load.queued)
    fitting = math.ceil(demand / policy.high)
    if patient:
        fitting = min(fitting, max(2 * load.slots, 1))
    free = max(load.slots - load.active, 0)
    if load.repairs > free:
        # A mandatory retry does not wait for the doubling or for other pools' shares.
        urgent = load.slots + load.repairs - free
        if urgent >= fitting:
            return urgent, f"{load.repairs} repairs wait"
    return fitting, f"{load.active} at work, {load.queued} waiting"


def _has_spare_slot(load: PoolLoad, policy: ScalingPolicy) -> bool:
    return load.active + load.queued <= policy.low * (load.slots - 1)
