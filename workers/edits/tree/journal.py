"""The journal of a tree: an append-only file of JSON lines, each synced.

An operation is one edit or one rollback. Its ``intent`` is written before the first file is
touched, ``done`` after the last, ``undone`` if it failed. The contents are in the shadow
repository, named by their hashes, and are stored before the intent. ``committed`` gives the
commits of the operations. An intent without an end belongs to a process that died; ``operator.py``
recovers it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from mulligan.tasks.ports.errors import MulliganError

Kind = Literal["edit", "rollback"]


class TreeFault(MulliganError):
    """The history of a tree cannot be read or written."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """A regular file at one moment."""

    #: The hash of its content.
    blob: str
    #: All permission bits; git keeps only one of them.
    mode: int


@dataclass(frozen=True, kw_only=True)
class FileStep:
    """One file before and after an operation; None: it does not exist."""

    path: str
    before: Image | None
    after: Image | None


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One edit or one rollback."""

    number: int
    kind: Kind
    #: Seconds since 1970.
    at: float
    #: The fence of the lock that it was written under.
    fence: int
    session_id: str | None = None
    edit_id: str | None = None
    tier: str | None = None
    files: tuple[FileStep, ...] = ()
    #: Undoing the operation removes them if they are empty.
    created_folders: tuple[str, ...] = ()
    #: Folders that it removes if they are empty.
    removed_folders: tuple[str, ...] = ()
    #: The operations that a rollback undoes.
    undoes: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """The first line of the commit message."""
        if self.edit_id:
            what = f"edit {self.edit_id} of session {self.session_id}"
        elif self.session_id:
            what = f"session {self.session_id}"
        else:
            what = "to a checkpoint"
        return f"Apply {what}" if self.kind == "edit" else f"Roll back {what}"


def in_force(operations: Iterable[Operation]) -> frozenset[int]:
    """Return the numbers of the operations that no rollback in force undoes."""
    found: set[int] = set()
    undone: set[int] = set()
    for operation in sorted(operations, key=lambda o: o.number, reverse=True):
        if operation.number not in undone:
            found.add(operation.number)
            undone.update(operation.undoes)
    return frozenset(found)


class Journal:
    """The operations of one tree. Only the holder of the tree's lock may write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clear()

    def _clear(self) -> None:
        #: Completed operations by number, in order.
        self.done: dict[int, Operation] = {}
        #: Their commits.
        self.commits: dict[int, str] = {}
        #: The operation under way, or the one whose process died.
        self.open: Operation | None = None
        self._last = 0
        self._offset = 0

    @property
    def next_number(self) -> int:
        return self._last + 1

    @property
    def uncommitted(self) -> list[Operation]:
        return [o for number, o in self.done.items() if number not in self.commits]

    def load(self) -> None:
        """Read what was written since the last time. An incomplete last line is ignored: it was
        never synced, so nothing relied on it."""
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._clear()
                file.seek(self._offset)
                self._replay(file.read())
        except FileNotFoundError:
            self._clear()

    def _replay(self, text: bytes) -> None:
        lines = text.split(b"\n")
        for i, line in enumerate(lines[:-1]):
            try:
                record = json.loads(line)
            except ValueError:
                if any(lines[i + 1 :]):
                    message = f"{self._path}: is damaged at byte {self._offset}"
                    raise TreeFault(message) from None
                return
            self._replay_record(record)
            self._offset += len(line) + 1

    def _replay_record(self, record: Mapping[str, Any]) -> None:
        try:
            match record["record"]:
                case "intent":
                    self.open = _operation(record["operation"])
                    self._last = self.open.number
                case "done" if self.open and self.open.number == record["number"]:
                    self.done[self.open.number] = self.open
                    self.open = None
                case "undone" if self.open and self.open.number == record["number"]:
                    self.open = None
                case "committed":
                    self.commits |= {int(n): str(c) for n, c in record["commits"].items()}
                case unexpected:
                    raise TreeFault(f"{self._path}: unexpected record {unexpected!r}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TreeFault(f"{self._path}: has an invalid record: {error}") from error

    def intend(self, operation: Operation) -> None:
        """Record an operation before its first file is touched."""
        self._append({"record": "intent", "operation": _operation_record(operation)})

    def finish(self, number: int) -> None:
        """Record that every file of the open operation is written."""
        self._append({"record": "done", "number": number})

    def undo(self, number: int, *, left_as_is: Sequence[str] = ()) -> None:
        """Record that every file is as before, except those that were changed in between."""
        self._append({"record": "undone", "number": number, "left": list(left_as_is)})

    def commit(self, commits: Mapping[int, str]) -> None:
        """Record the commits of operations."""
        self._append({"record": "committed", "commits": {str(n): c for n, c in commits.items()}})

    def edits(
        self, *, edit_id: str | None = None, session_id: str | None = None
    ) -> list[Operation]:
        """Return the edits, optionally those with one id or of one session."""
        return [
            o
            for o in self.done.values()
            if o.kind == "edit"
            and edit_id in (None, o.edit_id)
            and session_id in (None, o.session_id)
        ]

    def only_in_force(self, operations: Sequence[Operation]) -> list[Operation]:
        """Return the operations that are in force."""
        if not operations:
            return []
        numbers = in_force(self.done.values())
        return [o for o in operations if o.number in numbers]

    def folders_created_for(self, operations: Sequence[Operation]) -> set[str]:
        """Return the folders that were created for the files of these operations: by them, or by
        edits that were rolled back while these still needed the folder."""
        found = {folder for o in operations for folder in o.created_folders}
        for rollback in self.done.values():
            for creator in (self.done[number] for number in rollback.undoes):
                if not creator.created_folders:
                    continue
                between = [o for o in operations if creator.number < o.number < rollback.number]
                paths = [step.path for o in between for step in o.files]
                found |= {
                    folder
                    for folder in creator.created_folders
                    if any(path.startswith(f"{folder}/") for path in paths)
                }
        return found

    def _append(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        try:
            self._write(line)
        except OSError as error:
            raise TreeFault(f"{self._path}: {error.strerror or error}") from error
        self._replay(line)

    def _write(self, line: bytes) -> None:
        new = not self._path.exists()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Remove what a torn write left.
            os.ftruncate(descriptor, self._offset)
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.seek(self._offset)
                file.write(line)
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, self._offset)
            raise
        finally:
            os.close(descriptor)
        if new:
            sync_folder(self._path.parent)


def sync_folder(path: Path) -> None:
    """Make new names in a folder survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _operation_record(operation: Operation) -> dict[str, Any]:
    record = asdict(operation)
    record["made"] = record.pop("created_folders")
    record["dropped"] = record.pop("removed_folders")
    return record


def _operation(record: Mapping[str, Any]) -> Operation:
    fields = dict(record)
    fields["files"] = tuple(
        FileStep(path=f["path"], before=_image(f["before"]), after=_image(f["after"]))
        for f in fields["files"]
    )
    fields["created_folders"] = tuple(fields.pop("made"))
    fields["removed_folders"] = tuple(fields.pop("dropped"))
    fields["undoes"] = tuple(fields["undoes"])
    return Operation(**fields)


def _image(record: Mapping[str, Any] | None) -> Image | None:
    return None if record is None else Image(**record)
