"""Performs changes: all of them or none, as far as one process can.

Everything is written to temporary files beside its targets first, so that a full disk is found
before anything is touched; then files are deleted and renamed into place, and folders synced. What
fails half-way is put back. A process that dies half-way leaves that to the journal.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from mulligan.tasks.ports.appliers import MAX_BYTES, EditConflict, EditRefused, FileChange
from mulligan.workers.edits.tree import confined_paths as confine
from mulligan.workers.edits.tree.confined_paths import SeenFile

#: What a temporary file's name starts with.
TEMPORARY = ".mulligan-tmp-"
NEW_FILE = 0o644
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def check(
    root: Path, changes: Sequence[FileChange], *, max_bytes: int = MAX_BYTES
) -> dict[str, SeenFile | None]:
    """The files as they are, by path. Raises EditConflict if one is not what its change was
    computed from, EditRefused if one may not be written."""
    gone = _gone(changes)
    found: dict[str, SeenFile | None] = {}
    for change in changes:
        path = confine.normal(change.path)
        if path in found:
            raise EditRefused(f"{path}: is changed twice in one edit")
        confine.refuse_large(path, len(change.after or b""), max_bytes)
        found[path] = _found(root, path, change, gone, max_bytes)
    return found


def perform(root: Path, changes: Sequence[FileChange], *, max_bytes: int = MAX_BYTES) -> None:
    """Write every change, or raise and leave the files as they were."""
    changes = [replace(change, path=confine.normal(change.path)) for change in changes]
    found = check(root, changes, max_bytes=max_bytes)
    gone = _gone(changes)
    work = [change for change in changes if not change.unchanged]
    written = [change for change in work if change.after is not None]
    staged: dict[str, str] = {}
    with ExitStack() as undo:
        for change in written:
            if not _under(change.path, gone):
                _stage(root, change, found, staged, undo)
        for change in work:
            if change.after is None:
                _recheck(root, change, gone, max_bytes)
                undo.callback(_restore, root, change.path, found)
                put(root, change.path, None)
        for change in written:
            if change.path not in staged:
                _stage(root, change, found, staged, undo)
            _recheck(root, change, gone, max_bytes)
            undo.callback(_restore, root, change.path, found)
            _place(root, change.path, staged.pop(change.path))
        _sync(root, written)
        undo.pop_all()


def put(root: Path, path: str, data: bytes | None, mode: int | None = None) -> None:
    """Make one file have this content, whatever it had; None deletes it. For undoing and redoing:
    doing it twice is harmless."""
    with _refusing(path), confine.opened_folder(root, path, create=data is not None) as folder:
        if folder is None:
            return
        name = path.rpartition("/")[2]
        if data is None:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
        else:
            temporary = _write_temporary(folder, data, NEW_FILE if mode is None else mode)
            _rename(folder, temporary, name, path)
        os.fsync(folder)


def remove_leftovers(root: Path, paths: Iterable[str]) -> None:
    """Remove the temporary files that a killed process left beside these paths."""
    for parent in {path.rpartition("/")[0] for path in paths}:
        inside = f"{parent}/x" if parent else "x"
        with _refusing(parent), confine.opened_folder(root, inside) as folder:
            if folder is None:
                continue
            with os.scandir(folder) as entries:
                names = [entry.name for entry in entries if entry.name.startswith(TEMPORARY)]
            for name in names:
                os.unlink(name, dir_fd=folder)


def _gone(changes: Sequence[FileChange]) -> frozenset[str]:
    """The paths that are deleted."""
    return frozenset(
        confine.normal(change.path)
        for change in changes
        if change.before is not None and change.after is None
    )


def _under(path: str, gone: Collection[str]) -> bool:
    """Whether a file is deleted to make room for the folder of this one."""
    parts = confine.parts_of(path)
    return any("/".join(parts[:depth]) in gone for depth in range(1, len(parts)))


def _found(
    root: Path, path: str, change: FileChange, gone: Collection[str], max_bytes: int
) -> SeenFile | None:
    if change.before is None and (_under(path, gone) or _emptied(root, path, gone)):
        return None
    seen = confine.read(root, path, max_bytes=max_bytes)
    if (None if seen is None else seen.data) != change.before:
        raise EditConflict(f"{path}: {_difference(seen, change)} since the edit was computed")
    return seen


def _difference(seen: SeenFile | None, change: FileChange) -> str:
    if seen is None:
        return "was deleted"
    return "was created" if change.before is None else "has changed"


def _emptied(root: Path, path: str, gone: Collection[str]) -> bool:
    """Whether a folder stands there all of whose files are deleted: a file takes its place."""
    with confine.opened_folder(root, path) as folder:
        name = path.rpartition("/")[2]
        kind = None if folder is None else confine.kind_at(folder, name, path)
        if kind is None or not stat.S_ISDIR(kind):
            return False
        files = [
            f"{path.removesuffix(name)}{here}/{file}"
            for here, _, names, _ in os.fwalk(name, dir_fd=folder)
            for file in names
        ]
    return all(file in gone for file in files if TEMPORARY not in file)


def _recheck(root: Path, change: FileChange, gone: Collection[str], max_bytes: int) -> None:
    """The last look before a file is replaced or deleted."""
    if change.before is not None:
        _found(root, change.path, change, gone, max_bytes)
        return
    with confine.opened_folder(root, change.path) as folder:
        name = change.path.rpartition("/")[2]
        kind = None if folder is None else confine.kind_at(folder, name, change.path)
    if kind is not None and not stat.S_ISDIR(kind):
        raise EditConflict(f"{change.path}: was created since the edit was computed")


def _stage(
    root: Path,
    change: FileChange,
    found: Mapping[str, SeenFile | None],
    staged: dict[str, str],
    undo: ExitStack,
) -> None:
    """Write the new content beside its target, with the mode that it will have."""
    path, seen = change.path, found[change.path]
    kept = NEW_FILE if seen is None else seen.mode
    for folder_path in _missing_folders(root, path):
        undo.callback(_remove_folder, root, folder_path)
    with _refusing(path), confine.opened_folder(root, path, create=True) as folder:
        if folder is None:
            raise EditConflict(f"{path}: its folder was removed while the edit was written")
        mode = kept if change.mode is None else change.mode
        staged[path] = _write_temporary(folder, change.after or b"", mode)
    undo.callback(_drop_temporary, root, path, staged[path])


def _write_temporary(folder: int, data: bytes, mode: int) -> str:
    name = TEMPORARY + secrets.token_hex(8)
    descriptor = os.open(name, _CREATE, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode & 0o7777)
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(name, dir_fd=folder)
        raise
    return name


def _place(root: Path, path: str, temporary: str) -> None:
    with _refusing(path), confine.opened_folder(root, path) as folder:
        if folder is None:
            raise EditConflict(f"{path}: its folder was removed while the edit was written")
        _rename(folder, temporary, path.rpartition("/")[2], path)


def _rename(folder: int, temporary: str, name: str, path: str) -> None:
    kind = confine.kind_at(folder, name, path)
    if kind is not None and stat.S_ISDIR(kind):
        for _, folders, _, inside in os.fwalk(name, topdown=False, dir_fd=folder):
            for below in folders:
                os.rmdir(below, dir_fd=inside)
        os.rmdir(name, dir_fd=folder)
    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def _restore(root: Path, path: str, found: Mapping[str, SeenFile | None]) -> None:
    seen = found[path]
    put(root, path, None if seen is None else seen.data, None if seen is None else seen.mode)


def _missing_folders(root: Path, path: str) -> list[str]:
    """The folders on the way to a path that are not there, the outermost first."""
    parts = confine.parts_of(path)
    missing = []
    for depth in range(len(parts) - 1, 0, -1):
        with confine.opened_folder(root, "/".join(parts[: depth + 1])) as folder:
            if folder is not None:
                break
        missing.append("/".join(parts[:depth]))
    return missing[::-1]


def _remove_folder(root: Path, path: str) -> None:
    # Not empty means that somebody else put a file there: it stays.
    with confine.opened_folder(root, path) as folder, suppress(OSError):
        if folder is not None:
            os.rmdir(path.rpartition("/")[2], dir_fd=folder)


def _drop_temporary(root: Path, path: str, temporary: str) -> None:
    with confine.opened_folder(root, path) as folder, suppress(FileNotFoundError):
        if folder is not None:
            os.unlink(temporary, dir_fd=folder)


def _sync(root: Path, changes: Sequence[FileChange]) -> None:
    """Make the renames last through a power failure."""
    for parent in {change.path.rpartition("/")[0] for change in changes}:
        with confine.opened_folder(root, f"{parent}/x" if parent else "x") as folder:
            if folder is not None:
                os.fsync(folder)


@contextmanager
def _refusing(path: str) -> Iterator[None]:
    """The system's errors as refusals: nothing else in a plan can do anything about them."""
    try:
        yield
    except OSError as error:
        raise EditRefused(f"{path}: {error.strerror or error}") from error
