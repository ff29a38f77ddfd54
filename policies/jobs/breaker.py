"""The circuit breaker of a provider: stop calling it, then let one probe through.

A breaker is a value. ``record_fault`` and ``record_success`` return the next one, ``allow`` says
what a caller may do now, and the ledger, which stores it, makes the step atomic. ``now`` is any
clock in seconds that all callers share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from mulligan.policies.jobs.backoff import doubled
from mulligan.policies.value import Value

BreakerState = Literal["closed", "open", "half_open"]


@dataclass(frozen=True)
class AllowCall:
    """Go ahead."""


@dataclass(frozen=True)
class ProbeCall:
    """Go ahead alone: store ``breaker`` first, so that only one caller probes at a time."""

    breaker: Breaker


@dataclass(frozen=True)
class WaitForProvider:
    """Call again after ``seconds``."""

    seconds: float


class BreakerPolicy(Value):
    """When a breaker opens and for how long."""

    #: The number of transport faults in a row, none older than the window, that opens it.
    threshold: int = Field(default=5, ge=1)
    window: float = Field(default=60.0, gt=0)
    #: How long it stays open the first time; doubled by each failed probe, up to the cap.
    open_seconds: float = Field(default=5.0, gt=0)
    open_cap: float = Field(default=300.0, gt=0)
    #: Seconds after which a probe without a result no longer counts and another is allowed.
    probe_seconds: float = Field(default=180.0, gt=0)
    #: The longest wait that a provider may ask for: one absurd header does not stop a fleet.
    retry_after_cap: float = Field(default=3600.0, ge=0)


DEFAULT_POLICY = BreakerPolicy()


class Breaker(Value):
    """The state of one provider."""

    state: BreakerState = "closed"
    #: Consecutive faults since the last success, and the time of the first.
    faults: int = Field(default=0, ge=0)
    first_fault_at: float | None = None
    #: When an open breaker lets a probe through, or a half-open one gives up its probe.
    until: float = 0.0
    #: How often it opened without a success in between.
    openings: int = Field(default=0, ge=0)

    def allow(
        self, now: float, policy: BreakerPolicy = DEFAULT_POLICY
    ) -> AllowCall | ProbeCall | WaitForProvider:
        """Allow calls while closed, one probe each time the wait is over; otherwise wait."""
        if self.state == "closed":
            return AllowCall()
        if now < self.until:
            return WaitForProvider(self.until - now)
        probing = {"state": "half_open", "until": now + policy.probe_seconds}
        return ProbeCall(self.model_copy(update=probing))

    def record_success(self) -> Breaker:
        """Return a closed breaker: any answer shows that the provider works."""
        return Breaker()

    def record_fault(
        self,
        now: float,
        policy: BreakerPolicy = DEFAULT_POLICY,
        *,
        retry_after: float | None = None,
    ) -> Breaker:
        """Return the breaker after a transport fault. ``retry_after`` is a minimum wait."""
        floor = min(retry_after or 0.0, policy.retry_after_cap)
        match self.state:
            case "open":
                return self._open_at_least(now + floor)
            case "half_open":
                return self._opened(now, policy, floor)
            case _:
                return self._counted(now, policy, floor)

    def _counted(self, now: float, policy: BreakerPolicy, floor: float) -> Breaker:
        fresh = self.first_fault_at is None or now - self.first_fault_at > policy.window
        faults = 1 if fresh else self.faults + 1
        first = now if fresh else self.first_fault_at
        counted = self.model_copy(update={"faults": faults, "first_fault_at": first})
        return counted if faults < policy.threshold else counted._opened(now, policy, floor)

    def _opened(self, now: float, policy: BreakerPolicy, floor: float) -> Breaker:
        wait = doubled(self.openings + 1, base=policy.open_seconds, cap=policy.open_cap)
        seconds = max(wait, floor)
        return Breaker(
            state="open",
            faults=self.faults,
            first_fault_at=self.first_fault_at,
            until=now + seconds,
            openings=self.openings + 1,
        )

    def _open_at_least(self, until: float) -> Breaker:
        """Faults of calls that began before it opened extend the wait only by ``retry_after``."""
        return self.model_copy(update={"until": max(self.until, until)})
