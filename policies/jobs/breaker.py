"""What the fleet knows about a provider: whether it answers, and how many calls it takes at once.

The ledger's scripts decide (workers/ledger/lua/gate.lua), because every claim asks them. Here are
the constants of that policy, and the value that readers get.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mulligan.policies.value import Value

#: ``limited``: the provider refuses calls above a number, or asked to wait. ``out_of_credits``: it
#: refuses all until somebody pays. The last is the worst.
BreakerState = Literal["closed", "limited", "half_open", "open", "out_of_credits"]


class ProviderPolicy(Value):
    """When a provider is called less, or not at all. Durations are in seconds."""

    #: Calls in flight to a new provider for which no number is configured; each answer adds one
    #: while all are in use.
    start: int = Field(default=8, ge=1)
    #: The number of transport faults in a row, none older than the window, that opens the breaker.
    threshold: int = Field(default=5, ge=1)
    window: float = Field(default=60.0, gt=0)
    #: How long it stays open the first time; doubled by each failed probe, up to the cap.
    open_seconds: float = Field(default=2.0, gt=0)
    open_cap: float = Field(default=300.0, gt=0)
    #: The pause after a 429 without Retry-After; doubled by each further one without an answer.
    pause: float = Field(default=1.0, gt=0)
    #: The longest wait that a provider may ask for: one absurd header does not stop a fleet.
    retry_after_cap: float = Field(default=3600.0, gt=0)
    #: How long a number of calls that was refused is not tried again: so long, or so many times
    #: Retry-After, because trying costs that pause. Doubled each time it is refused again.
    hold: float = Field(default=10.0, gt=0)
    hold_pauses: float = Field(default=20.0, ge=0)
    hold_cap: float = Field(default=900.0, gt=0)
    #: How long a provider that is out of credits gets no call; doubled by each further refusal of
    #: the one call that then tries it, up to the cap.
    credits_seconds: float = Field(default=60.0, gt=0)
    credits_cap: float = Field(default=1800.0, gt=0)

    def request(self) -> dict[str, float]:
        """Return the constants as scripts read them, in milliseconds."""
        return {
            "threshold": self.threshold,
            "window_ms": self.window * 1000,
            "open_ms": self.open_seconds * 1000,
            "open_cap_ms": self.open_cap * 1000,
            "pause_ms": self.pause * 1000,
            "pause_cap_ms": self.retry_after_cap * 1000,
            "hold_ms": self.hold * 1000,
            "hold_pauses": self.hold_pauses,
            "hold_cap_ms": self.hold_cap * 1000,
            "credits_ms": self.credits_seconds * 1000,
            "credits_cap_ms": self.credits_cap * 1000,
        }


class Breaker(Value):
    """The state of one provider."""

    state: BreakerState = "closed"
    #: How many calls may be in flight now, how many are, and how many entries wait for one.
    limit: int = Field(default=0, ge=0)
    in_flight: int = Field(default=0, ge=0)
    parked: int = Field(default=0, ge=0)
    #: Tokens that it is given in any 60 seconds, from the configuration or its own headers, and how
    #: many the last minute took; None without a limit.
    tokens_per_minute: int | None = Field(default=None, ge=0)
    tokens_used: int = Field(default=0, ge=0)
    #: Whether the next call waits for tokens or for requests that the provider allows.
    used_up: bool = False
    #: Consecutive faults since the last success, and the time of the first.
    faults: int = Field(default=0, ge=0)
    first_fault_at: float | None = None
    #: When the provider may be called again; 0 if it may now.
    until: float = 0.0
    #: How often it opened without a success in between.
    openings: int = Field(default=0, ge=0)
    #: Calls that the provider refused with 429.
    refusals: int = Field(default=0, ge=0)
    #: What the last fault or refusal was, and when.
    last_fault: str | None = None
    last_fault_at: float | None = None
    #: Since when it refuses calls because its credits or its quota are used up.
    out_of_credits_at: float | None = None

    @property
    def failing(self) -> bool:
        """Whether it is not called, or only to see whether it answers again."""
        return self.state in ("open", "half_open", "out_of_credits")
