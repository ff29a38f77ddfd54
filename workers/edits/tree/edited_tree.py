"""The only writer of a tree. Each edit or rollback is written whole, even if the process is killed.

An operation takes the lock, recovers what a dead process left, compares the files with those that
the changes were computed from, is performed (``operator.py``) and committed. Everything known
about a tree is in ``<home>/edits/<digest of the root>/``:

    lock, holder.json   the lock and its holder   journal.jsonl   operations, done and under way
    root                the path of the tree      git             contents and commits
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mulligan.tasks.ports.appliers import MAX_BYTES, EditRefused, FileChange
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.edits.tree import confined_paths, write_changes
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
from mulligan.workers.edits.tree.undo import compute_rollback, image_of
from mulligan.workers.settings.config_file import config_place

log = logging.getLogger(__name__)

#: Called inside the lock, right before the first file is written. An exception stops the operation.
Check = Callable[[], None]
_ID = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True, kw_only=True)
class TreeCheckpoint:
    """The tree as one operation left it."""

    number: int
    kind: Kind
    #: None: not committed yet.
    commit: str | None
    session_id: str | None
    edit_id: str | None
    tier: str | None
    #: Seconds since 1970.
    at: float
    paths: tuple[str, ...]
    #: The checkpoints that a rollback undid.
    undoes: tuple[int, ...]
    state: Literal["applied", "rolled_back"]


@dataclass(frozen=True, kw_only=True)
class TreeRollback:
    """The result of a rollback."""

    #: None: there was nothing to roll back.
    checkpoint: TreeCheckpoint | None
    #: The files that it changed.
    paths: tuple[str, ...]
    #: A sentence for people.
    text: str


class EditedTree:
    """A root that edits are applied to. Use it in one thread at a time."""

    def __init__(
        self,
        root: Path,
        home: Path,
        *,
        max_bytes: int = MAX_BYTES,
        timeout: float = 30.0,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        """``timeout``: seconds to wait for the lock. ``on_step`` is called with the name of each
        step (``operator.STEPS``)."""
        if not root.is_dir():
            raise BadInput(f"{root}: is not a folder: give the root of the files to edit")
        self.root = root.resolve()
        home = home.resolve()
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        #: The folder of the lock, the journal and the repository.
        self.state = home / "edits" / digest
        self._protected = home if self.root in home.parents else home / "edits"
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._on_step = on_step or (lambda _: None)
        self._lock = TreeLock(self.root, self.state)
        self._journal = Journal(self.state / "journal.jsonl")
        self._repository = ShadowRepository(self.state / "git")
        self._runner = OperationRunner(
            self.root, self._journal, self._repository, max_bytes=max_bytes, on_step=self._on_step
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
    ) -> TreeCheckpoint:
        """Write all changes of an edit, or raise and write none. Repeating an edit writes nothing
        and returns its checkpoint."""
        _refuse_bad_names(edit_id, session_id, tier)
        changes = [
            replace(change, path=confined_paths.normalize(change.path)) for change in changes
        ]
        self._refuse_protected(changes)
        with self.held(session_id):
            operation = self._find_applied(edit_id, session_id, changes)
            if operation is None:
                now = write_changes.check(self.root, changes, max_bytes=self._max_bytes)
                steps = [s for c in changes if (s := _step(c, now[c.path])).before != s.after]
                if not steps:
                    raise EditRefused(f"edit {edit_id}: changes nothing")
                names = {"edit_id": edit_id, "session_id": session_id, "tier": tier}
                operation = self._perform("edit", steps, changes, check, **names)
        return self._checkpoint(operation)

    def rollback_edit(
        self, edit_id: str, session_id: str | None = None, *, check: Check | None = None
    ) -> TreeRollback:
        """Roll back one edit. Raises RollbackConflict if its lines changed since, BadInput if there
        is no such edit, or if several sessions have one and ``session_id`` is None."""
        with self.held(session_id or f"rollback of {edit_id}"):
            edits = self._journal.edits(edit_id=edit_id, session_id=session_id)
            if not edits:
                raise BadInput(f"{self.root}: no edit {edit_id} was applied: see the history")
            applied = self._journal.only_in_force(edits)
            sessions = sorted({str(o.session_id) for o in applied})
            if len(sessions) > 1:
                raise BadInput(
                    f"edit {edit_id} was applied in the sessions {', '.join(sessions)}: name one"
                )
            names = {"edit_id": edit_id, "session_id": (applied or edits)[-1].session_id}
            rollback = self._roll_back(applied, check, **names)
        return self._result(f"edit {edit_id} of session {names['session_id']}", rollback)

    def rollback_session(self, session_id: str, *, check: Check | None = None) -> TreeRollback:
        """Roll back all applied edits of a session, or raise RollbackConflict and keep all."""
        with self.held(session_id):
            edits = self._journal.edits(session_id=session_id)
            if not edits:
                raise BadInput(f"{self.root}: no edit of session {session_id} was applied")
            applied = self._journal.only_in_force(edits)
            rollback = self._roll_back(applied, check, session_id=session_id)
        return self._result(f"session {session_id}", rollback)

    def rollback_to(self, number: int, *, check: Check | None = None) -> TreeRollback:
        """Undo everything after a checkpoint, rollbacks too; 0 is before the first edit."""
        with self.held(f"rollback to {number}"):
            done = self._journal.done
            if number and number not in done:
                raise BadInput(f"{self.root}: there is no checkpoint {number}: see the history")
            then = in_force(o for o in done.values() if o.number <= number)
            differs = any(done[n].kind == "edit" for n in then ^ in_force(done.values()))
            later = [o for o in done.values() if o.number > number] if differs else []
            rollback = self._roll_back(later, check)
        return self._result(f"everything after checkpoint {number}", rollback)

    def recover(self) -> RecoveredOperation | None:
        """Recover what a dead process left, and make its missing commits. Every other operation
        does so first."""
        with self._locked("recovery") as recovered:
            return recovered

    def history(self) -> list[TreeCheckpoint]:
        """Return every checkpoint, the oldest first, without waiting for the lock."""
        self._journal.load()
        operations = self._journal.done.values()
        applied = in_force(operations)
        return [self._checkpoint(o, applied=o.number in applied) for o in operations]

    @contextmanager
    def held(self, session_id: str) -> Iterator[None]:
        """Lock the tree for several operations and commit them together at the end. Raises
        TreeBusy."""
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
            interrupted = self._journal.open
            recovered = None if interrupted is None else self._runner.recover(interrupted)
            self._commit()
            self._hold = hold
            try:
                yield recovered
            finally:
                self._hold = None
                if self._journal.uncommitted:
                    self._commit_or_warn(hold)

    def _commit(self) -> None:
        new = self._journal.uncommitted
        if new:
            earlier = [o for o in self._journal.done.values() if o.number < new[0].number]
            tip = self._journal.commits[earlier[-1].number] if earlier else None
            self._journal.commit(self._repository.commit(earlier, new, tip=tip))

    def _commit_or_warn(self, hold: HeldLock) -> None:
        # The operation is in the tree and in the journal, so a late commit is not a failure of the
        # operation. The next use makes the commit, or raises.
        kind = self._journal.uncommitted[-1].kind
        try:
            hold.check()
            self._commit()
        except (TreeFault, LockLost) as error:
            log.warning("Cannot commit the edits of %s yet: %s", self.root, error)
        self._on_step(f"{kind}_committed")

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
            raise TreeFault(f"{self.root}: cannot be written without its lock")
        operation = Operation(
            number=self._journal.next_number,
            kind=kind,
            at=time.time(),
            fence=self._hold.fence,
            files=tuple(steps),
            created_folders=self._runner.missing_folders(s.path for s in steps if s.after),
            **more,
        )
        self._runner.perform(operation, changes, check_lock=self._hold.check, check=check)
        return operation

    def _roll_back(
        self, operations: Sequence[Operation], check: Check | None, **names: Any
    ) -> Operation | None:
        if not operations:
            return None
        undoes = {o.number for o in operations}
        later = [
            o
            for o in self._journal.only_in_force(self._journal.edits())
            if o.number > operations[0].number and o.number not in undoes
        ]
        now = {s.path: self._runner.read(s.path) for o in operations for s in o.files}
        files = compute_rollback(operations, later, now, self._repository)
        steps = [
            FileStep(path=path, before=before, after=after)
            for path in sorted(files)
            if (before := image_of(now[path])) != (after := image_of(files[path]))
        ]
        return self._perform(
            "rollback",
            steps,
            [_change(s.path, now[s.path], files[s.path]) for s in steps],
            check,
            removed_folders=tuple(sorted(self._journal.folders_created_for(operations))),
            undoes=tuple(sorted(undoes)),
            **names,
        )

    def _find_applied(
        self, edit_id: str, session_id: str, changes: Sequence[FileChange]
    ) -> Operation | None:
        """Return the edit if it is applied. Raises EditRefused if it was applied with other
        changes."""
        edits = self._journal.edits(edit_id=edit_id, session_id=session_id)
        applied = self._journal.only_in_force(edits)
        if not applied:
            return None
        recorded = {s.path: (_blob(s.before), _blob(s.after)) for s in applied[-1].files}
        asked = {c.path: (_hash(c.before), _hash(c.after)) for c in changes if not c.unchanged}
        if asked == recorded:
            return applied[-1]
        raise EditRefused(
            f"edit {edit_id} of session {session_id} is applied already, with other changes: "
            "roll it back first, or give this one another id"
        )

    def _checkpoint(self, operation: Operation, *, applied: bool = True) -> TreeCheckpoint:
        return TreeCheckpoint(
            number=operation.number,
            kind=operation.kind,
            commit=self._journal.commits.get(operation.number),
            session_id=operation.session_id,
            edit_id=operation.edit_id,
            tier=operation.tier,
            at=operation.at,
            paths=tuple(s.path for s in operation.files),
            undoes=operation.undoes,
            state="applied" if applied else "rolled_back",
        )

    def _result(self, what: str, rollback: Operation | None) -> TreeRollback:
        if rollback is None:
            text = f"{what}: nothing to roll back, already done"
            return TreeRollback(checkpoint=None, paths=(), text=text)
        checkpoint = self._checkpoint(rollback)
        count = len(checkpoint.paths)
        text = f"{what}: rolled back, {count} {'file' if count == 1 else 'files'} changed"
        return TreeRollback(checkpoint=checkpoint, paths=checkpoint.paths, text=text)

    def _refuse_protected(self, changes: Sequence[FileChange]) -> None:
        settings = config_place().resolve()
        for change in changes:
            place = self.root / change.path
            if place.is_relative_to(self._protected):
                raise EditRefused(f"{change.path}: nothing in mulligan's own folder may be edited")
            # A file system may accept two spellings of one name.
            same_file = settings.is_file() and place.is_file() and place.samefile(settings)
            if place == settings or same_file:
                raise confined_paths.settings_refusal(change.path)


def _refuse_bad_names(edit_id: str, session_id: str, tier: str) -> None:
    for what, name in (("edit", edit_id), ("session", session_id), ("tier", tier)):
        if not _ID.fullmatch(name):
            raise BadInput(f"{what} {name!r}: give letters, digits, '_', '-' and '.' only")


def _step(change: FileChange, now: FileSnapshot | None) -> FileStep:
    after = None
    if change.after is not None:
        kept = write_changes.NEW_FILE_MODE if now is None else now.mode
        mode = kept if change.mode is None else change.mode & 0o7777
        after = Image(blob=blob_id(change.after), mode=mode)
    return FileStep(path=change.path, before=image_of(now), after=after)


def _change(path: str, now: FileSnapshot | None, target: FileSnapshot | None) -> FileChange:
    same_mode = now is not None and target is not None and now.mode == target.mode
    return FileChange(
        path=path,
        before=None if now is None else now.data,
        after=None if target is None else target.data,
        mode=None if target is None or same_mode else target.mode,
    )


def _hash(data: bytes | None) -> str | None:
    return None if data is None else blob_id(data)


def _blob(image: Image | None) -> str | None:
    return None if image is None else image.blob
