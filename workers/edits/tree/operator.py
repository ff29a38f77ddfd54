"""Perform one operation on a tree, or recover one that a dead process left.

All contents are stored, the intent is written, lock and lease are checked again, the files are
written, then "done". An intent without an end is recovered according to its files:

- all are as before: it never happened;
- each is as before or as after: the rest is written. All contents are stored, and the files not
  written yet are still those that the operation was computed from;
- anything else: a file was changed in between. The operation is undone and that change stays; a
  file in which the two cannot be separated stays as it is and is reported.

Either way the tree has the whole operation or nothing of it. Recovering twice is harmless.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mulligan.tasks.ports.appliers import EditRefused, FileChange
from mulligan.workers.edits.tree import confined_paths, write_changes
from mulligan.workers.edits.tree.confined_paths import FileSnapshot
from mulligan.workers.edits.tree.journal import FileStep, Image, Journal, Operation
from mulligan.workers.edits.tree.shadow_repository import ShadowRepository
from mulligan.workers.edits.tree.tree_lock import LockLost
from mulligan.workers.edits.tree.undo import StepUndoer, UndoConflict, image_of

#: The steps of an operation, in order; crash tests kill at each. ``on_step`` gets them with the
#: prefix "edit_" or "rollback_".
STEPS = ("checked", "stored", "intended", "written", "done", "committed")


@dataclass(frozen=True, kw_only=True)
class RecoveredOperation:
    """An operation that a dead process left, and how it ended."""

    operation: Operation
    outcome: Literal["finished", "undone"]
    #: Files that were changed in between and stay as they are.
    left_as_is: tuple[str, ...] = ()


class OperationRunner:
    """Performs and recovers the operations of one root, for the holder of the tree's lock."""

    def __init__(
        self,
        root: Path,
        journal: Journal,
        repository: ShadowRepository,
        *,
        max_bytes: int,
        on_step: Callable[[str], None],
    ) -> None:
        self._root = root
        self._journal = journal
        self._repository = repository
        self._max_bytes = max_bytes
        self._on_step = on_step

    def perform(
        self,
        operation: Operation,
        changes: Sequence[FileChange],
        *,
        check_lock: Callable[[], None],
        check: Callable[[], None] | None,
    ) -> None:
        """Write the changes, or raise and leave the files as they were. ``check_lock`` raises
        LockLost; ``check`` is called right before the first file is written."""
        kind = operation.kind
        self._on_step(f"{kind}_checked")
        self._repository.store(
            data for c in changes for data in (c.before, c.after) if data is not None
        )
        self._on_step(f"{kind}_stored")
        check_lock()
        self._journal.intend(operation)
        self._on_step(f"{kind}_intended")
        try:
            if check is not None:
                check()
            check_lock()
            write_changes.perform(self._root, changes, max_bytes=self._max_bytes)
            self._remove_folders(operation.removed_folders)
        except LockLost:
            raise  # the new holder of the tree recovers the operation
        except BaseException:
            self._abandon(operation)
            raise
        self._on_step(f"{kind}_written")
        self._journal.finish(operation.number)
        self._on_step(f"{kind}_done")

    def recover(self, operation: Operation) -> RecoveredOperation:
        """Finish what a dead process left, or undo it."""
        now, left_as_is = self._read_files(operation)
        written, unwritten, changed = _classify(operation, now)
        if written and not changed and not left_as_is:
            self._write_images({s.path: s.after for s in unwritten})
            self._remove_folders(operation.removed_folders)
            self._journal.finish(operation.number)
            return RecoveredOperation(operation=operation, outcome="finished")
        self._write_images({s.path: s.before for s in written})
        left_as_is += self._undo_changed(changed, now)
        self._remove_folders(operation.created_folders)
        self._journal.undo(operation.number, left_as_is=left_as_is)
        return RecoveredOperation(
            operation=operation, outcome="undone", left_as_is=tuple(left_as_is)
        )

    def read(self, path: str) -> FileSnapshot | None:
        """Return a file, or None if it does not exist. Its path may be a folder, or go through
        another file."""
        if self._is_below_file(path):
            return None
        with confined_paths.open_parent(self._root, path) as folder:
            if folder is None:
                return None
            kind = confined_paths.mode_at(folder, path.rpartition("/")[2], path)
            if kind is not None and stat.S_ISDIR(kind):
                return None
            return confined_paths.read_at(folder, path, max_bytes=self._max_bytes)

    def missing_folders(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Return the folders that have to be created for these files."""
        parents = {str(parent) for path in paths for parent in Path(path).parents} - {"."}
        return tuple(sorted(p for p in parents if not (self._root / p).is_dir()))

    def _abandon(self, operation: Operation) -> None:
        """Undo what a failed operation has written and the writer could not restore."""
        now, left_as_is = self._read_files(operation)
        written, _, changed = _classify(operation, now)
        self._write_images({s.path: s.before for s in written})
        self._remove_folders(operation.created_folders)
        left_as_is += [s.path for s in changed]
        self._journal.undo(operation.number, left_as_is=left_as_is)

    def _read_files(self, operation: Operation) -> tuple[dict[str, FileSnapshot | None], list[str]]:
        """Remove temporary files. Return the operation's files, and the paths that cannot be read:
        a link, a special file, a file over the cap."""
        files: dict[str, FileSnapshot | None] = {}
        unreadable = []
        for step in operation.files:
            try:
                if not self._is_below_file(step.path):
                    write_changes.remove_leftovers(self._root, [step.path])
                files[step.path] = self.read(step.path)
            except EditRefused:
                unreadable.append(step.path)
        return files, unreadable

    def _write_images(self, images: Mapping[str, Image | None]) -> None:
        """Write or delete files. Deletions come first: a folder may replace a deleted file."""
        contents = self._repository.contents(i.blob for i in images.values() if i is not None)
        for path, image in sorted(images.items(), key=lambda item: item[1] is not None):
            if image is not None:
                write_changes.put(self._root, path, contents[image.blob], image.mode)
            elif self.read(path) is not None:
                write_changes.put(self._root, path, None)

    def _undo_changed(
        self, steps: Sequence[FileStep], now: dict[str, FileSnapshot | None]
    ) -> list[str]:
        """Undo the operation in files that changed after the process died. Return the files that
        stay as they are: it could not be undone there, or had not reached them."""
        undoer = StepUndoer(self._repository, steps)
        left_as_is = []
        for step in steps:
            file = now[step.path]
            try:
                undone = undoer.undo(step, file)
            except UndoConflict:
                undone = file
            if undone == file:
                left_as_is.append(step.path)
            elif undone is not None:
                write_changes.put(self._root, step.path, undone.data, undone.mode)
        return left_as_is

    def _is_below_file(self, path: str) -> bool:
        """Return whether one of the path's parents is a file."""
        for parent in list(Path(path).parents)[-2::-1]:
            try:
                if stat.S_ISREG((self._root / parent).lstat().st_mode):
                    return True
            except FileNotFoundError:
                return False
        return False

    def _remove_folders(self, folders: Iterable[str]) -> None:
        """Remove the folders that are empty, the innermost first."""
        for folder in sorted(folders, reverse=True):
            if self._is_below_file(folder):
                continue
            with confined_paths.open_parent(self._root, folder) as parent:
                if parent is not None:
                    # A folder that is not empty, missing or replaced is not ours to remove.
                    with suppress(OSError):
                        os.rmdir(folder.rpartition("/")[2], dir_fd=parent)


def _classify(
    operation: Operation, now: dict[str, FileSnapshot | None]
) -> tuple[list[FileStep], list[FileStep], list[FileStep]]:
    """Return the steps that are written, those that are not, and those whose file is neither."""
    images = {path: image_of(file) for path, file in now.items()}
    steps = [s for s in operation.files if s.path in now]
    written = [s for s in steps if images[s.path] == s.after]
    unwritten = [s for s in steps if images[s.path] == s.before]
    return written, unwritten, [s for s in steps if images[s.path] not in (s.before, s.after)]
