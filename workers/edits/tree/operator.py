"""Carries out one operation on a tree, or settles one that a dead process left.

Every content is stored, the intent is written, lock and lease are looked at again, the files are
written, then "done". An intent without an end is settled by what its files are now:

- all as before: it never happened;
- each as before or as after: the rest is written. Every content is stored, and what was not
  written yet is still what the operation was computed from;
- anything else: somebody changed a file meanwhile. The operation is undone and that change stays;
  a file in which the two cannot be told apart stays as it is and is reported.

Either way the tree has the whole operation or nothing of it, and settling twice is harmless.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mulligan.tasks.ports.appliers import EditRefused, FileChange
from mulligan.workers.edits.tree import confined_paths, write_changes
from mulligan.workers.edits.tree import undo as undoing
from mulligan.workers.edits.tree.confined_paths import FileSnapshot
from mulligan.workers.edits.tree.journal import FileStep, Image, Journal, Operation
from mulligan.workers.edits.tree.shadow_repository import ShadowRepository
from mulligan.workers.edits.tree.tree_lock import LockLost

#: What an operation passes, in order; crash tests kill at each. The names that are passed start
#: with "edit_" or "rollback_".
STEPS = ("checked", "stored", "intended", "written", "done", "committed")


@dataclass(frozen=True, kw_only=True)
class RecoveredOperation:
    """How an operation that a dead process left was settled."""

    operation: Operation
    outcome: Literal["finished", "undone"]
    #: Files that somebody else changed meanwhile, and that were left as they are.
    left: tuple[str, ...] = ()


class OperationRunner:
    """Works on one root. Only for the holder of the tree's lock."""

    def __init__(
        self,
        root: Path,
        journal: Journal,
        repository: ShadowRepository,
        *,
        max_bytes: int,
        step: Callable[[str], None],
    ) -> None:
        self._root = root
        self._journal = journal
        self._repository = repository
        self._max_bytes = max_bytes
        self._step = step

    def perform(
        self,
        operation: Operation,
        changes: Sequence[FileChange],
        *,
        ours: Callable[[], None],
        check: Callable[[], None] | None,
    ) -> None:
        """Write it, or raise and leave the files as they were. ``ours`` raises LockLost."""
        kind = operation.kind
        self._step(f"{kind}_checked")
        self._repository.store(
            data for c in changes for data in (c.before, c.after) if data is not None
        )
        self._step(f"{kind}_stored")
        ours()
        self._journal.intend(operation)
        self._step(f"{kind}_intended")
        try:
            if check is not None:
                check()
            ours()
            write_changes.perform(self._root, changes, max_bytes=self._max_bytes)
            self._remove_folders(operation.dropped)
        except LockLost:
            # Somebody else has the tree and settles it: it is not ours to touch.
            raise
        except BaseException:
            self._abandon(operation)
            raise
        self._step(f"{kind}_written")
        self._journal.finish(operation.number)
        self._step(f"{kind}_done")

    def settle(self, operation: Operation) -> RecoveredOperation:
        """Finish what a dead process left, or undo it."""
        now, left = self._found(operation)
        written, waiting, changed = _sorted_out(operation, now)
        if written and not changed and not left:
            self._put(waiting, [s.after for s in waiting])
            self._remove_folders(operation.dropped)
            self._journal.finish(operation.number)
            return RecoveredOperation(operation=operation, outcome="finished")
        self._put(written, [s.before for s in written])
        left += self._undo_changed(changed, now)
        self._remove_folders(operation.made)
        self._journal.undo(operation.number, left=left)
        return RecoveredOperation(operation=operation, outcome="undone", left=tuple(left))

    def look(self, path: str) -> FileSnapshot | None:
        """A file as it is; None if there is none, also where a folder has its name or a file the
        name of its folder."""
        if self._blocked(path):
            return None
        with confined_paths.open_parent(self._root, path) as folder:
            if folder is None:
                return None
            kind = confined_paths.mode_at(folder, path.rpartition("/")[2], path)
            if kind is not None and stat.S_ISDIR(kind):
                return None
            return confined_paths.read_at(folder, path, max_bytes=self._max_bytes)

    def missing_folders(self, paths: Iterable[str]) -> tuple[str, ...]:
        """The folders that have to be made for these files."""
        parents = {str(parent) for path in paths for parent in Path(path).parents} - {"."}
        return tuple(sorted(p for p in parents if not (self._root / p).is_dir()))

    def _abandon(self, operation: Operation) -> None:
        """The files could not be written. What was, has been put back, unless that failed too."""
        now, left = self._found(operation)
        written, _, changed = _sorted_out(operation, now)
        self._put(written, [s.before for s in written])
        self._remove_folders(operation.made)
        self._journal.undo(operation.number, left=[*left, *(s.path for s in changed)])

    def _found(self, operation: Operation) -> tuple[dict[str, FileSnapshot | None], list[str]]:
        """The files as they are, temporary ones removed, and the paths that now lead elsewhere: a
        link, a special file, a file over the cap."""
        now: dict[str, FileSnapshot | None] = {}
        elsewhere = []
        for step in operation.files:
            try:
                if not self._blocked(step.path):
                    write_changes.remove_leftovers(self._root, [step.path])
                now[step.path] = self.look(step.path)
            except EditRefused:
                elsewhere.append(step.path)
        return now, elsewhere

    def _put(self, steps: Sequence[FileStep], images: Sequence[Image | None]) -> None:
        """Give files their contents. Deletions come first: they make room."""
        contents = self._repository.contents(i.blob for i in images if i is not None)
        for step, image in sorted(zip(steps, images, strict=True), key=lambda p: p[1] is not None):
            if image is not None:
                write_changes.put(self._root, step.path, contents[image.blob], image.mode)
            elif self.look(step.path) is not None:
                write_changes.put(self._root, step.path, None)

    def _undo_changed(
        self, steps: Sequence[FileStep], now: dict[str, FileSnapshot | None]
    ) -> list[str]:
        """Take the operation out of files that changed after the process died. Those it could not
        be taken out of, or was not in."""
        images = [i for s in steps for i in (s.before, s.after) if i is not None]
        contents = self._repository.contents(i.blob for i in images)
        left = []
        for step in steps:
            wanted = undoing.unwritten(step, now[step.path], contents, self._repository)
            if wanted == now[step.path]:
                left.append(step.path)
            elif wanted is not None:
                write_changes.put(self._root, step.path, wanted.data, wanted.mode)
        return left

    def _blocked(self, path: str) -> bool:
        """Whether a file stands where one of the path's folders should be."""
        for parent in list(Path(path).parents)[-2::-1]:
            try:
                if stat.S_ISREG((self._root / parent).lstat().st_mode):
                    return True
            except FileNotFoundError:
                return False
        return False

    def _remove_folders(self, folders: Iterable[str]) -> None:
        """Remove folders that nothing is left in, the innermost first."""
        for folder in sorted(folders, reverse=True):
            if self._blocked(folder):
                continue
            with confined_paths.open_parent(self._root, folder) as parent:
                if parent is not None:
                    # Not empty, not there or no folder: it is somebody else's.
                    with suppress(OSError):
                        os.rmdir(folder.rpartition("/")[2], dir_fd=parent)


def _sorted_out(
    operation: Operation, now: dict[str, FileSnapshot | None]
) -> tuple[list[FileStep], list[FileStep], list[FileStep]]:
    """The files as they are after the operation, as they were before it, and neither."""
    images = {path: undoing.image_of(seen) for path, seen in now.items()}
    steps = [s for s in operation.files if s.path in now]
    written = [s for s in steps if images[s.path] == s.after]
    waiting = [s for s in steps if images[s.path] == s.before]
    return written, waiting, [s for s in steps if images[s.path] not in (s.before, s.after)]
