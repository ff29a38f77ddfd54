"""Compute what files become when operations are rolled back.

A file that is still as an operation left it gets its previous content back, byte for byte. A file
that changed since is merged three ways, so that changes on other lines stay. If that is impossible,
there is a conflict and nothing is rolled back.

A merge can succeed and still lose something: if a later edit restored what an earlier one changed,
the earlier one has nothing left to undo, and rolling back the later one would bring its change
back. So undoing the later edits, too, has to give the same file with and without this rollback.
Then the order of rollbacks does not matter: all that are possible lead to the same files, and the
last edit of a file can always be rolled back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mulligan.tasks.ports.appliers import EditConflict
from mulligan.workers.edits.tree.confined_paths import FileSnapshot
from mulligan.workers.edits.tree.journal import FileStep, Image, Operation
from mulligan.workers.edits.tree.shadow_repository import Lines, ShadowRepository, blob_id

#: A step with the number of its operation.
_NumberedStep = tuple[int, FileStep]


@dataclass(frozen=True, kw_only=True)
class FileConflict:
    """A file that cannot be rolled back."""

    path: str
    reason: str
    #: The conflicting lines of the current file: first and last.
    lines: tuple[Lines, ...] = ()
    #: Descriptions of the later edits of the file.
    later_edits: tuple[str, ...] = ()

    def __str__(self) -> str:
        ranges = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in self.lines)
        where = f"{self.path}, line {ranges}" if ranges else self.path
        later = f" (since then: {'; '.join(self.later_edits)})" if self.later_edits else ""
        return f"{where}: {self.reason}{later}"


class RollbackConflict(EditConflict):
    """The same lines were changed since; nothing was rolled back."""

    def __init__(self, conflicts: Sequence[FileConflict]) -> None:
        self.conflicts = tuple(conflicts)
        super().__init__(*(str(conflict) for conflict in conflicts))


class UndoConflict(Exception):
    """A step of one file cannot be undone."""

    def __init__(self, reason: str, lines: Sequence[Lines] = ()) -> None:
        self.reason = reason
        self.lines = tuple(lines)
        super().__init__(reason)


def image_of(file: FileSnapshot | None) -> Image | None:
    return None if file is None else Image(blob=blob_id(file.data), mode=file.mode)


def compute_rollback(
    operations: Sequence[Operation],
    later: Sequence[Operation],
    now: Mapping[str, FileSnapshot | None],
    repository: ShadowRepository,
) -> dict[str, FileSnapshot | None]:
    """Return the files as they are without these operations (oldest first). Raises
    RollbackConflict. ``later``: the applied edits after the first of them that are kept."""
    undone, kept = _by_path(operations), _by_path(later)
    needed = [s for path, steps in undone.items() for s in _needed_steps(steps, kept[path])]
    undoer = StepUndoer(repository, needed)
    files: dict[str, FileSnapshot | None] = {}
    conflicts = []
    for path, steps in undone.items():
        try:
            files[path] = _undo_steps(undoer, steps, kept[path], now[path])
        except UndoConflict as conflict:
            later_edits = tuple(
                f"edit {o.edit_id} of session {o.session_id}"
                for o in later
                if any(step.path == path for step in o.files)
            )
            conflicts.append(
                FileConflict(
                    path=path,
                    reason=conflict.reason,
                    lines=conflict.lines,
                    later_edits=later_edits,
                )
            )
    if conflicts:
        raise RollbackConflict(conflicts)
    return files


class StepUndoer:
    """Undoes steps, one file at a time."""

    def __init__(self, repository: ShadowRepository, steps: Iterable[FileStep]) -> None:
        images = (image for step in steps for image in (step.before, step.after))
        self._contents = repository.contents(image.blob for image in images if image is not None)
        self._repository = repository

    def undo(self, step: FileStep, now: FileSnapshot | None) -> FileSnapshot | None:
        """Return a file without the changes of a step. Raises UndoConflict."""
        before, after, current = step.before, step.after, image_of(now)
        if current == after:
            if before is None:
                return None
            return FileSnapshot(data=self._contents[before.blob], mode=before.mode)
        if current == before:
            return now
        if now is None:
            raise UndoConflict("was deleted")
        if before is None or after is None:
            raise UndoConflict("was changed" if before is None else "was created again")
        data = self._undo_content(now.data, before.blob, after.blob)
        return FileSnapshot(data=data, mode=_undo_mode(now.mode, before.mode, after.mode))

    def _undo_content(self, data: bytes, before: str, after: str) -> bytes:
        current = blob_id(data)
        if current == after:
            return self._contents[before]
        if before in (current, after):
            return data
        merged = self._repository.merge(data, self._contents[after], self._contents[before])
        if isinstance(merged, bytes):
            return merged
        raise UndoConflict("the same lines were changed" if merged else "was changed", merged)

    def undo_all(
        self, steps: Iterable[_NumberedStep], now: FileSnapshot | None
    ) -> FileSnapshot | None:
        """Return a file without the changes of several steps. Raises UndoConflict."""
        for _, step in sorted(steps, key=lambda numbered: numbered[0], reverse=True):
            now = self.undo(step, now)
        return now


def _undo_mode(now: int, before: int, after: int) -> int:
    if now == after:
        return before
    if before in (now, after):
        return now
    raise UndoConflict(f"its mode was changed to {now:o}")


def _undo_steps(
    undoer: StepUndoer,
    undone: Sequence[_NumberedStep],
    kept: Sequence[_NumberedStep],
    now: FileSnapshot | None,
) -> FileSnapshot | None:
    file = now
    for step in reversed(_collapse(step for _, step in undone)):
        if kept and image_of(file) == step.before:
            raise UndoConflict("a later edit already restored it")
        file = undoer.undo(step, file)
    if kept:
        try:
            expected = undoer.undo_all((*undone, *kept), now)
        except UndoConflict:
            return file  # the later edits cannot be undone with or without this rollback
        try:
            unharmed = undoer.undo_all(kept, file) == expected
        except UndoConflict:
            unharmed = False
        if not unharmed:
            raise UndoConflict("later edits build on it")
    return file


def _by_path(operations: Iterable[Operation]) -> defaultdict[str, list[_NumberedStep]]:
    steps: defaultdict[str, list[_NumberedStep]] = defaultdict(list)
    for operation in operations:
        for step in operation.files:
            steps[step.path].append((operation.number, step))
    return steps


def _needed_steps(undone: Sequence[_NumberedStep], kept: Sequence[_NumberedStep]) -> list[FileStep]:
    """Return the steps whose contents are read: each one only if later edits are kept."""
    steps = [step for _, step in (*undone, *kept)]
    return steps if kept else _collapse(steps)


def _collapse(steps: Iterable[FileStep]) -> list[FileStep]:
    """Join consecutive steps of one file and drop those that change nothing."""
    joined: list[FileStep] = []
    for step in steps:
        if joined and joined[-1].after == step.before:
            joined[-1] = FileStep(path=step.path, before=joined[-1].before, after=step.after)
        else:
            joined.append(step)
    return [step for step in joined if step.before != step.after]
