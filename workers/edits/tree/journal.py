"""What was done to a tree, and what is being done: an append-only file of JSON lines, synced.

An operation is one edit or one rollback. Its ``intent`` is written before the first file is
touched, ``done`` after the last, ``undone`` if it came to nothing. The contents are in the shadow
repository, named by their hashes, and are stored before the intent is. ``committed`` says which
commits the operations became. An intent without an end is a process that died; ``operating.py``
settles it.
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
    """The history of a tree cannot be read or written; the message says what to look at."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """A regular file at one moment."""

    #: The name of its content in the shadow repository.
    blob: str
    #: All permission bits; git itself keeps only one of them.
    mode: int


@dataclass(frozen=True, kw_only=True)
class FileStep:
    """One file before and after an operation; None: not there."""

    path: str
    before: Image | None
    after: Image | None


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One edit or one rollback: all of its files, or none."""

    number: int
    kind: Kind
    #: Seconds since 1970.
    at: float
    #: The number of the lock that it was written under.
    fence: int
    session_id: str | None = None
    edit_id: str | None = None
    tier: str | None = None
    files: tuple[FileStep, ...] = ()
    #: Folders that it makes: undoing it removes them again, if nothing else is in them.
    made: tuple[str, ...] = ()
    #: Folders that it removes, if nothing else is in them.
    dropped: tuple[str, ...] = ()
    #: The operations that a rollback takes back.
    undoes: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """For people."""
        if self.edit_id:
            what = f"edit {self.edit_id}" + (
                f" of session {self.session_id}" * bool(self.session_id)
            )
        elif self.session_id:
            what = f"session {self.session_id}"
        else:
            what = "to a checkpoint"
        return f"Apply {what}" if self.kind == "edit" else f"Roll back {what}"


def in_force(operations: Iterable[Operation]) -> frozenset[int]:
    """The operations whose effect stands: no rollback that itself stands takes them back."""
    standing: set[int] = set()
    undone: set[int] = set()
    for operation in sorted(operations, key=lambda o: o.number, reverse=True):
        if operation.number not in undone:
            standing.add(operation.number)
            undone.update(operation.undoes)
    return frozenset(standing)


class Journal:
    """The journal of one tree. Only the holder of the tree's lock may write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forget()

    def _forget(self) -> None:
        #: Operations that are done, in order.
        self.done: dict[int, Operation] = {}
        #: The commits that they became.
        self.commits: dict[int, str] = {}
        #: The operation that is under way, or was when its process died.
        self.open: Operation | None = None
        self._last = 0
        self._read_up_to = 0

    @property
    def next_number(self) -> int:
        return self._last + 1

    @property
    def uncommitted(self) -> list[Operation]:
        return [o for number, o in self.done.items() if number not in self.commits]

    def load(self) -> None:
        """Take in what was written since the last time. A last line that is not whole was never
        synced, so nothing relied on it: it does not count."""
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._read_up_to:
                    self._forget()
                file.seek(self._read_up_to)
                self._take_in(file.read())
        except FileNotFoundError:
            self._forget()

    def _take_in(self, text: bytes) -> None:
        lines = text.split(b"\n")
        for i, line in enumerate(lines[:-1]):
            try:
                record = json.loads(line)
            except ValueError:
                if any(lines[i + 1 :]):
                    at = self._read_up_to
                    raise TreeFault(f"{self._path}: is damaged at byte {at}") from None
                return
            self._fold(record)
            self._read_up_to += len(line) + 1

    def _fold(self, record: Mapping[str, Any]) -> None:
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
                    raise TreeFault(f"{self._path}: does not make sense at {unexpected!r}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TreeFault(f"{self._path}: has a record of another form: {error}") from error

    def intend(self, operation: Operation) -> None:
        """Before the first file is touched."""
        self._append({"record": "intent", "operation": asdict(operation)})

    def finish(self, number: int) -> None:
        """Every file is written."""
        self._append({"record": "done", "number": number})

    def undo(self, number: int, *, left: Sequence[str] = ()) -> None:
        """Every file is as it was, but for those that somebody else changed meanwhile (left)."""
        self._append({"record": "undone", "number": number, "left": list(left)})

    def commit(self, commits: Mapping[int, str]) -> None:
        """The operations became these commits."""
        self._append({"record": "committed", "commits": {str(n): c for n, c in commits.items()}})

    def _append(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        try:
            self._write(line)
        except OSError as error:
            raise TreeFault(f"{self._path}: {error.strerror or error}") from error
        self._take_in(line)

    def _write(self, line: bytes) -> None:
        new = not self._path.exists()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # What a torn write left behind is not a record.
            os.ftruncate(descriptor, self._read_up_to)
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.seek(self._read_up_to)
                file.write(line)
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, self._read_up_to)
            raise
        finally:
            os.close(descriptor)
        if new:
            sync_folder(self._path.parent)


def sync_folder(path: Path) -> None:
    """Make new names in a folder last through a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _operation(found: Mapping[str, Any]) -> Operation:
    steps = tuple(
        FileStep(path=f["path"], before=_image(f["before"]), after=_image(f["after"]))
        for f in found["files"]
    )
    lists = {name: tuple(found[name]) for name in ("made", "dropped", "undoes")}
    return Operation(**{**found, "files": steps, **lists})


def _image(found: Mapping[str, Any] | None) -> Image | None:
    return None if found is None else Image(blob=found["blob"], mode=found["mode"])
