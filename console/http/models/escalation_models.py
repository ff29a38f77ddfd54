"""What the escalation routes take and answer with."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from mulligan.policies.jobs.job import parse_duration

#: Escalations that one request names.
MANY = 1000
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


class EscalationRow(BaseModel):
    """One escalation, and who ended it. Times are seconds since 1970."""

    id: str
    job_id: str
    attempt: int
    cycle_id: str | None
    signature: str
    reason: str
    kind: str | None
    task_type: str
    detail: str
    tenant: str | None
    at: float
    state: Literal["open", "resolved", "requeued", "cancelled"]
    ended_at: float | None
    ended_by: str | None
    note: str | None


class GroupRow(BaseModel):
    """Escalations alike. The counts by task type and tenant are of open ones."""

    signature: str
    reason: str
    kind: str | None
    detail: str
    #: The id of a job that has it.
    example: str
    task_types: dict[str, int]
    tenants: dict[str, int]
    open: int
    total: int
    first_at: float
    last_at: float
    muted_until: float | None
    alerted_at: float | None
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
    """An action on many, and how far it has come: total = done + skipped + failed at the end."""

    id: str
    state: Literal["running", "done", "stopped"]
    how: Literal["resolved", "requeued", "cancelled"]
    by: str
    note: str | None
    filter: dict[str, Any]
    per_second: float
    total: int
    done: int
    #: Somebody else ended them first.
    skipped: int
    #: Open still; the first of them are in `problems`.
    failed: int
    problems: list[NotEndedRow]
    created_at: float
    ended_at: float | None


class DryRunResponse(BaseModel):
    """What would be acted on. Nothing was changed."""

    dry_run: Literal[True]
    total: int
    task_types: dict[str, int]
    tenants: dict[str, int]
    #: The first 20, the oldest first.
    first: list[EscalationRow]


class EndRequestBody(BaseModel):
    """What to act on, and a note for the record. All that is given must fit."""

    model_config = ConfigDict(extra="forbid")

    note: Annotated[str, Field(max_length=2000)] = ""
    signature: Name | None = None
    ids: Annotated[list[Name], Field(min_length=1, max_length=MANY)] | None = None
    reason: Name | None = None
    kind: Name | None = None
    task_type: Name | None = None
    tenant: Name | None = None
    #: Escalated at least so long ago: seconds, or 20s, 10m, 1h.
    older_than: Age | None = None
    #: Escalated at most so long ago.
    newer_than: Age | None = None
    dry_run: bool = False
    #: At most so many a second.
    per_second: Annotated[float, Field(ge=0.1, le=1000, allow_inf_nan=False)] = 50


class Strategy(BaseModel):
    """How the model is asked differently this time."""

    model_config = ConfigDict(extra="forbid")

    #: How far down the runner's list of fallbacks to go; 0 is the runner itself.
    fallback: Annotated[int, Field(ge=0, le=100)] = 0
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    #: Constrain the answer to the job's own JSON Schema where the runner can.
    constrained: bool = False


class Requeueing(EndRequestBody):
    #: Replaces the user's text for the attempts that follow.
    prompt: Annotated[str, Field(min_length=1, max_length=1_000_000)] | None = None
    strategy: Strategy | None = None
