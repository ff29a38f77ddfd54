"""Requests and responses of the escalation routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from mulligan.policies.jobs.job import parse_duration
from mulligan.tasks.escalations.end_escalations import BulkState
from mulligan.tasks.ports.ledger import Escalation, EscalationEnd, EscalationGroup

#: Maximum escalations that one request may name.
MAX_IDS = 1000
Name = Annotated[str, Field(min_length=1, max_length=200)]


def _duration(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("use seconds, or 20s, 10m, 1h")  # noqa: TRY004 - pydantic reads this kind
    return parse_duration(value)


Age = Annotated[
    float,
    BeforeValidator(_duration, json_schema_input_type=float | str),
    Field(ge=0, le=1e11, allow_inf_nan=False),
]


@dataclass(frozen=True, kw_only=True)
class EscalationRow(Escalation):
    """One escalation, and who ended it. Times are seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class GroupRow(EscalationGroup):
    """Escalations with one signature. Task types and tenants are counts of open ones.

    ``example`` is the id of one of their jobs.
    """

    runbook_url: str


class GroupList(BaseModel):
    groups: list[GroupRow]


class GroupDetail(BaseModel):
    group: GroupRow
    #: The newest first.
    escalations: list[EscalationRow]


class NotEndedRow(BaseModel):
    id: str
    why: str


class BulkRow(BaseModel):
    """A bulk action and its progress. At its end, total = done + skipped + failed."""

    id: str
    state: BulkState
    how: EscalationEnd
    by: str
    note: str | None
    filter: dict[str, Any]
    per_second: float
    total: int
    done: int
    #: Ended by another action before this one reached them.
    skipped: int
    #: Still open; `problems` lists the first of them.
    failed: int
    problems: list[NotEndedRow]
    created_at: float
    ended_at: float | None


class DryRunResponse(BaseModel):
    """The escalations that the action would end. Nothing was changed."""

    dry_run: Literal[True]
    total: int
    task_types: dict[str, int]
    tenants: dict[str, int]
    #: The first 20, the oldest first.
    first: list[EscalationRow]


class EndRequestBody(BaseModel):
    """The escalations to end, and a note. An escalation must match every field that is set."""

    model_config = ConfigDict(extra="forbid")

    note: Annotated[str, Field(max_length=2000)] = ""
    signature: Name | None = None
    ids: Annotated[list[Name], Field(min_length=1, max_length=MAX_IDS)] | None = None
    reason: Name | None = None
    kind: Name | None = None
    task_type: Name | None = None
    tenant: Name | None = None
    #: Minimum age: seconds, or 20s, 10m, 1h.
    older_than: Age | None = None
    #: Maximum age.
    newer_than: Age | None = None
    dry_run: bool = False
    #: Maximum rate.
    per_second: Annotated[float, Field(ge=0.1, le=1000, allow_inf_nan=False)] = 50


class Strategy(BaseModel):
    """Changes to how the model is asked."""

    model_config = ConfigDict(extra="forbid")

    #: Position in the runner's list of fallbacks; 0 is the runner itself.
    fallback: Annotated[int, Field(ge=0, le=100)] = 0
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    #: Constrain the answer to the job's JSON Schema if the runner supports it.
    constrained: bool = False


class Requeueing(EndRequestBody):
    #: Replaces the user's text in the attempts that follow.
    prompt: Annotated[str, Field(min_length=1, max_length=1_000_000)] | None = None
    strategy: Strategy | None = None
