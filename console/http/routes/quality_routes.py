"""Quality reports over self-repair cycles. Their camelCase names are a fixed contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AfterValidator, BaseModel

from mulligan.console.http.access import Caller, Reader
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.models.camel_model import CamelModel
from mulligan.policies.cycles.report import (
    budget_report,
    delayed_verification_report,
    immediate_loop_report,
)


def between(low: int, high: int) -> AfterValidator:
    """Return a validator whose message names both bounds, so that one error is enough."""

    def check(value: int) -> int:
        if not low <= value <= high:
            raise ValueError(f"must be between {low} and {high}")
        return value

    return AfterValidator(check)


WindowDays = Annotated[
    int,
    between(1, 365),
    Query(
        alias="windowDays",
        description="Days to look back, 1 to 365.",
        json_schema_extra={"minimum": 1, "maximum": 365},
    ),
]
Limit = Annotated[
    int,
    between(10, 50_000),
    Query(
        description="Maximum number of cycles, newest first, 10 to 50000.",
        json_schema_extra={"minimum": 10, "maximum": 50_000},
    ),
]


class _Report(CamelModel):
    generated_at: str
    protocol_version: str
    window_days: int
    total_cycles: int
    #: Whether there may be more cycles than were read.
    limit_reached: bool


class StatusCounts(BaseModel):
    pending_immediate_retry: int
    pending_delayed_verification: int
    completed: int
    escalated: int
    cancelled: int


class ImmediateLoopReport(_Report):
    """How many low scores were retried immediately, how soon, and with what result."""

    immediate_completed_count: int
    #: Null when there was no cycle.
    immediate_completion_rate: float | None
    pending_immediate_retry_count: int
    pending_delayed_verification_count: int
    completed_count: int
    escalated_count: int
    cancelled_count: int
    status_counts: StatusCounts
    median_immediate_latency_minutes: float | None
    cause_labels: dict[str, int]


class DelayedVerificationReport(_Report):
    """The valid and invalid delayed verifications, the reasons, and those that never ran."""

    valid_count: int
    invalid_count: int
    invalid_rate: float | None
    invalid_reasons: dict[str, int]
    stale_count: int
    pending_count: int


class TaskTypeBudget(CamelModel):
    total_cycles: int
    exhausted_count: int
    exhaustion_rate: float | None
    exhaustion_reasons: dict[str, int]


class BudgetReport(_Report):
    """The cycles that a guardrail or a budget ended before their retry."""

    exhausted_count: int
    exhaustion_rate: float | None
    exhaustion_reasons: dict[str, int]
    task_types: dict[str, TaskTypeBudget]


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(prefix="/api/quality", tags=["quality"])

    def run(
        report: Callable[..., dict[str, Any]], caller: Caller, window_days: int, limit: int
    ) -> dict[str, Any]:
        now = context.ledger.now()
        rows = context.ledger.cycle_rows.newest(
            since=now - window_days * 86400, limit=limit, tenant=caller.tenant
        )
        return report(rows, now=now, window_days=window_days, limit=limit)

    @router.get("/self-repair-immediate-loop")
    def immediate_loop(
        caller: Reader, window_days: WindowDays = 30, limit: Limit = 5000
    ) -> ImmediateLoopReport:
        """Report how many low scores were retried immediately, how soon, and the results."""
        report = run(immediate_loop_report, caller, window_days, limit)
        return ImmediateLoopReport.model_validate(report)

    @router.get("/self-repair-delayed-verification")
    def delayed_verification(
        caller: Reader, window_days: WindowDays = 30, limit: Limit = 5000
    ) -> DelayedVerificationReport:
        """Report which delayed verifications were valid, invalid (and why) or stale."""
        report = run(delayed_verification_report, caller, window_days, limit)
        return DelayedVerificationReport.model_validate(report)

    @router.get("/self-repair-budget")
    def budget(caller: Reader, window_days: WindowDays = 30, limit: Limit = 5000) -> BudgetReport:
        """Report how often a budget or a guardrail prevented a retry, by reason."""
        return BudgetReport.model_validate(run(budget_report, caller, window_days, limit))

    return router
