"""Find the edit that a person names: `EDIT`, `SESSION/EDIT` or `SESSION`."""

from __future__ import annotations

from collections.abc import Callable

from mulligan.policies.edits.session import EditRecord, EditSession
from mulligan.tasks.edits.decide import find_edit
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.edits.sessions.session_store import SessionStore

#: The number of sessions to search for an edit named without its session.
_SESSIONS_SEARCHED = 1000


def find_waiting(sessions: SessionStore, name: str) -> tuple[str, str]:
    """Return the session and the edit that waits for a decision."""
    if "/" in name:
        return _split(sessions, name)
    return _find_one(sessions, name, lambda record: record.reviewable, "waits for review")


def find_any(sessions: SessionStore, name: str) -> tuple[str, str]:
    """Return the session and the edit in any state: the one that waits, or else the newest."""
    if "/" in name:
        return _split(sessions, name)
    found = _search(sessions, name)
    if not found:
        raise BadInput(f"no edit {name!r}; see `mulligan edits review list --all`")
    best = next(((s, r) for s, r in found if r.reviewable), found[0])
    return best[0].id, name


def find_applied(sessions: SessionStore, name: str) -> tuple[str, str | None]:
    """Return what can be rolled back: a session, or a session and an edit of it."""
    if "/" in name:
        return _split(sessions, name)
    if sessions.find(name) is not None:
        return name, None
    return _find_one(sessions, name, lambda record: record.checkpoint is not None, "was applied")


def _split(sessions: SessionStore, name: str) -> tuple[str, str]:
    session_id, _, edit_id = name.partition("/")
    find_edit(sessions.get(session_id).session, edit_id)
    return session_id, edit_id


def _search(sessions: SessionStore, name: str) -> list[tuple[EditSession, EditRecord]]:
    return [
        (session, record)
        for session in sessions.recent(limit=_SESSIONS_SEARCHED)
        for record in session.records
        if record.edit.id == name
    ]


def _find_one(
    sessions: SessionStore, name: str, matches: Callable[[EditRecord], bool], verb: str
) -> tuple[str, str]:
    named = _search(sessions, name)
    found = [session.id for session, record in named if matches(record)]
    if len(found) > 1:
        raise BadInput(
            f"an edit {name} {verb} in several sessions; choose one,"
            f" such as {found[0]}/{name} (others: {', '.join(found[1:])})"
        )
    if found:
        return found[0], name
    if named:
        session, record = named[0]
        done = record.outcome
        state = f"{done.status} ({done.reason})" if done else "pending"
        raise BadInput(f"edit {name} of session {session.id} is {state}: none of that name {verb}")
    raise BadInput(f"no session or edit {name!r}; see `mulligan edits review list --all`")
