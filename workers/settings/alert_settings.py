"""Settings of alerts and escalations."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from mulligan.policies.escalations.alerts import WebhookEvent
from mulligan.policies.jobs.job import Seconds
from mulligan.policies.value import SortedSet


class WebhookSettings(BaseModel):
    """One receiver of alerts. The secret itself stays in the environment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(pattern=r"^https?://\S+$")
    secret_env: str | None = None
    events: SortedSet[WebhookEvent] = frozenset(
        {
            "escalated",
            "breaker_opened",
            "out_of_credits",
            "budget_exhausted",
            "loop_budget",
            "loop_health",
            "loop_escalated",
        }
    )


class AlertSettings(BaseModel):
    webhooks: tuple[WebhookSettings, ...] = ()
    #: At most one alert per signature within this time.
    alert_window: Seconds = Field(default=900.0, gt=0)
    #: Tries of a delivery before it is given up.
    webhook_tries: int = Field(default=8, ge=1)
    #: Maximum escalations to keep; the oldest ended ones are deleted first.
    escalations_cap: int = Field(default=100_000, ge=100)
