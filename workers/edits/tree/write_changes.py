"""Perform changes: all of them or none, as far as one process can.

All content is first written to temporary files beside its targets, so that a full disk is found
before any file changes. Then files are deleted and renamed into place, and folders synced. After a
failure the files are restored; after a kill, the journal does that.
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
from mulligan.workers.edits.tree import confined_paths
from mulligan.workers.edits.tree.confined_paths import FileSnapshot

TEMPORARY_PREFIX = ".mulligan-tmp-"
NEW_FILE_MODE = 0o644
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def check(
    root: Path, changes: Sequence[FileChange], *, max_bytes: int = MAX_BYTES
) -> dict[str, FileSnapshot | None]:
    """Return the files as they are, by path. Raises EditConflict if a file is not the one that its
    change was computed from, EditRefused if it may not be written."""
    deleted = _deleted(changes)
    files: dict[str, FileSnapshot | None] = {}
    for change in changes:
        path = confined_paths.normalize(change.path)
        if path in files:
            raise EditRefused(f"{path}: is changed twice in one edit")
        confined_paths.check_size(path, len(change.after or b""), max_bytes)
        files[path] = _read_unchanged(root, path, change, deleted, max_bytes)
    return files


def perform(root: Path, changes: Sequence[FileChange], *, max_bytes: int = MAX_BYTES) -> None:
    """Write every change, or raise and leave the files as they were."""
    changes = [replace(change, path=confined_paths.normalize(change.path)) for change in changes]
    files = check(root, changes, max_bytes=max_bytes)
    deleted = _deleted(changes)
    effective = [change for change in changes if not change.unchanged]
    written = [change for change in effective if change.after is not None]
    staged: dict[str, str] = {}
    with ExitStack() as undo:
        for change in written:
            if not _below_deleted(change.path, deleted):
                _stage(root, change, files, staged, undo)
        for change in effective:
            if change.after is None:
                _recheck(root, change, deleted, max_bytes)
                undo.callback(_restore, root, change.path, files)
                put(root, change.path, None)
        for change in written:
            if change.path not in staged:
                _stage(root, change, files, staged, undo)
            _recheck(root, change, deleted, max_bytes)
            undo.callback(_restore, root, change.path, files)
            _place(root, change.path, staged.pop(change.path))
        _sync(root, written)
        undo.pop_all()


def put(root: Path, path: str, data: bytes | None, mode: int | None = None) -> None:
    """Write one file whatever its content is; None deletes it. Doing it twice is harmless."""
    with _refusing(path), confined_paths.open_parent(root, path, create=data is not None) as folder:
        if folder is None:
            return
        name = path.rpartition("/")[2]
        if data is None:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
        else:
            temporary = _write_temporary(folder, data, NEW_FILE_MODE if mode is None else mode)
            _rename(folder, temporary, name, path)
        os.fsync(folder)


def remove_leftovers(root: Path, paths: Iterable[str]) -> None:
    """Remove the temporary files that a killed process left beside these paths."""
    for parent in {path.rpartition("/")[0] for path in paths}:
        inside = f"{parent}/x" if parent else "x"
        with _refusing(parent), confined_paths.open_parent(root, inside) as folder:
            if folder is None:
                continue
            with os.scandir(folder) as entries:
                names = [entry.name for entry in entries if entry.name.startswith(TEMPORARY_PREFIX)]
            for name in names:
                os.unlink(name, dir_fd=folder)


def _deleted(changes: Sequence[FileChange]) -> frozenset[str]:
    return frozenset(
        confined_paths.normalize(change.path)
        for change in changes
        if change.before is not None and change.after is None
    )


def _below_deleted(path: str, deleted: Collection[str]) -> bool:
    """Return whether a file is deleted to make room for a parent folder of this path."""
    parts = confined_paths.split_path(path)
    return any("/".join(parts[:depth]) in deleted for depth in range(1, len(parts)))


def _read_unchanged(
    root: Path, path: str, change: FileChange, deleted: Collection[str], max_bytes: int
) -> FileSnapshot | None:
    """Return the file. Raises EditConflict if it changed since the edit was computed."""
    if change.before is None and (
        _below_deleted(path, deleted) or _is_emptied_folder(root, path, deleted)
    ):
        return None
    file = confined_paths.read(root, path, max_bytes=max_bytes)
    if (None if file is None else file.data) != change.before:
        event = "has changed" if change.before is not None else "was created"
        event = "was deleted" if file is None else event
        raise EditConflict(f"{path}: {event} since the edit was computed")
    return file


def _is_emptied_folder(root: Path, path: str, deleted: Collection[str]) -> bool:
    """Return whether the path is a folder whose files are all deleted: a file replaces it."""
    with confined_paths.open_parent(root, path) as folder:
        name = path.rpartition("/")[2]
        kind = None if folder is None else confined_paths.mode_at(folder, name, path)
        if kind is None or not stat.S_ISDIR(kind):
            return False
        files = [
            f"{path.removesuffix(name)}{here}/{file}"
            for here, _, names, _ in os.fwalk(name, dir_fd=folder)
            for file in names
        ]
    return all(file in deleted for file in files if TEMPORARY_PREFIX not in file)


def _recheck(root: Path, change: FileChange, deleted: Collection[str], max_bytes: int) -> None:
    """Check a file once more right before it is replaced or deleted."""
    if change.before is not None:
        _read_unchanged(root, change.path, change, deleted, max_bytes)
        return
    with confined_paths.open_parent(root, change.path) as folder:
        name = change.path.rpartition("/")[2]
        kind = None if folder is None else confined_paths.mode_at(folder, name, change.path)
    if kind is not None and not stat.S_ISDIR(kind):
        raise EditConflict(f"{change.path}: was created since the edit was computed")


def _stage(
    root: Path,
    change: FileChange,
    files: Mapping[str, FileSnapshot | None],
    staged: dict[str, str],
    undo: ExitStack,
) -> None:
    """Write the new content beside its target, with its final mode."""
    path, file = change.path, files[change.path]
    kept = NEW_FILE_MODE if file is None else file.mode
    for folder_path in _missing_folders(root, path):
        undo.callback(_remove_folder, root, folder_path)
    with _refusing(path), confined_paths.open_parent(root, path, create=True) as folder:
        if folder is None:
            raise EditConflict(f"{path}: its folder was removed while the edit was written")
        mode = kept if change.mode is None else change.mode
        staged[path] = _write_temporary(folder, change.after or b"", mode)
    undo.callback(_drop_temporary, root, path, staged[path])


def _write_temporary(folder: int, data: bytes, mode: int) -> str:
    name = TEMPORARY_PREFIX + secrets.token_hex(8)
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
    with _refusing(path), confined_paths.open_parent(root, path) as folder:
        if folder is None:
            raise EditConflict(f"{path}: its folder was removed while the edit was written")
        _rename(folder, temporary, path.rpartition("/")[2], path)


def _rename(folder: int, temporary: str, name: str, path: str) -> None:
    kind = confined_paths.mode_at(folder, name, path)
    if kind is not None and stat.S_ISDIR(kind):
        for _, folders, _, inside in os.fwalk(name, topdown=False, dir_fd=folder):
            for below in folders:
                os.rmdir(below, dir_fd=inside)
        os.rmdir(name, dir_fd=folder)
    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def _restore(root: Path, path: str, files: Mapping[str, FileSnapshot | None]) -> None:
    file = files[path]
    put(root, path, None if file is None else file.data, None if file is None else file.mode)


def _missing_folders(root: Path, path: str) -> list[str]:
    """Return the missing parent folders of a path, the outermost first."""
    parts = confined_paths.split_path(path)
    missing = []
    for depth in range(len(parts) - 1, 0, -1):
        with confined_paths.open_parent(root, "/".join(parts[: depth + 1])) as folder:
            if folder is not None:
                break
        missing.append("/".join(parts[:depth]))
    return missing[::-1]


def _remove_folder(root: Path, path: str) -> None:
    # A folder that is not empty has a file of another process: it stays.
    with confined_paths.open_parent(root, path) as folder, suppress(OSError):
        if folder is not None:
            os.rmdir(path.rpartition("/")[2], dir_fd=folder)


def _drop_temporary(root: Path, path: str, temporary: str) -> None:
    with confined_paths.open_parent(root, path) as folder, suppress(FileNotFoundError):
        if folder is not None:
            os.unlink(temporary, dir_fd=folder)


def _sync(root: Path, changes: Sequence[FileChange]) -> None:
    """Make the renames survive a power failure."""
    for parent in {change.path.rpartition("/")[0] for change in changes}:
        with confined_paths.open_parent(root, f"{parent}/x" if parent else "x") as folder:
            if folder is not None:
                os.fsync(folder)


@contextmanager
def _refusing(path: str) -> Iterator[None]:
    """Turn system errors into refusals of the edit."""
    try:
        yield
    except OSError as error:
        raise EditRefused(f"{path}: {error.strerror or error}") from error
