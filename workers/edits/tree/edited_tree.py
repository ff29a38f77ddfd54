"""The one writer of a tree: edits and rollbacks, each as a whole, also if the process is killed.

An operation goes: lock, settle what a dead process left, compare the files with what the changes
were computed from, carry it out (``operating.py``), make its commit. All that is known about a tree
is in ``<home>/edits/<digest of the root>/``:

    lock, holder.json   who writes          journal.jsonl   what was done, and what is being done
    root                which tree it is    git             contents and commits
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mulligan.tasks.ports.appliers import MAX_BYTES, EditRefused, FileChange
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.edits.tree import confined_paths, write_changes
from mulligan.workers.edits.tree import undo as undoing
from mulligan.workers.edits.tree.confined_paths import FileSnapshot
from mulligan.workers.edits.tree.journal import (
    FileStep,
    Image,
    Journal,
    Kind,
    Operation,
    TreeFault,
    in_force,
)
from mulligan.workers.edits.tree.operator import OperationRunner, RecoveredOperation
from mulligan.workers.edits.tree.shadow_repository import ShadowRepository, blob_id
from mulligan.workers.edits.tree.tree_lock import HeldLock, LockLost, TreeLock
from mulligan.workers.settings.config_file import config_place

log = logging.getLogger(__name__)

#: Called inside the lock, right before the first file is written: what it raises stops everything.
Check = Callable[[], None]
_ID = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The tree as one operation left it."""

    number: int
    kind: Kind
    #: None while its commit is still to be made.
    commit: str | None
    session_id: str | None
    edit_id: str | None
    tier: str | None
    #: Seconds since 1970.
    at: float
    paths: tuple[str, ...]
    #: The checkpoints that a rollback took back.
    undoes: tuple[int, ...]
    #: Whether its effect stands.
    state: Literal["applied", "rolled_back"]


@dataclass(frozen=True, kw_only=True)
class Rollback:
    """What a rollback did."""

    #: None: there was nothing to take back.
    checkpoint: Checkpoint | None
    #: The files that it changed.
    paths: tuple[str, ...]
    #: For people.
    text: str


class EditedTree:
    """A root that edits are applied to. For one thread at a time."""

    def __init__(
        self,
        root: Path,
        home: Path,
        *,
        max_bytes: int = MAX_BYTES,
        timeout: float = 30.0,
        step: Callable[[str], None] | None = None,
    ) -> None:
        """``timeout``: how long to wait for somebody else's lock; 0 is not at all. ``step`` is told
        the name of each step (``operating.STEPS``) as it is passed."""
        if not root.is_dir():
            raise BadInput(f"{root}: is not a folder: give the root of the files to edit")
        self.root = root.resolve()
        home = home.resolve()
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        #: Where all that is known about this tree is kept.
        self.state = home / "edits" / digest
        self._own = home if self.root in home.parents else home / "edits"
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._step = step or (lambda _: None)
        self._lock = TreeLock(self.root, self.state)
        self._journal = Journal(self.state / "journal.jsonl")
        self._repository = ShadowRepository(self.state / "git")
        self._operator = OperationRunner(
            self.root, self._journal, self._repository, max_bytes=max_bytes, step=self._step
        )
        self._hold: HeldLock | None = None

    def apply(
        self,
        edit_id: str,
        session_id: str,
        tier: str,
        changes: Sequence[FileChange],
        *,
        check: Check | None = None,
    ) -> Checkpoint:
        """Write all changes of an edit, or raise and write none. The same edit again writes nothing
        and gives the checkpoint that it has."""
        _refuse_bad_names(edit_id, session_id, tier)
        changes = [
            replace(change, path=confined_paths.normalize(change.path)) for change in changes
        ]
        self._refuse_own(changes)
        with self.held(session_id):
            operation = self._same(edit_id, session_id, changes)
            if operation is None:
                seen = write_changes.check(self.root, changes, max_bytes=self._max_bytes)
                steps = [s for c in changes if (s := _step(c, seen[c.path])).before != s.after]
                if not steps:
                    raise EditRefused(f"edit {edit_id}: changes nothing")
                named = {"edit_id": edit_id, "session_id": session_id, "tier": tier}
                operation = self._perform("edit", steps, changes, check, **named)
        return self._checkpoint(operation)

    def rollback_edit(
        self, edit_id: str, session_id: str | None = None, *, check: Check | None = None
    ) -> Rollback:
        """Take one edit back. Raises RollbackConflict if its lines changed since, BadInput if there
        is no such edit, or one in several sessions and none is named."""
        with self.held(session_id or f"rollback of {edit_id}"):
            sessions = (session_id,) if session_id else None
            known = self._edits(edit_id=edit_id, sessions=sessions)
            if not known:
                raise BadInput(f"{self.root}: no edit {edit_id} was applied: see the history")
            standing = self._standing(known)
            found = sorted({str(o.session_id) for o in standing})
            if len(found) > 1:
                raise BadInput(
                    f"edit {edit_id} was applied in the sessions {', '.join(found)}: name one"
                )
            names = {"edit_id": edit_id, "session_id": (standing or known)[-1].session_id}
            what = f"edit {edit_id} of session {names['session_id']}"
            done = self._take_back(standing, check, **names)
        return self._told(what, done)

    def rollback_session(self, session_id: str, *, check: Check | None = None) -> Rollback:
        """Take back the edits of a session, the last first: all that stand, or none."""
        with self.held(session_id):
            known = self._edits(sessions=(session_id,))
            if not known:
                raise BadInput(f"{self.root}: no edit of session {session_id} was applied")
            what = f"session {session_id}"
            done = self._take_back(self._standing(known), check, session_id=session_id)
        return self._told(what, done)

    def rollback_to(self, checkpoint: Checkpoint | int, *, check: Check | None = None) -> Rollback:
        """Take back everything after a checkpoint, rollbacks too; 0 is before the first edit."""
        number = _number(checkpoint)
        with self.held(f"rollback to {number}"):
            known = list(self._journal.done.values())
            if number and number not in self._journal.done:
                raise BadInput(f"{self.root}: there is no checkpoint {number}: see the history")
            then = in_force(o for o in known if o.number <= number)
            moved = {o.number for o in self._standing(self._edits())} ^ {
                o.number for o in self._edits() if o.number in then
            }
            later = [o for o in known if o.number > number] if moved else []
            what = f"everything after checkpoint {number}"
            done = self._take_back(later, check)
        return self._told(what, done)

    def recover(self) -> RecoveredOperation | None:
        """Settle what a dead process left, and make the commits that it did not make. Every other
        use does so first."""
        with self._locked("recovery") as recovered:
            return recovered

    def history(self) -> list[Checkpoint]:
        """Every checkpoint, the oldest first. Waits for nobody."""
        self._journal.load()
        standing = in_force(self._journal.done.values())
        return [self._checkpoint(o, standing) for o in self._journal.done.values()]

    def diff(self, checkpoint: Checkpoint | int) -> bytes:
        """What an operation changed, as a diff."""
        number = _number(checkpoint)
        self._journal.load()
        commit = self._journal.commits.get(number)
        if commit is None:
            raise BadInput(f"{self.root}: there is no commit of checkpoint {number}")
        return self._repository.diff(commit)

    @contextmanager
    def held(self, session_id: str) -> Iterator[None]:
        """Hold the tree for several operations, so that no other session comes between. Their
        commits are made together at the end. Raises TreeBusy with the holder."""
        if self._hold is None:
            with self._locked(session_id):
                yield
        else:
            self._hold.check()
            yield

    # -- the lock --------------------------------------------------------------------------------

    @contextmanager
    def _locked(self, session_id: str) -> Iterator[RecoveredOperation | None]:
        try:
            self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.state / "root").write_bytes(os.fsencode(self.root) + b"\n")
        except OSError as error:
            raise EditRefused(f"{self.state}: {error.strerror or error}") from error
        with self._lock.held(session_id, timeout=self._timeout) as hold:
            self._repository.prepare()
            self._journal.load()
            left = self._journal.open
            recovered = None if left is None else self._operator.settle(left)
            self._commit()
            self._hold = hold
            try:
                yield recovered
            finally:
                self._hold = None
                if self._journal.uncommitted:
                    self._commit_or_warn(hold)

    def _commit(self) -> None:
        todo = self._journal.uncommitted
        if todo:
            before = [o for o in self._journal.done.values() if o.number < todo[0].number]
            tip = self._journal.commits[before[-1].number] if before else None
            self._journal.commit(self._repository.commit(before, todo, tip=tip))

    def _commit_or_warn(self, hold: HeldLock) -> None:
        # The operation is in the tree and in the journal: that its commit is late must not look as
        # if it had failed. The next use makes it, or raises.
        kind = self._journal.uncommitted[-1].kind
        try:
            hold.check()
            self._commit()
        except (TreeFault, LockLost) as error:
            log.warning("commits of %s are still to be made: %s", self.root, error)
        self._step(f"{kind}_committed")

    # -- operations ------------------------------------------------------------------------------

    def _perform(
        self,
        kind: Kind,
        steps: Sequence[FileStep],
        changes: Sequence[FileChange],
        check: Check | None,
        **more: Any,
    ) -> Operation:
        if self._hold is None:
            raise TreeFault(f"{self.root}: is written to without its lock")
        operation = Operation(
            number=self._journal.next_number,
            kind=kind,
            at=time.time(),
            fence=self._hold.holder.fence,
            files=tuple(steps),
            made=self._operator.missing_folders(s.path for s in steps if s.after is not None),
            **more,
        )
        self._operator.perform(operation, changes, ours=self._hold.check, check=check)
        return operation

    def _take_back(
        self, operations: Sequence[Operation], check: Check | None, **names: Any
    ) -> Operation | None:
        if not operations:
            return None
        now = {s.path: self._operator.look(s.path) for o in operations for s in o.files}
        wanted = undoing.taken_back(operations, self._later(operations), now, self._repository)
        steps = [
            FileStep(path=path, before=before, after=after)
            for path in sorted(wanted)
            if (before := undoing.image_of(now[path])) != (after := undoing.image_of(wanted[path]))
        ]
        changes = [_change(s.path, now[s.path], wanted[s.path]) for s in steps]
        dropped = tuple(sorted(self._made_for(operations)))
        undoes = tuple(o.number for o in operations)
        return self._perform(
            "rollback", steps, changes, check, dropped=dropped, undoes=undoes, **names
        )

    def _later(self, operations: Sequence[Operation]) -> list[Operation]:
        """The other edits that stand and came later than the first of these."""
        taken = {o.number for o in operations}
        standing = self._standing(self._edits())
        return [o for o in standing if o.number > operations[0].number and o.number not in taken]

    def _made_for(self, operations: Sequence[Operation]) -> set[str]:
        """The folders that were made for the files of these operations: by themselves, or by edits
        that were taken back while these still needed the folder."""
        found = {folder for o in operations for folder in o.made}
        for rollback in self._journal.done.values():
            for maker in (self._journal.done[number] for number in rollback.undoes):
                if not maker.made:
                    continue
                between = [o for o in operations if maker.number < o.number < rollback.number]
                paths = [step.path for o in between for step in o.files]
                found |= {f for f in maker.made if any(p.startswith(f"{f}/") for p in paths)}
        return found

    # -- what is known -----------------------------------------------------------------------------

    def _edits(
        self, *, edit_id: str | None = None, sessions: Collection[str] | None = None
    ) -> list[Operation]:
        return [
            o
            for o in self._journal.done.values()
            if o.kind == "edit"
            and edit_id in (None, o.edit_id)
            and (sessions is None or o.session_id in sessions)
        ]

    def _standing(self, operations: Sequence[Operation]) -> list[Operation]:
        if not operations:
            return []
        standing = in_force(self._journal.done.values())
        return [o for o in operations if o.number in standing]

    def _same(
        self, edit_id: str, session_id: str, changes: Sequence[FileChange]
    ) -> Operation | None:
        """The edit, if it is in the tree already. Another one of that name is refused."""
        standing = self._standing(self._edits(edit_id=edit_id, sessions=(session_id,)))
        if not standing:
            return None
        known = standing[-1]
        recorded = {s.path: (_blob(s.before), _blob(s.after)) for s in known.files}
        asked = {c.path: (_hash(c.before), _hash(c.after)) for c in changes if not c.unchanged}
        if asked == recorded:
            return known
        raise EditRefused(
            f"edit {edit_id} of session {session_id} is applied already, with other changes: "
            "roll it back first, or give this one another id"
        )

    def _checkpoint(
        self, operation: Operation, standing: Collection[int] | None = None
    ) -> Checkpoint:
        stands = standing is None or operation.number in standing
        return Checkpoint(
            number=operation.number,
            kind=operation.kind,
            commit=self._journal.commits.get(operation.number),
            session_id=operation.session_id,
            edit_id=operation.edit_id,
            tier=operation.tier,
            at=operation.at,
            paths=tuple(s.path for s in operation.files),
            undoes=operation.undoes,
            state="applied" if stands else "rolled_back",
        )

    def _told(self, what: str, done: Operation | None) -> Rollback:
        if done is None:
            text = f"{what}: nothing to roll back, it is done already"
            return Rollback(checkpoint=None, paths=(), text=text)
        paths = tuple(s.path for s in done.files)
        text = f"{what}: rolled back, {len(paths)} {'file' if len(paths) == 1 else 'files'} changed"
        return Rollback(checkpoint=self._checkpoint(done), paths=paths, text=text)

    def _refuse_own(self, changes: Sequence[FileChange]) -> None:
        settings = config_place().resolve()
        for change in changes:
            place = self.root / change.path
            if place.is_relative_to(self._own):
                raise EditRefused(f"{change.path}: is mulligan's own: nothing in it may be edited")
            if place == settings or (settings.is_file() and _same_file(place, settings)):
                raise confined_paths.settings_refusal(change.path)


def _refuse_bad_names(edit_id: str, session_id: str, tier: str) -> None:
    for what, name in (("edit", edit_id), ("session", session_id), ("tier", tier)):
        if not _ID.fullmatch(name):
            raise BadInput(f"{what} {name!r}: give letters, digits, '_', '-' and '.' only")


def _same_file(one: Path, other: Path) -> bool:
    """Also where a file system takes two spellings for one name."""
    return one.is_file() and one.samefile(other)


def _number(checkpoint: Checkpoint | int) -> int:
    return checkpoint if isinstance(checkpoint, int) else checkpoint.number


def _step(change: FileChange, seen: FileSnapshot | None) -> FileStep:
    after = None
    if change.after is not None:
        kept = write_changes.NEW_FILE_MODE if seen is None else seen.mode
        mode = kept if change.mode is None else change.mode & 0o7777
        after = Image(blob=blob_id(change.after), mode=mode)
    return FileStep(path=change.path, before=undoing.image_of(seen), after=after)


def _change(path: str, now: FileSnapshot | None, wanted: FileSnapshot | None) -> FileChange:
    same_mode = now is not None and wanted is not None and now.mode == wanted.mode
    return FileChange(
        path=path,
        before=None if now is None else now.data,
        after=None if wanted is None else wanted.data,
        mode=None if wanted is None or same_mode else wanted.mode,
    )


def _hash(data: bytes | None) -> str | None:
    return None if data is None else blob_id(data)


def _blob(image: Image | None) -> str | None:
    return None if image is None else image.blob
