"""Sessions in Redis: changed by compare-and-set, advanced under a lease, one per tree at a time.

See `workers.ledger.keys`. A process needs the lease to take a session's next step. A decision
(approve, reject) only compares and sets; a step in progress notices it when it saves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from secrets import token_hex
from typing import Any

from pydantic import ValidationError

from mulligan.policies.edits.session import EditDelta, EditSession
from mulligan.tasks.edits.advance import RetryLater
from mulligan.tasks.ports.errors import BadInput, LedgerUnavailable
from mulligan.workers.edits.sessions.started_steps import StartedSteps
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.connection.calls import RedisCalls
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stored.stored_bodies import describe, read_tolerantly
from mulligan.workers.settings.model import Settings

#: The maximum number of measured deltas and of sessions to keep.
DELTAS_CAP = 10_000
SESSIONS_CAP = 10_000
#: A lease that is not renewed for this long is lost.
LEASE_SECONDS = 30.0
_POLL = 0.05


@dataclass(frozen=True)
class StoredSession:
    """A session as it was read; saving compares ``text`` with the stored text."""

    session: EditSession
    text: str


@dataclass(frozen=True)
class UnreadableSession:
    """A session that another release wrote, or that is damaged: it is left to others."""

    id: str
    problem: str


class SessionStore:
    """All sessions of a fleet."""

    def __init__(
        self, calls: RedisCalls, *, prefix: str, retention: float, lease: float = LEASE_SECONDS
    ) -> None:
        self._calls = calls
        self._fleet = keys.fleet_prefix(prefix)
        self._retention_ms = int(retention * 1000)
        self._lease = lease

    # -- one session -----------------------------------------------------------------------------

    def create(self, session: EditSession) -> bool:
        """Store a new session. Return False if its name is taken."""
        index = keys.edit_sessions(self._fleet)
        self._index(index, session, session.created_at)
        self._calls.run("ZREMRANGEBYRANK", index, 0, -SESSIONS_CAP - 1)
        return self._put(session, "", session.model_dump_json())

    def _put(self, session: EditSession, old: str, new: str) -> bool:
        """Compare and set. Index an open session before, because a session that is not indexed is
        lost; and after, because ``at_work`` may have removed its name in between."""
        self._index_if_open(session)
        if not self._swap(keys.edit_session("", session.id), "state", old, new):
            return False
        self._index_if_open(session)
        return True

    def _index_if_open(self, session: EditSession) -> None:
        if session.phase != "done":
            self._index(keys.open_edit_sessions(self._fleet), session, session.updated_at)

    def _index(self, index: str, session: EditSession, at: datetime) -> None:
        self._calls.run("ZADD", index, "NX", at.timestamp(), session.id)

    def find(self, session_id: str) -> StoredSession | None:
        """Return a session, or None. Raises BadInput if it cannot be read."""
        found = self._read(session_id)
        if isinstance(found, UnreadableSession):
            raise BadInput(f"session {session_id} cannot be read by this release: {found.problem}")
        return found

    def _read(self, session_id: str) -> StoredSession | UnreadableSession | None:
        text = self._calls.run("HGET", keys.edit_session(self._fleet, session_id), "state")
        if not text:
            return None
        try:
            return StoredSession(EditSession.model_validate_json(text), text)
        except ValidationError as error:
            return UnreadableSession(session_id, describe(error))

    def get(self, session_id: str) -> StoredSession:
        """Return a session. Raises BadInput if it does not exist."""
        found = self.find(session_id)
        if found is None:
            raise BadInput(
                f"there is no session {session_id!r}; `mulligan edits review list --all` shows them"
            )
        return found

    def save(self, found: StoredSession, session: EditSession) -> StoredSession | None:
        """Replace a session. Return None if it has changed since it was read."""
        text = session.model_dump_json()
        if not self._put(session, found.text, text):
            return None
        name = keys.edit_session(self._fleet, session.id)
        if session.finished:
            self._calls.run("PEXPIRE", name, self._retention_ms)
        elif found.session.finished:
            self._calls.run("PERSIST", name)
        return StoredSession(session, text)

    # -- many ------------------------------------------------------------------------------------

    def recent(self, *, limit: int = 100) -> list[EditSession]:
        """Return sessions, newest first, without those that cannot be read."""
        return self.read_recent(limit=limit)[0]

    def read_recent(self, *, limit: int = 100) -> tuple[list[EditSession], list[UnreadableSession]]:
        """Return sessions, newest first, and those that cannot be read."""
        ids = self._calls.run("ZREVRANGE", keys.edit_sessions(self._fleet), 0, limit - 1)
        return self._sessions(ids)

    def at_work(self) -> list[EditSession]:
        """Return every session with a next step, and remove the others from the index."""
        name = keys.open_edit_sessions(self._fleet)
        ids = [str(each) for each in self._calls.run("ZRANGE", name, 0, -1)]
        found = {session.id: session for session in self._sessions(ids)[0]}
        working = {name: each for name, each in found.items() if each.phase != "done"}
        for session_id in ids:
            # Read again: an approval may have given it a next step meanwhile.
            if session_id not in working and not self._is_open(session_id):
                self._calls.run("ZREM", name, session_id)
        return list(working.values())

    def _is_open(self, session_id: str) -> bool:
        """Whether a session has a next step. One that cannot be read may have one."""
        found = self._read(session_id)
        if isinstance(found, UnreadableSession):
            return True
        return found is not None and found.session.phase != "done"

    def _sessions(self, ids: Sequence[str]) -> tuple[list[EditSession], list[UnreadableSession]]:
        found = [self._read(str(each)) for each in ids]
        sessions = [each.session for each in found if isinstance(each, StoredSession)]
        return sessions, [each for each in found if isinstance(each, UnreadableSession)]

    # -- measured deltas -------------------------------------------------------------------------

    def add_delta(self, delta: EditDelta) -> None:
        """Add to the history. Adding twice is harmless: ``deltas`` lists each edit once."""
        name = keys.edit_deltas(self._fleet)
        self._calls.run("LPUSH", name, delta.model_dump_json())
        self._calls.run("LTRIM", name, 0, DELTAS_CAP - 1)

    def deltas(self, *, limit: int = 1000) -> list[EditDelta]:
        """Return each edit's last measured effect with its outcome, newest first."""
        texts = self._calls.run("LRANGE", keys.edit_deltas(self._fleet), 0, -1)
        found: dict[tuple[str, str], EditDelta] = {}
        for text in texts:
            delta = read_tolerantly(EditDelta, text).value
            if delta is not None:
                found.setdefault((delta.session, delta.edit_id), delta)
        return sorted(found.values(), key=lambda delta: delta.at, reverse=True)[:limit]

    # -- leases ----------------------------------------------------------------------------------

    @contextmanager
    def leased(
        self, session_id: str, *, patience: float = 0.0, by_force: bool = False
    ) -> Iterator[SessionLease]:
        """Hold the session's lease. Raises RetryLater if another process still holds it after
        ``patience`` seconds. ``by_force``: take it anyway, because that process is dead."""
        lease = SessionLease(self, session_id, token_hex(8), self._lease)
        deadline = time.monotonic() + patience
        while not lease.step("take", force=by_force):
            if time.monotonic() >= deadline:
                raise RetryLater(f"session {session_id} is being worked on by another process")
            time.sleep(_POLL)
        with lease.renewed():
            yield lease

    def is_leased(self, session_id: str) -> bool:
        return bool(self.lease_step("look", session_id)[0] == "held")

    def lease_step(self, verb: str, session_id: str, **request: Any) -> list[Any]:
        key = keys.edit_session("", session_id)
        return self._calls.one("lease", self._fleet, verb=verb, key=key, **request)

    def started_steps(self, session_id: str) -> StartedSteps:
        """Return the note of the step that a process works on."""
        return StartedSteps(self._calls, keys.edit_session(self._fleet, session_id))

    def alert_quarantine(self, session_id: str, edit_id: str) -> None:
        """Let the subscribers of escalations be told about an edit. Repeating it is harmless."""
        name = f"edit:{session_id}/{edit_id}"
        key = keys.alert(self._fleet, name)
        about = {"session": session_id, "edit": edit_id, "since_alert": 1}
        self._calls.run("HSET", key, *(part for pair in about.items() for part in pair))
        self._calls.run("PEXPIRE", key, self._retention_ms)
        self._calls.run("ZADD", keys.due_alerts(self._fleet), self._calls.now() * 1000, f"e:{name}")

    # -- trees -----------------------------------------------------------------------------------

    def take_tree(self, session: EditSession) -> str | None:
        """Reserve the tree for the session. Return the session that has it, or None."""
        while True:
            owner = str(self._calls.run("HGET", keys.edit_trees(self._fleet), _tree(session)) or "")
            if owner == session.id:
                return None
            if owner and self._is_open(owner):
                return owner
            if self._swap(keys.edit_trees(""), _tree(session), owner, session.id):
                return None

    def release_tree(self, session: EditSession) -> None:
        self._swap(keys.edit_trees(""), _tree(session), session.id, "")

    def _swap(self, key: str, field: str, old: str, new: str) -> bool:
        answer = self._calls.one("swap", self._fleet, key=key, field=field, old=old, new=new)
        return bool(answer[0] == "swapped")


@dataclass(frozen=True)
class SessionLease:
    """The right to take a session's steps, checked right before anything is written."""

    sessions: SessionStore
    session_id: str
    token: str
    seconds: float

    def step(self, verb: str, *, force: bool = False) -> bool:
        """Take, renew or release the lease. Return whether it is, or was, ours."""
        answer = self.sessions.lease_step(
            verb, self.session_id, token=self.token, lease_ms=self.seconds * 1000, force=force
        )
        return bool(answer[0] == "ours")

    def check(self) -> None:
        """Raise RetryLater if the lease was lost."""
        if not self.step("renew"):
            raise RetryLater(f"session {self.session_id} was taken over by another process")

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the lease while the block lasts, then release it."""
        over = threading.Event()

        def renew() -> None:
            while not over.wait(self.seconds / 3):
                with suppress(LedgerUnavailable):  # ``check`` finds out whether it is lost
                    if not self.step("renew"):
                        return

        thread = threading.Thread(target=renew, name=f"lease-{self.session_id}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(self.seconds)
            self.step("release")


def _tree(session: EditSession) -> str:
    return f"{session.host}:{session.root}"


def session_store(settings: Settings, ledger: RedisLedger) -> SessionStore:
    return SessionStore(
        ledger.calls, prefix=settings.key_prefix, retention=settings.cycle_retention
    )


def find_ready(
    sessions: SessionStore, all_ended: Callable[[Sequence[str]], bool]
) -> list[EditSession]:
    """Return the queued sessions whose next step can be taken now. ``all_ended``: whether all of
    these jobs have ended."""
    return [
        session
        for session in sessions.at_work()
        if not session.inline and not sessions.is_leased(session.id) and all_ended(session.jobs)
    ]
