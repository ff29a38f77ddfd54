"""Settings of tenants: label, quotas, prices and figures."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from mulligan.policies.jobs.job import Seconds
from mulligan.policies.value import SortedSet


class TenantQuota(BaseModel):
    """The limits of one tenant; None: unlimited."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    concurrency: int | None = Field(default=None, ge=1)
    tokens_per_day: int | None = Field(default=None, ge=1)


class ModelPrice(BaseModel):
    """The price of a million tokens of a runner."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    completion: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class TenantSettings(BaseModel):
    #: The label that names a job's tenant, for quotas, API tokens and lists.
    tenant_label: str = Field(default="tenant", min_length=1)
    #: The limits of each tenant; `*` is for every tenant that is not named.
    quotas: dict[str, TenantQuota] = Field(default_factory=dict)
    #: Prices by a runner's profile, or else by its model.
    prices: dict[str, ModelPrice] = Field(default_factory=dict)
    #: Further labels to keep figures by, besides the tenant.
    report_labels: SortedSet[str] = frozenset()
    #: How long hourly figures are kept.
    stats_retention: Seconds = 60 * 86400.0
