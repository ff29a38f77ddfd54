"""What people decide about a session: approve, reject, roll back."""

from __future__ import annotations

from datetime import datetime

from mulligan.policies.edit_session import EditRecord, Session
from mulligan.tasks.edit_session import EditBench, outcome_of
from mulligan.tasks.ports import BadInput


def approve(
    session: Session, edit_id: str, *, by: str, now: datetime, note: str | None = None
) -> Session:
    """Let an edit that waits be applied. It still has to pass the gate, if there is one."""
    index = _reviewable(session, edit_id, "approved")
    decided = {"decided_by": by, "decided_at": now, "note": note, "approved_by": by}
    phase = "ready" if session.phase == "done" else session.phase
    return session.moved(phase=phase, updated_at=now).recorded(index, outcome=None, **decided)


def reject(session: Session, edit_id: str, *, by: str, now: datetime, note: str) -> Session:
    """Decide that an edit that waits is not applied."""
    index = _reviewable(session, edit_id, "rejected")
    outcome = outcome_of(session.records[index].edit, "rejected_by_user", "rejected", note)
    decided = {"decided_by": by, "decided_at": now, "note": note}
    return session.moved(updated_at=now).recorded(index, outcome=outcome, **decided)


def _reviewable(session: Session, edit_id: str, what: str) -> int:
    index = session.index(edit_id)
    if index is None:
        known = ", ".join(record.edit.id for record in session.records[:20])
        raise BadInput(f"session {session.id} has no edit {edit_id!r}, only {known}")
    record = session.records[index]
    if not record.reviewable:
        done = record.outcome
        state = "at work, or about to be" if done is None else f"{done.status} ({done.reason})"
        raise BadInput(f"edit {edit_id} is {state}: only what waits for review can be {what}")
    return index


def roll_back(
    bench: EditBench, session: Session, edit_id: str | None, *, by: str, note: str | None = None
) -> tuple[Session, str]:
    """Take back an edit, or all of the session; the session and what was done, for people.

    With the whole session, what was still to be done is not done any more. EditConflict if later
    changes are in the way: nothing was taken back then.
    """
    now = bench.now()
    if edit_id is None:
        text = bench.tree.rollback_session(session.id) if _any_written(session) else _NOTHING
        for index, record in enumerate(session.records):
            session = _undone(session, index, record, whole=True, by=by, now=now, note=note)
        ended = session.moved(phase="done", at=None, trial=None)
    else:
        at = session.index(edit_id)
        if at is None or (session.records[at].outcome is None and at != session.at):
            raise BadInput(f"session {session.id} has not applied an edit {edit_id!r}")
        text = bench.tree.rollback_edit(session.id, edit_id)
        ended = _undone(session, at, session.records[at], whole=False, by=by, now=now, note=note)
        if at == session.at:
            ended = ended.moved(phase="ready", at=None, trial=None)
    return ended.moved(updated_at=now), text


_NOTHING = "nothing was applied: there is nothing to roll back"


def _any_written(session: Session) -> bool:
    """Whether the tree knows the session at all."""
    previewed = session.trial is not None and session.trial.held is not None
    at_work = session.at is not None and not previewed
    return at_work or any(r.checkpoint is not None for r in session.records)


def _undone(
    session: Session,
    index: int,
    record: EditRecord,
    *,
    whole: bool,
    by: str,
    now: datetime,
    note: str | None,
) -> Session:
    decided = {"decided_by": by, "decided_at": now, "note": note}
    done = record.outcome
    previewed = session.trial is not None and session.trial.held is not None
    at_work = index == session.at and not previewed
    if (done is not None and done.status == "applied") or at_work:
        base = done or outcome_of(record.edit, "rolled_back", "rolled_back")
        update = {"status": "rolled_back", "reason": "rolled_back", "error": note}
        return session.recorded(index, outcome=base.model_copy(update=update), **decided)
    if whole and (done is None or record.reviewable):
        text = "the session was rolled back"
        outcome = outcome_of(record.edit, "rejected_by_user", "rejected", text)
        return session.recorded(index, outcome=outcome, **decided)
    return session
