"""The work of loops in repositories as the API returns it: checkpoints, changes and sessions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from mulligan.console.http.models.job_models import REDACTED
from mulligan.policies.failures.redaction import is_name
from mulligan.policies.jobs.job import Usage
from mulligan.policies.loops.checkpoints import Checkpoint, CheckpointKind, Rollback
from mulligan.policies.loops.loop import LoopRecord
from mulligan.policies.loops.spec import ItemId
from mulligan.tasks.loops.rollback import RollbackPlan
from mulligan.tasks.loops.session_views import Event, SessionTranscript
from mulligan.tasks.loops.work_views import WorkDiff
from mulligan.tasks.ports.repositories import ChangedFile

#: The beginning of a commit's id, or all of it.
COMMIT_PATTERN = r"^[0-9a-f]{4,64}$"
Commit = Annotated[str, Field(pattern=COMMIT_PATTERN)]
#: The year 9999, for which there still is a date.
_LATEST = 253_370_764_800
#: Characters of the events on one page. One event is always on it.
_PAGE_LENGTH = 1_000_000


# -- checkpoints -----------------------------------------------------------------------------------


class CheckpointRow(BaseModel):
    """A commit on the branch of a loop."""

    commit: str
    #: The commit before it; null if it is the first one.
    parent: str | None
    at: float
    #: other: a commit that is no work of the loop.
    kind: CheckpointKind
    subject: str
    #: Of a merge: the item, and the attempt whose work it is.
    item: str | None
    job_id: str | None
    attempt: int | None
    #: Of a rollback: the attempts whose merges it undoes, as job/number, and other commits.
    undoes: list[str]
    #: Whether a later rollback undid it.
    undone: bool


class CheckpointList(BaseModel):
    #: The newest first. The last one is the commit with which the loop began.
    checkpoints: list[CheckpointRow]
    total: int
    #: Send it to get the next page; null on the last page.
    cursor: str | None


def checkpoint_row(each: Checkpoint, *, texts: bool) -> CheckpointRow:
    return CheckpointRow(
        commit=each.commit,
        parent=each.parent,
        at=each.at,
        kind=each.kind,
        subject=each.subject if texts else REDACTED,
        item=each.item or None,
        job_id=each.job_id or None,
        attempt=each.attempt or None,
        undoes=list(each.undoes),
        undone=each.undone,
    )


def checkpoint_page(
    found: Sequence[Checkpoint], *, start: int, limit: int, texts: bool
) -> CheckpointList:
    shown = found[start : start + limit]
    more = start + limit < len(found)
    return CheckpointList(
        checkpoints=[checkpoint_row(each, texts=texts) for each in shown],
        total=len(found),
        cursor=shown[-1].commit if more else None,
    )


# -- rollback --------------------------------------------------------------------------------------


class RollbackRequest(BaseModel):
    """What to go back to, or the item to undo."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"minProperties": 1})

    #: A checkpoint, or the beginning of its id. Everything that was merged after it is undone.
    to: Commit | None = None
    #: Only this item and the items that depend on it.
    test: ItemId | None = None
    #: Only say which items would run again.
    dry_run: bool = False

    @model_validator(mode="after")
    def _names_something(self) -> RollbackRequest:
        if self.to is None and self.test is None:
            raise ValueError("name a checkpoint (to) or an item (test)")
        return self


class RollbackRow(BaseModel):
    """A rollback that was requested and is not finished."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    to: str | None
    item: str | None
    by: str
    at: float


class RollbackPreview(BaseModel):
    """What a rollback would do. Nothing was changed."""

    dry_run: Literal[True] = True
    to: str | None
    item: str | None
    #: The items that would run again, in the order in which they were merged.
    reopens: list[str]
    #: The items whose earlier work, which a rollback undid, would be back.
    restores: list[str]
    #: The items that run now and depend on these: their attempts would end.
    interrupts: list[str]
    #: The merges that would be undone, the newest first.
    undoes: list[CheckpointRow]
    #: Commits of others that would be removed, and those that would be back.
    removes: list[CheckpointRow]
    returns: list[CheckpointRow]


def pending_rollback(loop: LoopRecord) -> RollbackRow | None:
    if not loop.rollback:
        return None
    return RollbackRow.model_validate(Rollback.model_validate_json(loop.rollback))


def rollback_preview(plan: RollbackPlan, *, texts: bool) -> RollbackPreview:
    def rows(commits: Sequence[Checkpoint]) -> list[CheckpointRow]:
        return [checkpoint_row(each, texts=texts) for each in commits]

    return RollbackPreview(
        to=plan.to,
        item=plan.item,
        reopens=plan.items,
        restores=plan.brought_back,
        interrupts=list(plan.interrupted),
        undoes=rows(plan.effects.undone),
        removes=rows(plan.effects.removed),
        returns=rows(plan.effects.returned),
    )


# -- changes ---------------------------------------------------------------------------------------


class FileChangeRow(BaseModel):
    """A file that was changed."""

    path: str
    kind: Literal["added", "changed", "deleted"]
    #: Lines; null if it is not text.
    added: int | None
    removed: int | None


class DiffDocument(BaseModel):
    """What an item or a checkpoint changed."""

    #: The commits before and after; null if nothing was done yet.
    old: str | None
    new: str | None
    #: Whether it is on the loop's branch.
    merged: bool
    #: The attempt whose work it is; null if that is not known.
    attempt: int | None
    files: list[FileChangeRow]
    #: As git shows it, cut after 500,000 bytes.
    diff: str


def diff_document(found: WorkDiff | None, *, texts: bool) -> DiffDocument:
    if found is None:
        return DiffDocument(old=None, new=None, merged=False, attempt=None, files=[], diff="")
    return DiffDocument(
        old=found.old,
        new=found.new,
        merged=found.merged,
        attempt=found.attempt or None,
        files=[_file_row(each, texts=texts) for each in found.changes],
        diff=found.text if texts else REDACTED,
    )


def _file_row(each: ChangedFile, *, texts: bool) -> FileChangeRow:
    # An agent chooses the names of files.
    path = each.path if texts else REDACTED
    return FileChangeRow(path=path, kind=each.kind, added=each.added, removed=each.removed)


# -- sessions --------------------------------------------------------------------------------------


class SessionEventRow(BaseModel):
    """What the agent of an attempt did or said."""

    #: From 1 on. Numbers may be missing in a very long transcript.
    seq: int
    at: Annotated[FiniteFloat, Field(ge=0, le=_LATEST)]
    #: action, observation, text, usage or note.
    kind: str
    #: Of an action and its observation: the tool's name.
    name: str = ""
    text: str = ""
    #: Connects an observation with its action.
    ref: str = ""
    #: Of an observation: whether the action failed.
    failed: bool = False
    #: The arguments of an action.
    data: dict[str, Any] = Field(default_factory=dict)
    #: All that the session has used so far.
    usage: Usage | None = None


class AgentSessionDocument(BaseModel):
    """The transcript of an attempt in a repository."""

    item: str
    job_id: str
    attempt: int
    events: list[SessionEventRow]
    #: Send it as `after` for what follows.
    last: int
    #: Whether there is more on another page.
    more: bool
    #: Whether the agent has ended: nothing will be added.
    ended: bool


def session_document(
    found: SessionTranscript, item: str, *, after: int, limit: int, texts: bool
) -> AgentSessionDocument:
    rows, size = list[SessionEventRow](), 0
    last, more = after, False
    for each in found.events:
        size += len(str(each.get("text", ""))) + len(str(each.get("data", "")))
        if len(rows) == limit or (rows and size > _PAGE_LENGTH):
            more = True
            break
        last = int(each["seq"])
        rows += session_rows([each], texts=texts)
    return AgentSessionDocument(
        item=item,
        job_id=found.job_id,
        attempt=found.attempt,
        events=rows,
        last=last,
        more=more,
        ended=found.has_ended and not more,
    )


def session_rows(events: Iterable[Event], *, texts: bool) -> Iterator[SessionEventRow]:
    """Yield events. Whoever can push to the repository can write a transcript: it may be wrong."""
    for each in events:
        try:
            row = SessionEventRow.model_validate(each)
            json.dumps(each, ensure_ascii=False).encode()
        except (ValidationError, ValueError, RecursionError):
            continue
        yield row if texts else _redacted(row)


def _redacted(row: SessionEventRow) -> SessionEventRow:
    return SessionEventRow(
        seq=row.seq,
        at=row.at,
        kind=row.kind if is_name(row.kind) else REDACTED,
        name=row.name if not row.name or is_name(row.name) else REDACTED,
        text=REDACTED,
        failed=row.failed,
        usage=row.usage,
    )
