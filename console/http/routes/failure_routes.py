"""Failures by signature: counts, trends, repairs, and the explanation of a signature."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from mulligan.console.http.access import Ops, Reader
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import HttpError, errors, invalid, not_found
from mulligan.console.reports.failure_report import failure_report, failures_report
from mulligan.policies.figures.failure_ranking import RankingFilter
from mulligan.policies.jobs.job import parse_duration
from mulligan.workers.figures.windows import LONGEST_WINDOW

Signature = Annotated[
    str, Path(min_length=1, max_length=200, description="v2:… or reason:…", examples=["v2:0a1b"])
]
WindowText = Annotated[
    str, Query(max_length=20, description="How far back: 1h, 24h, 7d…", examples=["24h"])
]
Filter = Annotated[str | None, Query(max_length=200)]


class TechniqueRow(BaseModel):
    name: str
    tried: int
    repaired: int


class FailureRow(BaseModel):
    signature: str
    kind: str
    cause: str | None
    count: int
    #: The count in the previous window.
    before: int
    #: Compared with the previous window: 1 more, -1 fewer, 0 the same.
    trend: Literal[-1, 0, 1]
    #: One count per step of the window.
    series: list[int]
    task_types: dict[str, int]
    models: dict[str, int]
    #: Repairs tried for it, and how many succeeded.
    tried: int
    repaired: int
    repaired_share: float | None
    techniques: list[TechniqueRow]
    #: The id of a job that had it.
    example: str | None
    open_escalations: int
    muted: bool
    muted_until: float | None


class FailureList(BaseModel):
    generated_at: str
    window: str
    since: str
    step_seconds: int
    failures: list[FailureRow]


class Explanation(BaseModel):
    """The parts of a signature. Parts that may quote an answer need a token that may read it."""

    version: str
    kind: str
    verifier_id: str | None
    strict_signature: str
    coarse_signature: str
    strict_parts: dict[str, Any]
    coarse_parts: dict[str, Any]
    basis: Literal["structure", "text"]
    masked: list[str]
    matches: bool
    redacted: bool


class FailureDetail(FailureRow):
    generated_at: str
    window: str
    since: str
    step_seconds: int
    #: Where in the answer it failed; empty if unknown.
    place: str
    #: Null if no attempt with this failure is left.
    explanation: Explanation | None


class MuteRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    #: How long, such as 4h; null ends the mute.
    for_: str | None = Field(alias="for", max_length=20, examples=["4h"])


class MuteResponse(BaseModel):
    signature: str
    muted_until: float | None


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(prefix="/api/failures", tags=["failures"])

    @router.get("")
    def failures(
        caller: Reader,
        window: WindowText = "24h",
        kind: Filter = None,
        task_type: Filter = None,
        model: Filter = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
    ) -> FailureList:
        """List the failure signatures of a window, the most frequent first."""
        choice = RankingFilter(tenant=caller.tenant, kind=kind, task_type=task_type, model=model)
        figures = context.services.figures
        report = failures_report(
            context.ledger,
            figures,
            window=window,
            choice=choice,
            limit=limit,
            owner=caller.owner,
        )
        return FailureList.model_validate(report)

    @router.get("/{signature}", responses=errors(404))
    def failure(signature: Signature, caller: Reader, window: WindowText = "7d") -> FailureDetail:
        """Return one signature with its explanation."""
        report = failure_report(
            context.ledger,
            context.services.figures,
            signature=signature,
            window=window,
            tenant=caller.tenant,
            texts=caller.texts,
            owner=caller.owner,
        )
        if report is None:
            raise not_found(f"failure {signature!r} in the last {window}")
        return FailureDetail.model_validate(report)

    @router.post("/{signature}/mute", responses=errors(404))
    def mute(signature: Signature, body: MuteRequest, caller: Ops) -> MuteResponse:
        """Send no alerts about this signature for a while. It is still counted and listed."""
        if caller.tenant is not None:
            raise HttpError(
                403, "forbidden", "a mute affects all tenants: it needs a token without a tenant"
            )
        until = None if body.for_ is None else context.ledger.now() + _seconds(body.for_)
        if not context.ledger.mute(signature, until=until):
            raise not_found(f"escalation with the signature {signature!r}, so there are no alerts")
        return MuteResponse(signature=signature, muted_until=until)

    return router


def _seconds(text: str) -> float:
    try:
        seconds = float(parse_duration(text))
    except ValueError as error:
        raise invalid(f"for: {error}") from None
    if not 1 <= seconds <= LONGEST_WINDOW:
        raise invalid(f"for: {text!r} is not between 1s and {LONGEST_WINDOW / 86400:g}d")
    return seconds
