"""The tree of a session: ``tasks.edits.advance.EditTree`` on an EditedTree."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mulligan.tasks.edits.advance import RetryLater
from mulligan.tasks.ports.appliers import FileChange
from mulligan.workers.edits.tree.edited_tree import Check, EditedTree
from mulligan.workers.edits.tree.tree_lock import LockLost, TreeBusy


class SessionTree:
    """An EditTree; see that protocol for what each method promises."""

    def __init__(self, tree: EditedTree, check: Check | None = None) -> None:
        """``check`` is called right before anything is written, inside the tree's lock."""
        self._tree = tree
        self._check = check
        #: The checkpoints of the edits in the tree, cached: only the holder of a session's lease
        #: applies its edits or rolls them back.
        self._applied: dict[tuple[str, str], int] | None = None

    def applied(self, session_id: str, edit_id: str) -> int | None:
        return self._checkpoints(session_id).get((session_id, edit_id))

    def _checkpoints(self, session_id: str) -> dict[tuple[str, str], int]:
        if self._applied is None:
            with retry_when_busy(), self._tree.held(session_id):  # settles what a dead process left
                points = self._tree.history()
            self._applied = {
                (str(point.session_id), str(point.edit_id)): point.number
                for point in points
                if point.kind == "edit" and point.state == "applied"
            }
        return self._applied

    def mode(self, path: str) -> int | None:
        try:
            return stat.S_IMODE((self._tree.root / path).lstat().st_mode)
        except OSError:
            return None

    def apply(self, session_id: str, edit_id: str, tier: str, changes: Sequence[FileChange]) -> int:
        checkpoints = self._checkpoints(session_id)
        with retry_when_busy():
            point = self._tree.apply(edit_id, session_id, tier, changes, check=self._check)
        checkpoints[session_id, edit_id] = point.number
        return point.number

    def rollback_edit(self, session_id: str, edit_id: str) -> str:
        with retry_when_busy(), self._tree.held(session_id):
            if not self._was_applied(session_id, edit_id):
                return f"edit {edit_id} of session {session_id} was not applied yet"
            done = self._tree.rollback_edit(edit_id, session_id, check=self._check)
        self._applied = None
        return done.text

    def rollback_session(self, session_id: str) -> str:
        with retry_when_busy(), self._tree.held(session_id):
            if not self._was_applied(session_id):
                return f"session {session_id}: nothing was applied yet, nothing to roll back"
            done = self._tree.rollback_session(session_id, check=self._check)
        self._applied = None
        return done.text

    def _was_applied(self, session_id: str, edit_id: str | None = None) -> bool:
        """Return whether the tree ever had it, even if it was rolled back since."""
        return any(
            point.kind == "edit"
            and point.session_id == session_id
            and edit_id in (None, point.edit_id)
            for point in self._tree.history()
        )


@contextmanager
def retry_when_busy() -> Iterator[None]:
    """Raise RetryLater while another process holds the tree: it says nothing about the edit."""
    try:
        yield
    except (TreeBusy, LockLost) as error:
        raise RetryLater(str(error)) from error
