"""Which edit a person means: `EDIT`, `SESSION/EDIT` or `SESSION`."""

from __future__ import annotations

from collections.abc import Callable

from mulligan.policies.edits.session import EditRecord, EditSession
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.edits.sessions.session_store import SessionStore

#: How far back a name without its session is looked for.
_LOOKED_AT = 1000


def waiting(sessions: SessionStore, name: str) -> tuple[str, str]:
    """The session and the edit that waits for a decision."""
    if "/" in name:
        return _both(sessions, name)
    return _only(sessions, name, lambda record: record.reviewable, "waits for review")


def any_edit(sessions: SessionStore, name: str) -> tuple[str, str]:
    """The session and the edit, whatever its state: the one that waits, or else the newest."""
    if "/" in name:
        return _both(sessions, name)
    found = _named(sessions, name)
    if not found:
        raise BadInput(f"no edit {name!r}; see `mulligan edits review list --all`")
    best = next(((s, r) for s, r in found if r.reviewable), found[0])
    return best[0].id, name


def applied(sessions: SessionStore, name: str) -> tuple[str, str | None]:
    """What can be rolled back: a session, or an edit of one."""
    if "/" in name:
        return _both(sessions, name)
    if sessions.find(name) is not None:
        return name, None
    return _only(sessions, name, lambda record: record.checkpoint is not None, "was applied")


def _both(sessions: SessionStore, name: str) -> tuple[str, str]:
    session_id, _, edit_id = name.partition("/")
    session = sessions.get(session_id).session
    if session.index(edit_id) is None:
        known = ", ".join(record.edit.id for record in session.records[:20])
        raise BadInput(f"session {session_id} has no edit {edit_id!r}; it has {known}")
    return session_id, edit_id


def _named(sessions: SessionStore, name: str) -> list[tuple[EditSession, EditRecord]]:
    return [
        (session, record)
        for session in sessions.recent(limit=_LOOKED_AT)
        for record in session.records
        if record.edit.id == name
    ]


def _only(
    sessions: SessionStore, name: str, fits: Callable[[EditRecord], bool], what: str
) -> tuple[str, str]:
    named = _named(sessions, name)
    found = [session.id for session, record in named if fits(record)]
    if len(found) > 1:
        raise BadInput(
            f"an edit {name} {what} in several sessions; choose one,"
            f" such as {found[0]}/{name} (others: {', '.join(found[1:])})"
        )
    if found:
        return found[0], name
    if named:
        session, record = named[0]
        done = record.outcome
        state = f"{done.status} ({done.reason})" if done else "pending"
        raise BadInput(f"edit {name} of session {session.id} is {state}: none of that name {what}")
    raise BadInput(f"no session or edit {name!r}; see `mulligan edits review list --all`")
