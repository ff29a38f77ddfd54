"""The cost report: tokens and money, with repairs counted separately."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from mulligan.console.http.access import Reader
from mulligan.console.http.context import ConsoleContext
from mulligan.console.reports.cost_report import cost_report

By = Annotated[
    str,
    Query(
        max_length=500,
        description="Groups, separated by commas: task_type, runner, model, tenant, label,"
        " label:NAME.",
        examples=["task_type,model"],
    ),
]
WindowText = Annotated[
    str, Query(max_length=20, description="How far back: 1h, 24h, 7d…", examples=["7d"])
]


class UsedTokens(BaseModel):
    attempts: int
    successes: int
    #: Attempts without reported usage: no other number includes them.
    unknown_attempts: int
    #: Null if no attempt has reported usage.
    tokens: int | None
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    #: Null if no price is known.
    money: float | None
    unpriced_tokens: int


class CostRow(BaseModel):
    #: Group → its value; empty if the work has none.
    of: dict[str, str]
    attempts: int
    successes: int
    tokens: int | None
    money: float | None
    tokens_per_success: float | None
    #: The share of tokens that attempts after the first used.
    repairs_share: float | None
    unknown_attempts: int
    unpriced_tokens: int
    first: UsedTokens
    repairs: UsedTokens


class CostReport(BaseModel):
    generated_at: str
    window: str
    since: str
    by: list[str]
    #: Whether prices are configured.
    priced: bool
    total: CostRow
    lines: list[CostRow]


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["cost"])

    @router.get("/api/cost")
    def cost(
        caller: Reader,
        by: By = "task_type,model",
        window: WindowText = "7d",
    ) -> CostReport:
        """Report tokens and money of a window by group, first attempts and repairs separately."""
        report = cost_report(
            context.services.figures,
            context.settings,
            by=by,
            window=window,
            now=context.ledger.now(),
            tenant=caller.tenant,
        )
        return CostReport.model_validate(report)

    return router
