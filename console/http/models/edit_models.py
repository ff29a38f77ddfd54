"""The requests and answers of the routes of edits."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticSerializationError

from mulligan.console.http.models.job_models import REDACTED
from mulligan.policies.edits.edit import (
    AutonomyMode,
    BenchmarkSpec,
    Edit,
    EditOutcome,
    EditPlan,
    EditRiskTier,
)
from mulligan.policies.edits.session import EditDelta, EditRecord, EditSession, Phase
from mulligan.policies.edits.suite import Suite


class PlanSubmission(BaseModel):
    """A plan and the tree that it edits."""

    model_config = ConfigDict(extra="forbid")

    plan: EditPlan
    #: A name in [workspaces]; never a path.
    workspace: Annotated[str, Field(min_length=1, max_length=200)]
    mode: AutonomyMode = AutonomyMode.TIERED
    #: What measures it. Files cannot be named here.
    suite: Suite | None = None
    #: The folder of the configuration tree, relative to the root.
    config: Annotated[str, Field(min_length=1, max_length=1000)] = "."

    @model_validator(mode="after")
    def _is_text(self) -> PlanSubmission:
        """Refuse half of a surrogate pair: JSON can spell it, but neither a file nor the ledger can
        store it."""
        try:
            self.model_dump_json()
        except PydanticSerializationError as error:
            raise ValueError(f"contains text that cannot be stored: {error}") from None
        return self


class DecisionNote(BaseModel):
    """A person's note on a decision."""

    model_config = ConfigDict(extra="forbid")

    note: Annotated[str, Field(max_length=2000)] | None = None


class DecisionReason(BaseModel):
    """Why an edit is not applied. A model that wrote the plan receives it."""

    model_config = ConfigDict(extra="forbid")

    note: Annotated[str, Field(min_length=1, max_length=2000, pattern=r"\S")]


class SessionRow(BaseModel):
    """A session without its edits. Times are ISO 8601, as in outcomes."""

    session: str
    #: The name of its tree in [workspaces], if it has one.
    workspace: str | None
    root: str
    host: str
    mode: AutonomyMode
    phase: Phase
    #: The edit that is being applied and measured.
    at: str | None
    edits: int
    #: Edits that wait for a person.
    waiting: int
    #: The number of edits in each status.
    statuses: dict[str, int]
    by: str | None
    created_at: datetime
    updated_at: datetime


class EditDocument(BaseModel):
    """One edit with its state."""

    session: str
    edit: Edit
    tier: EditRiskTier
    #: Null while it is pending or in progress.
    outcome: EditOutcome | None
    #: Whether a person may approve or reject it now.
    waiting: bool
    diff: str
    approved_by: str | None
    decided_by: str | None
    decided_at: datetime | None
    note: str | None


class SessionDocument(SessionRow):
    """A session with its edits, in their order."""

    benchmark: BenchmarkSpec
    #: Whether it has a suite.
    measured: bool
    #: The job that wrote the plan, and the one that corrects it.
    author: str | None
    correction: str | None
    records: list[EditDocument]


class UnreadableRow(BaseModel):
    """A session that this release cannot read."""

    id: str
    problem: str


class SessionList(BaseModel):
    sessions: list[SessionRow]
    unreadable: list[UnreadableRow]


class ReviewList(BaseModel):
    reviews: list[EditDocument]


class DeltaHistory(BaseModel):
    deltas: list[EditDelta]


class RollbackResult(SessionDocument):
    """The session after a rollback, and a text that says what was done."""

    said: str


def row(session: EditSession, workspace: str | None) -> SessionRow:
    return SessionRow(
        session=session.id,
        workspace=workspace,
        root=session.root,
        host=session.host,
        mode=session.mode,
        phase=session.phase,
        at=None if session.at is None else session.records[session.at].edit.id,
        edits=len(session.records),
        waiting=sum(record.reviewable for record in session.records),
        statuses=dict(Counter(outcome.status for outcome in session.outcomes)),
        by=session.by,
        created_at=session.created_at,
        updated_at=session.updated_at,
    )


def document(session: EditSession, workspace: str | None, *, texts: bool) -> SessionDocument:
    return SessionDocument(
        **dict(row(session, workspace)),
        benchmark=session.benchmark,
        measured=session.suite is not None,
        author=session.author,
        correction=session.correction,
        records=[edit_document(session, record, texts=texts) for record in session.records],
    )


def edit_document(session: EditSession, record: EditRecord, *, texts: bool) -> EditDocument:
    """Return one edit. Without ``texts``, what it writes and what quotes that is redacted."""
    edit, outcome, diff = record.edit, record.outcome, record.diff
    if not texts:
        hidden = dict.fromkeys(edit.payload, REDACTED)
        edit = edit.model_copy(update={"payload": hidden, "rationale": _hide(edit.rationale)})
        diff = _hide(diff)
        if outcome is not None:
            hiding = {"error": outcome.error and REDACTED, "notes": _hide_all(outcome.notes)}
            outcome = outcome.model_copy(update=hiding)
    return EditDocument(
        session=session.id,
        edit=edit,
        tier=record.tier,
        outcome=outcome,
        waiting=record.reviewable,
        diff=diff,
        approved_by=record.approved_by,
        decided_by=record.decided_by,
        decided_at=record.decided_at,
        note=record.note,
    )


def delta_document(delta: EditDelta, *, texts: bool) -> EditDelta:
    """Return a measured effect. Without ``texts``, its notes are redacted: they may quote text."""
    return delta if texts else delta.model_copy(update={"notes": _hide_all(delta.notes)})


def _hide_all(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_hide(text) for text in texts)


def _hide(text: str) -> str:
    return REDACTED if text else text
