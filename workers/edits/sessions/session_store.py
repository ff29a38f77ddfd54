"""Sessions in Redis: changed by compare-and-set, worked on under a lease, one at work on a tree.

See `workers.ledger.keys`. Whoever wants a session's next step takes its lease first; whoever
only decides (approve, reject) compares and sets, and the step at work notices when it saves.
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
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.calls import RedisCalls

#: Measured deltas on record, and sessions.
DELTAS_CAP = 10_000
SESSIONS_CAP = 10_000
#: Who says nothing for this long has lost the session.
LEASE_SECONDS = 30.0
_POLL = 0.05


@dataclass(frozen=True)
class StoredSession:
    """A session as it is on record; ``text`` is what it is compared with when it is saved."""

    session: EditSession
    text: str


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
        """Put a new session on record; whether there was none of that name."""
        self._index(keys.edit_sessions(self._fleet), session, session.created_at)
        self._forget_old()
        return self._put(session, "", _text(session))

    def _put(self, session: EditSession, old: str, new: str) -> bool:
        """Compare and set. Indexed before, because a session without its name is lost and a name
        without a session is not; and after, because who cleans up may have come between."""
        if session.phase != "done":
            self._index(keys.open_edit_sessions(self._fleet), session, session.updated_at)
        if not self._swap(keys.edit_session("", session.id), "state", old, new):
            return False
        if session.phase != "done":
            self._index(keys.open_edit_sessions(self._fleet), session, session.updated_at)
        return True

    def _index(self, index: str, session: EditSession, at: datetime) -> None:
        self._calls.run("ZADD", index, "NX", at.timestamp(), session.id)

    def find(self, session_id: str) -> StoredSession | None:
        """A session, or None. BadInput if another version wrote it."""
        text = self._calls.run("HGET", keys.edit_session(self._fleet, session_id), "state")
        if not text:
            return None
        try:
            return StoredSession(EditSession.model_validate_json(text), text)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in problem["loc"])
            raise BadInput(
                f"session {session_id} cannot be read: {place}: {problem['msg']}"
            ) from error

    def get(self, session_id: str) -> StoredSession:
        """A session, or BadInput that names the nearest one."""
        found = self.find(session_id)
        if found is None:
            raise BadInput(
                f"there is no session {session_id!r}; `mulligan edits review list --all` shows them"
            )
        return found

    def save(self, found: StoredSession, session: EditSession) -> StoredSession | None:
        """Replace a session that nobody changed meanwhile; None if somebody did."""
        text = _text(session)
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
        """The newest first."""
        return self._sessions(
            self._calls.run("ZREVRANGE", keys.edit_sessions(self._fleet), 0, limit - 1)
        )

    def at_work(self) -> list[EditSession]:
        """Every session that has a next step."""
        name = keys.open_edit_sessions(self._fleet)
        ids = [str(each) for each in self._calls.run("ZRANGE", name, 0, -1)]
        found = {session.id: session for session in self._sessions(ids)}
        working = {name: each for name, each in found.items() if each.phase != "done"}
        for session_id in ids:
            # Looked at again: a decision may have come meanwhile and given it a next step.
            if session_id not in working and self._rests(session_id):
                self._calls.run("ZREM", name, session_id)
        return list(working.values())

    def _rests(self, session_id: str) -> bool:
        found = self.find(session_id)
        return found is None or found.session.phase == "done"

    def _sessions(self, ids: Sequence[str]) -> list[EditSession]:
        found = (self.find(str(each)) for each in ids)
        return [each.session for each in found if each is not None]

    def _forget_old(self) -> None:
        """Names of sessions whose retention ended, and of the oldest beyond the cap."""
        self._calls.run("ZREMRANGEBYRANK", keys.edit_sessions(self._fleet), 0, -SESSIONS_CAP - 1)

    # -- measured deltas -------------------------------------------------------------------------

    def note(self, delta: EditDelta) -> None:
        """Add to the history. The same effect again is known by its session and edit."""
        name = keys.edit_deltas(self._fleet)
        self._calls.run("LPUSH", name, delta.model_dump_json())
        self._calls.run("LTRIM", name, 0, DELTAS_CAP - 1)

    def deltas(self, *, limit: int = 1000) -> list[EditDelta]:
        """The newest first, each edit once: as it was measured last, with what became of it."""
        texts = self._calls.run("LRANGE", keys.edit_deltas(self._fleet), 0, -1)
        found: dict[tuple[str, str], EditDelta] = {}
        for text in texts:
            delta = EditDelta.model_validate_json(text)
            found.setdefault((delta.session, delta.edit_id), delta)
        return sorted(found.values(), key=lambda delta: delta.at, reverse=True)[:limit]

    # -- who works -------------------------------------------------------------------------------

    @contextmanager
    def leased(
        self, session_id: str, *, patience: float = 0.0, by_force: bool = False
    ) -> Iterator[SessionLease]:
        """Be the only one who takes this session's steps. RetryLater if another process still does
        after ``patience`` seconds. ``by_force``: the caller knows that this process is dead."""
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

    # -- whose a tree is -------------------------------------------------------------------------

    def take_tree(self, session: EditSession) -> str | None:
        """Make a tree the session's own until it lets go; None, or the session that has it."""
        while True:
            owner = str(self._calls.run("HGET", keys.edit_trees(self._fleet), _tree(session)) or "")
            if owner == session.id:
                return None
            if owner and self._still_needs(owner):
                return owner
            if self._swap(keys.edit_trees(""), _tree(session), owner, session.id):
                return None

    def let_go(self, session: EditSession) -> None:
        self._swap(keys.edit_trees(""), _tree(session), session.id, "")

    def _still_needs(self, session_id: str) -> bool:
        found = self.find(session_id)
        return found is not None and found.session.phase != "done"

    def _swap(self, key: str, field: str, old: str, new: str) -> bool:
        answer: list[Any] = self._calls.one(
            "swap", self._fleet, key=key, field=field, old=old, new=new, told=None
        )
        return bool(answer[0] == "swapped")


@dataclass(frozen=True)
class SessionLease:
    """The right to take a session's steps; checked again right before anything is written."""

    sessions: SessionStore
    session_id: str
    token: str
    seconds: float

    def step(self, verb: str, *, force: bool = False) -> bool:
        """Take, renew or release the lease; whether it is, or was, ours."""
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
                with suppress(LedgerUnavailable):  # whether it is lost shows when it is checked
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


def _text(session: EditSession) -> str:
    return session.model_dump_json()


def hints(sessions: SessionStore, have_ended: Callable[[Sequence[str]], bool]) -> list[EditSession]:
    """The queued sessions whose next step can be taken now; ``have_ended`` asks about jobs."""
    return [
        session
        for session in sessions.at_work()
        if not session.inline and not sessions.is_leased(session.id) and have_ended(session.jobs)
    ]
