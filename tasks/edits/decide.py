"""Decisions about a session: approve, reject, roll back, and end it if it cannot continue."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from mulligan.policies.edits.edit import EditOutcome, EditReason, EditStatus
from mulligan.policies.edits.session import WITHDRAWN, EditRecord, EditSession
from mulligan.tasks.edits.advance import EditContextPorts, outcome_of, roll_back_rejected
from mulligan.tasks.ports.errors import BadInput

_NOTHING = "nothing was applied: there is nothing to roll back"


def approve(
    session: EditSession, edit_id: str, *, by: str, now: datetime, note: str | None = None
) -> EditSession:
    """Let an edit that waits be applied. It still has to pass the gate, if there is one."""
    index = _find_waiting(session, edit_id, "approved")
    held = session.records[index].outcome
    decided = {"decided_by": by, "decided_at": now, "note": note, "approved_by": by, "held": held}
    phase = "ready" if session.phase == "done" else session.phase
    return session.moved(phase=phase, updated_at=now).recorded(index, outcome=None, **decided)


def reject(session: EditSession, edit_id: str, *, by: str, now: datetime, note: str) -> EditSession:
    """Reject a waiting edit. ``note`` is the reason and is required."""
    index = _find_waiting(session, edit_id, "rejected")
    if not note.strip():
        raise BadInput.at("note", "say why it is rejected")
    outcome = _new_outcome(session.records[index], "rejected_by_user", "rejected", note)
    decided = {"decided_by": by, "decided_at": now, "note": note}
    return session.moved(updated_at=now).recorded(index, outcome=outcome, **decided)


def find_edit(session: EditSession, edit_id: str) -> int:
    """Return the index of an edit. Raises BadInput if the session does not have it."""
    index = session.index(edit_id)
    if index is None:
        known = ", ".join(record.edit.id for record in session.records[:20])
        raise BadInput(f"session {session.id} has no edit {edit_id!r}; it has {known}")
    return index


def _find_waiting(session: EditSession, edit_id: str, verb: str) -> int:
    index = find_edit(session, edit_id)
    record = session.records[index]
    if not record.reviewable:
        done = record.outcome
        state = "pending or in progress" if done is None else f"{done.status} ({done.reason})"
        raise BadInput(
            f"edit {edit_id} is {state}: only an edit that waits for review can be {verb}"
        )
    return index


def _new_outcome(
    record: EditRecord, status: EditStatus, reason: EditReason, error: str | None
) -> EditOutcome:
    """Return a new outcome of an edit with the same measured effect."""
    known = record.outcome or record.held or outcome_of(record.edit, status, reason)
    return known.model_copy(update={"status": status, "reason": reason, "error": error})


# -- rolling back --------------------------------------------------------------------------------


def roll_back(
    context: EditContextPorts,
    session: EditSession,
    edit_id: str | None,
    *,
    by: str,
    note: str | None = None,
) -> tuple[EditSession, str]:
    """Roll back an edit, or the whole session and withdraw its pending edits. Return the session
    and a text for people.

    Raises EditConflict, and rolls nothing back, if later changes conflict.
    """
    decided = {"decided_by": by, "decided_at": context.now(), "note": note}
    if edit_id is None:
        text = _NOTHING if session.untouched else context.tree.rollback_session(session.id)
        return _undo_all(session, decided), text
    at = session.index(edit_id)
    if at is None or (session.records[at].checkpoint is None and at != session.written):
        raise BadInput(f"session {session.id} has not applied an edit {edit_id!r}")
    text = context.tree.rollback_edit(session.id, edit_id)
    ended = _undo(session, at, decided)
    if at == session.at:
        ended = ended.moved(phase="ready", at=None, trial=None)
    return ended.moved(updated_at=context.now()), text


def abandon(
    session: EditSession, *, by: str, now: datetime, note: str | None = None
) -> tuple[EditSession, str]:
    """End a session that has written nothing: no tree is needed."""
    decided = {"decided_by": by, "decided_at": now, "note": note}
    return _undo_all(session, decided), _NOTHING


def _undo_all(session: EditSession, decided: dict[str, Any]) -> EditSession:
    ended = session
    for index, record in enumerate(session.records):
        if _is_written(session, index):
            ended = _undo(ended, index, decided)
        elif record.outcome is None or record.reviewable:
            outcome = _new_outcome(record, "rejected_by_user", "rejected", WITHDRAWN)
            ended = ended.recorded(index, outcome=outcome, **decided)
    return ended.moved(phase="done", at=None, trial=None, updated_at=decided["decided_at"])


def _undo(session: EditSession, index: int, decided: dict[str, Any]) -> EditSession:
    if not _is_written(session, index):
        return session
    outcome = _new_outcome(session.records[index], "rolled_back", "rolled_back", decided["note"])
    return session.recorded(index, outcome=outcome, **decided)


def _is_written(session: EditSession, index: int) -> bool:
    done = session.records[index].outcome
    return index == session.written or (done is not None and done.status == "applied")


# -- quarantine -----------------------------------------------------------------------------------

#: Processes that may die at one step of an edit before it is quarantined.
MAX_DEATHS = 2


def step_of(session: EditSession) -> str:
    """Return the name of the session's next step: its phase, and the edit it is about."""
    at = session.open if session.at is None else session.at
    return session.phase if at is None else f"{session.phase} {session.records[at].edit.id}"


def quarantine(context: EditContextPorts, session: EditSession, deaths: int) -> EditSession:
    """Take the edit of the next step out of the tree and hold it for a person, because processes
    died at it. If they also died at taking it out, only hold it."""
    at = session.open if session.at is None else session.at
    if at is None:
        return session.moved(phase="done", updated_at=context.now())
    why = f"{deaths} processes in a row were killed or crashed at it; approve it to try again"
    undo = session.written is not None and deaths < 2 * MAX_DEATHS
    if session.written is not None and not undo:
        why += "; it may still be in the tree: roll it back"
    held = _new_outcome(session.records[at], "pending_review", "quarantined", why)
    session = session.recorded(at, approved_by=None)
    if undo:
        return roll_back_rejected(context, session, at, held)
    return session.decided(at, held).moved(updated_at=context.now())


# -- giving up -----------------------------------------------------------------------------------


def give_up(context: EditContextPorts, session: EditSession, why: str) -> EditSession:
    """End a session that cannot go on here: roll back the edit in progress, and let the others wait
    for a person, with their measured effects. Raises what prevents the rollback."""
    at = session.written
    if at is not None:
        stuck = outcome_of(session.records[at].edit, "rejected_by_gate", "no_scorer", why)
        session = roll_back_rejected(context, session, at, stuck)
    for index, record in enumerate(session.records):
        if record.outcome is None:
            held = _new_outcome(record, "pending_review", "no_scorer", why)
            session = session.recorded(index, outcome=held, approved_by=None)
    return session.moved(phase="done", at=None, trial=None, updated_at=context.now())
