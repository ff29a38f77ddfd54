"""Keep the paths of edits inside their root, even if a folder is swapped for a symbolic link.

A path is split first, and every folder on the way is opened relative to its parent without
following links. So a check cannot race with a change of the tree: what is read or written is what
this walk reached.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rapidfuzz import fuzz, process

from mulligan.policies.edits.self_running import folded_name
from mulligan.tasks.ports.appliers import MAX_BYTES, EditRefused

#: Folders that belong to git (of the root and of nested repositories) and to mulligan.
RESERVED = frozenset({".git", "git~1", ".mulligan"})
#: mulligan's settings, in any folder: they decide which edits a person reviews.
SETTINGS = "mulligan.toml"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Folders without suggestions for a mistyped path, and without files for appliers that write.
UNSEARCHED = RESERVED | {"node_modules", ".venv", "__pycache__"}
_MAX_SEARCHED = 5_000


@dataclass(frozen=True, kw_only=True)
class FileSnapshot:
    """The content and mode of a regular file when it was read."""

    data: bytes
    #: Permission bits.
    mode: int

    @property
    def executable(self) -> bool:
        return bool(self.mode & stat.S_IXUSR)


def split_path(path: str) -> tuple[str, ...]:
    """Return the components of a path inside the root. Raises EditRefused for any other path."""
    if not path or "\0" in path:
        raise EditRefused(f"{path!r} is not a path: give a file inside the root")
    if path.startswith("/"):
        raise EditRefused(f"{path}: give a path relative to the root")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise EditRefused(f"{path!r} is not a path: it is not Unicode text") from None
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise EditRefused(f"{path}: '..' leads out of the root")
    if not parts or path.endswith("/"):
        raise EditRefused(f"{path}: is a folder; give a file")
    for part in parts:
        if folded_name(part) in RESERVED:
            raise EditRefused(f"{path}: nothing inside {folded_name(part)} may be edited")
        if folded_name(part) == SETTINGS:
            raise settings_refusal(path)
    return parts


def settings_refusal(path: str) -> EditRefused:
    """Return the error for an edit of what decides about edits: tiers, formatters, commands."""
    return EditRefused(f"{path}: edits may not change mulligan's settings; a person has to")


def normalize(path: str) -> str:
    """Return the one spelling of a path that changes use."""
    return "/".join(split_path(path))


@contextmanager
def open_parent(root: Path, path: str, *, create: bool = False) -> Iterator[int | None]:
    """Yield a descriptor of the folder that contains a path; None if it does not exist and
    ``create`` is not set."""
    try:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _refusal(str(root), error) from None
    try:
        parts = split_path(path)
        for depth, part in enumerate(parts[:-1], start=1):
            below = _step(folder, part, "/".join(parts[:depth]), create=create)
            if below is None:
                yield None
                return
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def read(root: Path, path: str, *, max_bytes: int = MAX_BYTES) -> FileSnapshot | None:
    """Return a regular file inside the root, or None if the path does not exist."""
    with open_parent(root, path) as folder:
        return None if folder is None else read_at(folder, path, max_bytes=max_bytes)


def read_at(folder: int, path: str, *, max_bytes: int = MAX_BYTES) -> FileSnapshot | None:
    """Return a regular file in an open folder, or None if it does not exist."""
    name = path.rpartition("/")[2]
    found = mode_at(folder, name, path)
    if found is None:
        return None
    if not stat.S_ISREG(found):
        raise EditRefused(f"{path}: is {_describe(found)}, not a file")
    try:
        descriptor = os.open(name, _FILE, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refusal(path, error) from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise EditRefused(f"{path}: is {_describe(status.st_mode)}, not a file")
        data = file.read(max_bytes + 1)
    check_size(path, len(data), max_bytes)
    return FileSnapshot(data=data, mode=stat.S_IMODE(status.st_mode))


def mode_at(folder: int, name: str, path: str) -> int | None:
    """Return the mode of an entry without following links; None if it does not exist."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refusal(path, error) from None


def check_size(path: str, size: int, max_bytes: int) -> None:
    """Raise EditRefused for a file that is too large."""
    if size > max_bytes:
        raise EditRefused(f"{path}: is over the cap of {max_bytes:,} bytes for one file")


def read_existing(root: Path, path: str, *, max_bytes: int = MAX_BYTES) -> FileSnapshot:
    """Return a regular file. Raises EditRefused if it does not exist, with similar names."""
    file = read(root, path, max_bytes=max_bytes)
    if file is None:
        raise EditRefused(f"{path}: does not exist{did_you_mean(root, path)}")
    return file


def did_you_mean(root: Path, path: str) -> str:
    """Return " (did you mean …?)" with the most similar paths, or nothing."""
    hits = process.extract(path, _files(root), scorer=fuzz.ratio, limit=3, score_cutoff=60)
    names = " or ".join(name for name, _, _ in hits)
    return f" (did you mean {names}?)" if names else ""


def _files(root: Path) -> list[str]:
    found: list[str] = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in UNSEARCHED)
        found += [str((Path(folder) / name).relative_to(root)) for name in sorted(names)]
        if len(found) > _MAX_SEARCHED:
            break
    return found


def _step(folder: int, part: str, path: str, *, create: bool) -> int | None:
    try:
        return os.open(part, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            return None
    except OSError as error:
        raise _folder_refusal(folder, part, path, error) from None
    try:
        os.mkdir(part, dir_fd=folder)
        os.fsync(folder)
        return os.open(part, _FOLDER, dir_fd=folder)
    except OSError as error:
        raise _folder_refusal(folder, part, path, error) from None


def _folder_refusal(folder: int, part: str, path: str, error: OSError) -> EditRefused:
    found = mode_at(folder, part, path)
    if found is None or stat.S_ISDIR(found):
        return _refusal(path, error)
    if stat.S_ISLNK(found):
        return EditRefused(f"{path}: is a symbolic link; edits do not follow links")
    return EditRefused(f"{path}: is {_describe(found)}, not a folder")


def _refusal(path: str, error: OSError) -> EditRefused:
    return EditRefused(f"{path}: {error.strerror or error}")


def _describe(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISREG(mode):
        return "a file"
    return "a special file (pipe, socket or device)"
