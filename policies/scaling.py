"""How many processes a pool should have now: grow at once, shrink late and one at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ScalingPolicy:
    """When a pool grows and shrinks. ``0 < low <= high <= 1``, so that it cannot flutter."""

    least: int
    most: int
    #: It grows until (active + queued) / slots is at most this.
    high: float = 0.9
    #: One process is too many if this load would not be passed without it.
    low: float = 0.7
    #: While the oldest message has waited less, a pool at most doubles and leaves others their
    #: share: a short queue is often gone before a new process has started.
    patience: float = 2.0
    #: So long one process must have been too many before it goes; each further one goes ``pace``
    #: seconds after the one before, as long as that stays true.
    quiet: float = 60.0
    pace: float = 10.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"1 <= least <= most, not {self.least} and {self.most}")
        if not 0 < self.low <= self.high <= 1:
            raise ValueError(f"0 < low <= high <= 1, not {self.low} and {self.high}")


@dataclass(frozen=True, kw_only=True)
class PoolLoad:
    """What a pool sees of itself and of the queues it serves."""

    #: Its processes, and how many of them are at work.
    slots: int
    active: int
    #: Messages it may take, repairs among them, and how many of them are its share of the fleet's.
    queued: int
    share: int
    #: Mandatory retries that wait.
    repairs: int = 0
    #: Seconds the oldest message has waited; 0 if that is unknown.
    oldest: float = 0.0

    @property
    def value(self) -> float:
        """(active + queued) / slots."""
        return (self.active + self.queued) / max(self.slots, 1)


@dataclass(frozen=True, kw_only=True)
class ScalingDecision:
    """What the next decision must know of the ones before."""

    #: Since when one process has been too many.
    calm_since: float | None = None


@dataclass(frozen=True, kw_only=True)
class PoolSize:
    """How many processes the pool should have, why, and the state for the next decision."""

    slots: int
    reason: str
    state: ScalingDecision


def decide(
    state: ScalingDecision, load: PoolLoad, *, now: float, policy: ScalingPolicy
) -> PoolSize:
    """The size of the pool at ``now``, never below ``least`` nor above ``most``."""
    wanted, reason = _wanted(load, policy)
    wanted = min(max(wanted, policy.least), policy.most)
    if wanted > load.slots:
        return PoolSize(slots=wanted, reason=reason, state=ScalingDecision())
    if load.slots > policy.most:  # the limit was lowered: down to it, but still one at a time
        return PoolSize(slots=load.slots - 1, reason="above its limit", state=ScalingDecision())
    if load.slots <= policy.least or not _one_too_many(load, policy):
        return PoolSize(slots=load.slots, reason="it fits", state=ScalingDecision())
    since = now if state.calm_since is None else state.calm_since
    if now - since < policy.quiet:
        return PoolSize(slots=load.slots, reason="quiet", state=ScalingDecision(calm_since=since))
    again = ScalingDecision(calm_since=now - policy.quiet + policy.pace)
    return PoolSize(slots=load.slots - 1, reason="quiet for long", state=again)


def _wanted(load: PoolLoad, policy: ScalingPolicy) -> tuple[int, str]:
    """The size that fits the load, without regard to limits."""
    patient = load.oldest < policy.patience
    demand = load.active + (load.share if patient else load.queued)
    fitting = math.ceil(demand / policy.high)
    if patient:
        fitting = min(fitting, max(2 * load.slots, 1))
    free = max(load.slots - load.active, 0)
    if load.repairs > free:
        # A mandatory retry waits for nobody: neither for the doubling nor for others' shares.
        urgent = load.slots + load.repairs - free
        if urgent >= fitting:
            return urgent, f"{load.repairs} repairs wait"
    return fitting, f"{load.active} at work, {load.queued} waiting"


def _one_too_many(load: PoolLoad, policy: ScalingPolicy) -> bool:
    return load.active + load.queued <= policy.low * (load.slots - 1)
