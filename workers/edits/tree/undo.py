"""What taking operations back makes of the files as they are now.

File by file: a file that still is as an operation left it becomes what it was before, byte for
byte. One that changed since is merged three ways, so that other lines keep what they became; where
that is impossible there is a conflict, and nothing at all is taken back.

A merge can also succeed and lose something: where a later edit has put back what an earlier one
changed, there is nothing left to take back of the earlier, and taking back the later would restore
it. So what would be left if the later edits were taken back too must be the same with and without
this rollback. That makes the order of rollbacks indifferent: whichever of them are possible lead
to the same files, and the last edit of a file can always be taken back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from mulligan.tasks.ports.appliers import EditConflict
from mulligan.workers.edits.tree.confined_paths import FileSnapshot
from mulligan.workers.edits.tree.journal import FileStep, Image, Operation
from mulligan.workers.edits.tree.shadow_repository import Lines, ShadowRepository, blob_id


@dataclass(frozen=True, kw_only=True)
class FileConflict:
    """A file that cannot be taken back to what it was."""

    path: str
    why: str
    #: The lines, as the file is now, that are in the way: from and to.
    lines: tuple[Lines, ...] = ()
    #: The later operations on the file, for people.
    since: tuple[str, ...] = ()

    def __str__(self) -> str:
        ranges = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in self.lines)
        where = f"{self.path}, line {ranges}" if ranges else self.path
        later = f" (since then: {'; '.join(self.since)})" if self.since else ""
        return f"{where}: {self.why}{later}"


class RollbackConflict(EditConflict):
    """Something changed the same lines since; nothing was taken back."""

    def __init__(self, conflicts: Sequence[FileConflict]) -> None:
        self.conflicts = tuple(conflicts)
        super().__init__(*(str(conflict) for conflict in conflicts))


class _InTheWay(Exception):
    def __init__(self, why: str, lines: Sequence[Lines] = ()) -> None:
        self.why = why
        self.lines = tuple(lines)
        super().__init__(why)


def image_of(seen: FileSnapshot | None) -> Image | None:
    return None if seen is None else Image(blob=blob_id(seen.data), mode=seen.mode)


def collapsed(steps: Iterable[FileStep]) -> list[FileStep]:
    """Steps of one file that follow upon each other as one; what changed nothing is left out."""
    runs: list[FileStep] = []
    for step in steps:
        if runs and runs[-1].after == step.before:
            runs[-1] = FileStep(path=step.path, before=runs[-1].before, after=step.after)
        else:
            runs.append(step)
    return [run for run in runs if run.before != run.after]


def taken_back(
    operations: Sequence[Operation],
    later: Sequence[Operation],
    now: Mapping[str, FileSnapshot | None],
    repository: ShadowRepository,
) -> dict[str, FileSnapshot | None]:
    """The files of these operations, the oldest first, as they have to become. Raises
    RollbackConflict. ``later``: the edits that stand, stay, and came after the first of these."""
    taken, kept = _by_path(operations), _by_path(later)
    used = [s for path, steps in taken.items() for s in _read_for(steps, kept.get(path, ()))]
    images = (image for step in used for image in (step.before, step.after))
    files = _Files(repository, repository.contents(i.blob for i in images if i is not None))
    wanted: dict[str, FileSnapshot | None] = {}
    conflicts = []
    for path, steps in taken.items():
        try:
            wanted[path] = files.without(steps, kept.get(path, ()), now[path])
        except _InTheWay as way:
            since = tuple(_named(o) for o in later if any(s.path == path for s in o.files))
            conflicts.append(FileConflict(path=path, why=way.why, lines=way.lines, since=since))
    if conflicts:
        raise RollbackConflict(conflicts)
    return wanted


#: A step with the number of its operation.
_Step = tuple[int, FileStep]


@dataclass(frozen=True)
class _Files:
    """Files with some of their steps taken back, one file at a time."""

    repository: ShadowRepository
    contents: Mapping[str, bytes]

    def without(
        self, taken: Sequence[_Step], kept: Sequence[_Step], now: FileSnapshot | None
    ) -> FileSnapshot | None:
        """The file without the steps that are taken back."""
        wanted = now
        for run in reversed(collapsed(step for _, step in taken)):
            if kept and image_of(wanted) == run.before:
                raise _InTheWay("a later edit has put back what it was")
            wanted = without(run, wanted, self.contents, self.repository)
        if kept:
            self._refuse_loss(taken, kept, now, wanted)
        return wanted

    def _refuse_loss(
        self,
        taken: Sequence[_Step],
        kept: Sequence[_Step],
        now: FileSnapshot | None,
        wanted: FileSnapshot | None,
    ) -> None:
        try:
            promised = self._backwards((*taken, *kept), now)
        except _InTheWay:
            return  # somebody else's lines are in the way of the later edits, now as before
        try:
            left = self._backwards(kept, wanted)
        except _InTheWay:
            raise _InTheWay("later edits build on it") from None
        if left != promised:
            raise _InTheWay("later edits build on it")

    def _backwards(self, steps: Sequence[_Step], seen: FileSnapshot | None) -> FileSnapshot | None:
        for _, step in sorted(steps, key=lambda numbered: numbered[0], reverse=True):
            seen = without(step, seen, self.contents, self.repository)
        return seen


def _by_path(operations: Iterable[Operation]) -> dict[str, list[_Step]]:
    steps: dict[str, list[_Step]] = {}
    for operation in operations:
        for step in operation.files:
            steps.setdefault(step.path, []).append((operation.number, step))
    return steps


def _read_for(taken: Sequence[_Step], kept: Sequence[_Step]) -> list[FileStep]:
    """The steps whose contents are needed: what lies inside of a run only if it is looked into."""
    steps = [step for _, step in (*taken, *kept)]
    return steps if kept else collapsed(steps)


def _named(operation: Operation) -> str:
    return f"edit {operation.edit_id} of session {operation.session_id}"


def unwritten(
    step: FileStep,
    now: FileSnapshot | None,
    contents: Mapping[str, bytes],
    repository: ShadowRepository,
) -> FileSnapshot | None:
    """A file that somebody changed after the process died that was writing it: without the
    operation, or as it is, if the two cannot be told apart."""
    try:
        return without(step, now, contents, repository)
    except _InTheWay:
        return now


def without(
    step: FileStep,
    now: FileSnapshot | None,
    contents: Mapping[str, bytes],
    repository: ShadowRepository,
) -> FileSnapshot | None:
    before, after, current = step.before, step.after, image_of(now)
    if current == after:
        return (
            None if before is None else FileSnapshot(data=contents[before.blob], mode=before.mode)
        )
    if current == before:
        return now
    if now is None or current is None:
        raise _InTheWay("was deleted")
    if before is None or after is None:
        raise _InTheWay("was changed" if before is None else "was created again")
    data = _content(now, before, after, contents, repository)
    return FileSnapshot(data=data, mode=_mode(now.mode, before.mode, after.mode))


def _content(
    now: FileSnapshot,
    before: Image,
    after: Image,
    contents: Mapping[str, bytes],
    repository: ShadowRepository,
) -> bytes:
    current = blob_id(now.data)
    if current == after.blob:
        return contents[before.blob]
    if current == before.blob or before.blob == after.blob:
        return now.data
    merged = repository.merged(now.data, contents[after.blob], contents[before.blob])
    return merged if isinstance(merged, bytes) else _refuse(merged)


def _refuse(lines: Sequence[Lines]) -> NoReturn:
    raise _InTheWay("the same lines were changed" if lines else "was changed", lines)


def _mode(now: int, before: int, after: int) -> int:
    if now == after:
        return before
    if now == before or before == after:
        return now
    raise _InTheWay(f"its mode was changed to {now:o}")
