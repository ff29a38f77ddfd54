"""Read what an agent made of its directory, while it may still be at work.

Git names the files that are not ignored. Everything else is done here: a file is opened from one
directory to the next, and no step follows a link. Otherwise an agent could exchange a directory for
a link in between, and have files of the worker's user saved as its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mulligan.tasks.ports.errors import RepositoryUnavailable
from mulligan.workers.repositories import loose_objects
from mulligan.workers.repositories.git_directory import ObjectFormat

FILE, PROGRAM, LINK, GITLINK = "100644", "100755", "120000", "160000"
MOST_ENTRIES = 50_000
MOST_BYTES = 500_000_000
_MOST_LEVELS = 100
#: Larger files are read twice instead of being held in memory.
_IN_MEMORY = 32 << 20
#: A file that changed so shortly before it was read may change again with the same times.
_SAME_TIME_NS = 2_000_000_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CONTENT = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_SUCH = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO, errno.ENXIO, errno.ESTALE)
#: Names that git refuses in a tree, because some file system takes them for `.git`.
_LIKE_GIT = re.compile(rb"(?:\.git|git~1)[. ]*(?:[\\:].*)?", re.IGNORECASE | re.DOTALL)
#: And those of links, because it is read.
_LIKE_GITMODULES = re.compile(
    rb"(?:\.gitmodules|gitmod~\d|gi7[0-9a-f]*~\d+)[. ]*(?:[\\:].*)?", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True)
class TreeEntry:
    """An entry of a git tree."""

    mode: str
    oid: str


@dataclass(frozen=True)
class _Read:
    """What was read of a file, and by what it is known that this is still right."""

    signature: tuple[int, ...]
    is_settled: bool
    entry: TreeEntry


@dataclass
class _Counted:
    """What a tree has that its start has not."""

    entries: int = 0
    content: int = 0

    def add(self, size: int) -> None:
        if self.entries >= MOST_ENTRIES or self.content + size > MOST_BYTES:
            raise _TooMuch
        self.entries += 1
        self.content += size


class _Missing(Exception):
    """There is nothing at a path that can be part of a tree."""


class _Kept(Exception):
    """It cannot be read now: what it was before is kept."""


class _TooMuch(Exception):
    """There is no room for it."""


@dataclass
class WorkTree:
    """A directory, and the tree that it began with."""

    directory: Path
    start: Mapping[bytes, TreeEntry]
    #: The directory of objects that gets the new contents.
    objects: Path
    object_format: ObjectFormat
    #: Returns the size of a content of the start.
    size_of: Callable[[str], int]
    #: What was too much the last time, and the bytes of new content that were not.
    left_out: list[bytes] = field(default_factory=list)
    content: int = 0
    _read: dict[bytes, _Read] = field(default_factory=dict)
    _last: dict[bytes, TreeEntry] = field(default_factory=dict)

    def take(self, others: Iterable[bytes]) -> dict[bytes, TreeEntry]:
        """Return its files as they are, and write their contents.

        ``others``: the files that the start does not have and that are not ignored. What is too
        much stays as it was at the start.
        """
        self.left_out = []
        known = {entry.oid for entry in self.start.values()}
        counted, found = _Counted(), {}
        with contextlib.closing(_Folders(self.directory)) as folders:
            # Changes first: if there is too much, what is new has to go.
            for path in [*sorted(self.start), *sorted({*others} - self.start.keys())]:
                if _is_refused(path):
                    continue
                before = self.start.get(path)
                try:
                    entry = self._entry(folders, path, before, known, counted)
                except _Missing:
                    continue
                except _Kept:
                    kept = self._last.get(path, before)
                    if kept is None:
                        continue
                    entry = kept
                except _TooMuch:
                    self.left_out.append(path)
                    if before is None:
                        continue
                    entry = before
                found[path] = entry
        self.content = counted.content
        self._read = {path: read for path, read in self._read.items() if path in found}
        self._last = found
        return dict(found)

    def _entry(
        self,
        folders: _Folders,
        path: bytes,
        before: TreeEntry | None,
        known: set[str],
        counted: _Counted,
    ) -> TreeEntry:
        is_submodule = before is not None and before.mode == GITLINK
        try:
            folder, name = folders.open(path)
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if is_submodule and stat.S_ISDIR(status.st_mode):
                raise _Kept
            if stat.S_ISLNK(status.st_mode):
                return self._link(folder, name, known, counted)
            if stat.S_ISREG(status.st_mode):
                return self._file(folder, name, path, known, counted)
        except OSError as error:
            if error.errno in _NO_SUCH and not is_submodule:
                raise _Missing from None
            if error.errno in (*_NO_SUCH, *_UNREADABLE):
                raise _Kept from None
            raise
        raise _Missing  # a directory, a pipe, a socket or a device

    def _link(self, folder: int, name: bytes, known: set[str], counted: _Counted) -> TreeEntry:
        if _LIKE_GITMODULES.fullmatch(name):
            raise _Missing
        target = os.readlink(name, dir_fd=folder)
        oid = loose_objects.blob_id(target, self.object_format)
        if oid not in known:
            counted.add(len(target))
            with _writing():
                loose_objects.write_blob(self.objects, target, self.object_format)
        return TreeEntry(LINK, oid)

    def _file(
        self, folder: int, name: bytes, path: bytes, known: set[str], counted: _Counted
    ) -> TreeEntry:
        descriptor = os.open(name, _CONTENT, dir_fd=folder)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - pathlib cannot refuse a link
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise _Missing
            mode = PROGRAM if status.st_mode & stat.S_IXUSR else FILE
            read = self._read.get(path)
            if read is not None and read.is_settled and read.signature == _signature(status):
                if read.entry.oid not in known:
                    counted.add(status.st_size)
                return TreeEntry(mode, read.entry.oid)
            at = time.time_ns()
            size = status.st_size
            if size <= _IN_MEMORY:
                data = file.read(size)
                oid = loose_objects.blob_id(data, self.object_format)
                if oid not in known:
                    counted.add(len(data))
                    with _writing():
                        loose_objects.write_blob(self.objects, data, self.object_format)
            else:
                oid = self._large(descriptor, size, self.start.get(path), known, counted)
        entry = TreeEntry(mode, oid)
        newest = max(status.st_mtime_ns, status.st_ctime_ns)
        settled = newest < at - _SAME_TIME_NS
        self._read[path] = _Read(_signature(status), settled, entry)
        return entry

    def _large(
        self,
        descriptor: int,
        size: int,
        before: TreeEntry | None,
        known: set[str],
        counted: _Counted,
    ) -> str:
        """Return the id of a large file. It is written unless it is known."""
        # Reading a file with a hole of a terabyte would take hours.
        if size > MOST_BYTES and (before is None or self.size_of(before.oid) != size):
            counted.add(size)
        with open(descriptor, "rb", closefd=False) as file:
            oid = loose_objects.file_id(file, size, self.object_format)
            if oid is not None and oid not in known:
                counted.add(size)
                file.seek(0)
                with _writing():
                    oid = loose_objects.write_file(self.objects, file, size, self.object_format)
        if oid is None:  # it is being written
            raise _Kept
        return oid


class _Folders:
    """The directories on the way to a file, none of which is a link."""

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, _FOLDER)
        self._open: list[tuple[bytes, int]] = []

    def open(self, path: bytes) -> tuple[int, bytes]:
        """Return the open directory of a file, and the file's name in it. Raise OSError."""
        *above, name = path.split(b"/")
        same = 0
        for wanted, (is_open, _) in zip(above, self._open, strict=False):
            if wanted != is_open:
                break
            same += 1
        self._close_from(same)
        for part in above[same:]:
            self._open.append((part, os.open(part, _FOLDER, dir_fd=self._top)))
        return self._top, name

    @property
    def _top(self) -> int:
        return self._open[-1][1] if self._open else self._root

    def _close_from(self, level: int) -> None:
        while len(self._open) > level:
            os.close(self._open.pop()[1])

    def close(self) -> None:
        self._close_from(0)
        os.close(self._root)


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """An error of the worker's own disk says nothing about the agent's files."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise RepositoryUnavailable(f"the work cannot be saved: {why}") from error


def _signature(status: os.stat_result) -> tuple[int, ...]:
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, *times)


def _is_refused(path: bytes) -> bool:
    parts = path.split(b"/")
    return len(parts) > _MOST_LEVELS or any(_LIKE_GIT.fullmatch(part) for part in parts)
