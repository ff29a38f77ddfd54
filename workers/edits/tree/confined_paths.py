"""Paths of edits stay inside their root, also while somebody swaps a folder for a symbolic link.

A path is taken apart before it is looked at, and every folder on the way is opened relative to the
one before it without following links. So no check can be outrun: what is read and written is what
the walk reached.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rapidfuzz import fuzz, process

from mulligan.tasks.ports.appliers import MAX_BYTES, EditRefused

#: Folders that belong to git (of the root and of nested repositories) and to mulligan.
RESERVED = frozenset({".git", "git~1", ".mulligan"})
#: mulligan's settings, in whichever folder: they say which edits a person has to look at.
SETTINGS = "mulligan.toml"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Never searched for a file that an edit may have meant.
_UNSEARCHED = RESERVED | {"node_modules", ".venv", "__pycache__"}
_SEARCHED = 5_000


@dataclass(frozen=True, kw_only=True)
class SeenFile:
    """A regular file as it was read."""

    data: bytes
    #: Permission bits.
    mode: int

    @property
    def executable(self) -> bool:
        return bool(self.mode & stat.S_IXUSR)


def parts_of(path: str) -> tuple[str, ...]:
    """The components of a path inside the root. Raises EditRefused for any other."""
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
        raise EditRefused(f"{path}: is a folder, give a file")
    for part in parts:
        if _folded(part) in RESERVED:
            raise EditRefused(f"{path}: nothing inside {_folded(part)} may be edited")
        if _folded(part) == SETTINGS:
            raise settings_refusal(path)
    return parts


def settings_refusal(path: str) -> EditRefused:
    """No edit may change what decides about edits: tiers, formatters, commands."""
    return EditRefused(
        f"{path}: holds mulligan's own settings; a person changes them, no edit does"
    )


def normal(path: str) -> str:
    """A path as changes give it: one spelling for each file."""
    return "/".join(parts_of(path))


@contextmanager
def opened_folder(root: Path, path: str, *, create: bool = False) -> Iterator[int | None]:
    """A descriptor of the folder that holds a path; None if it does not exist. ``create`` makes
    what is missing."""
    try:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _refusal(str(root), error) from None
    try:
        parts = parts_of(path)
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


def read(root: Path, path: str, *, max_bytes: int = MAX_BYTES) -> SeenFile | None:
    """A regular file inside the root, or None if nothing is there."""
    with opened_folder(root, path) as folder:
        return None if folder is None else read_at(folder, path, max_bytes=max_bytes)


def read_at(folder: int, path: str, *, max_bytes: int = MAX_BYTES) -> SeenFile | None:
    """The same for a file whose folder is open."""
    name = path.rpartition("/")[2]
    found = kind_at(folder, name, path)
    if found is None:
        return None
    if not stat.S_ISREG(found):
        raise EditRefused(f"{path}: is {_called(found)}, not a file")
    try:
        descriptor = os.open(name, _FILE, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refusal(path, error) from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise EditRefused(f"{path}: is {_called(status.st_mode)}, not a file")
        data = file.read(max_bytes + 1)
    refuse_large(path, len(data), max_bytes)
    return SeenFile(data=data, mode=stat.S_IMODE(status.st_mode))


def kind_at(folder: int, name: str, path: str) -> int | None:
    """The type bits of an entry, links not followed; None if there is none."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refusal(path, error) from None


def refuse_large(path: str, size: int, max_bytes: int) -> None:
    """Raises EditRefused for a file over the cap."""
    if size > max_bytes:
        raise EditRefused(f"{path}: is over the cap of {max_bytes:,} bytes for one file")


def existing(root: Path, path: str, *, max_bytes: int = MAX_BYTES) -> SeenFile:
    """A file that has to be there; the refusal names those it may be a slip of."""
    seen = read(root, path, max_bytes=max_bytes)
    if seen is None:
        raise EditRefused(f"{path}: does not exist{did_you_mean(root, path)}")
    return seen


def did_you_mean(root: Path, path: str) -> str:
    """ " (did you mean …?)" with the files whose names are nearest, or nothing."""
    hits = process.extract(path, _files(root), scorer=fuzz.ratio, limit=3, score_cutoff=60)
    names = " or ".join(name for name, _, _ in hits)
    return f" (did you mean {names}?)" if names else ""


def _files(root: Path) -> list[str]:
    found: list[str] = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _UNSEARCHED)
        found += [str((Path(folder) / name).relative_to(root)) for name in sorted(names)]
        if len(found) > _SEARCHED:
            break
    return found


def _folded(part: str) -> str:
    """A name as the most forgiving file system would read it: case, trailing dots and spaces,
    characters that are not seen."""
    visible = "".join(c for c in part if unicodedata.category(c) != "Cf")
    return unicodedata.normalize("NFKC", visible).casefold().rstrip(". ")


def _step(folder: int, part: str, path: str, *, create: bool) -> int | None:
    try:
        return os.open(part, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            return None
    except OSError as error:
        raise _in_the_way(folder, part, path, error) from None
    try:
        os.mkdir(part, dir_fd=folder)
        os.fsync(folder)
        return os.open(part, _FOLDER, dir_fd=folder)
    except OSError as error:
        raise _in_the_way(folder, part, path, error) from None


def _in_the_way(folder: int, part: str, path: str, error: OSError) -> EditRefused:
    found = kind_at(folder, part, path)
    if found is None or stat.S_ISDIR(found):
        return _refusal(path, error)
    if stat.S_ISLNK(found):
        return EditRefused(f"{path}: is a symbolic link; edits do not follow links")
    return EditRefused(f"{path}: is {_called(found)}, not a folder")


def _refusal(path: str, error: OSError) -> EditRefused:
    return EditRefused(f"{path}: {error.strerror or error}")


def _called(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISREG(mode):
        return "a file"
    return "a special file (pipe, socket or device)"
