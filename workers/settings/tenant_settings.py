"""Settings of tenants: whose a job is, what it may use, what it costs, and its figures."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from mulligan.policies.jobs.job import Seconds


class TenantQuota(BaseModel):
    """What one value of the tenant label may use; None is no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    concurrency: int | None = Field(default=None, ge=1)
    tokens_per_day: int | None = Field(default=None, ge=1)


class ModelPrice(BaseModel):
    """What a runner's tokens cost: an amount of money per million of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    completion: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class TenantSettings(BaseModel):
    #: The label that names a job's tenant: quotas, tokens and lists go by it.
    tenant_label: str = Field(default="tenant", min_length=1)
    #: What each tenant may use; `*` is for every tenant that is not named.
    quotas: dict[str, TenantQuota] = Field(default_factory=dict)
    #: What tokens cost, by a runner's profile or else by its model.
    prices: dict[str, ModelPrice] = Field(default_factory=dict)
    #: Labels that figures are kept by, besides the tenant's.
    report_labels: frozenset[str] = frozenset()
    #: How long figures by the hour are kept.
    stats_retention: Seconds = 60 * 86400.0
