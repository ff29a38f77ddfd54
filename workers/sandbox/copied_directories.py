"""Copy directories that programs wrote, or write into: nothing is read or written through a link.

Each step opens one name in a directory that is open already, so that a program which exchanges a
directory for a link meanwhile changes nothing outside.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mulligan.workers.sandbox.file_tree import MAX_DEPTH

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: A part of the path is not there, a link, or something else than a directory.
_NO_DIRECTORY = frozenset({errno.ENOENT, errno.ELOOP, errno.ENOTDIR})


def copy_directory(name: str, source: Path, target: Path, *, aside: Path) -> bool:
    """Copy a directory from one place to the same name in another; return whether that was done.

    It is not if a part of its path is missing, or a link, or in the target no directory. What has
    the name there is moved into the directory ``aside``, on the same file system. Links are copied
    as links, and devices, owners and special rights are left out.
    """
    path = PurePosixPath(name)
    with contextlib.ExitStack() as stack:
        try:
            old = stack.enter_context(_opened(source, path))
            parent = stack.enter_context(_opened(target, path.parent, make=True))
        except OSError as error:
            if error.errno in _NO_DIRECTORY:
                return False
            raise
        with contextlib.suppress(FileNotFoundError):
            os.rename(path.name, aside / f"replaced-{secrets.token_hex(8)}", src_dir_fd=parent)
        _copy(old, parent, path.name)
    return True


@contextlib.contextmanager
def _opened(root: Path, path: PurePosixPath, *, make: bool = False) -> Iterator[int]:
    """Open a directory below a root. ``make``: with those of its parents that do not exist."""
    descriptor = os.open(root, _DIRECTORY)
    try:
        for part in path.parts:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=descriptor)
            below = os.open(part, _DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def _copy(source: int, parent: int, name: str, depth: int = 0) -> None:
    """Copy an open directory to a new name."""
    if depth > MAX_DEPTH:
        raise OSError(errno.ENAMETOOLONG, f"more than {MAX_DEPTH} levels of directories")
    os.mkdir(name, 0o700, dir_fd=parent)
    target = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        with os.scandir(source) as entries:
            for entry in entries:
                if entry.is_symlink():
                    os.symlink(os.readlink(entry.name, dir_fd=source), entry.name, dir_fd=target)
                elif entry.is_dir(follow_symlinks=False):
                    below = os.open(entry.name, _DIRECTORY, dir_fd=source)
                    try:
                        _copy(below, target, entry.name, depth + 1)
                    finally:
                        os.close(below)
                elif entry.is_file(follow_symlinks=False):
                    _copy_file(source, target, entry.name)
        _copy_times(target, os.fstat(source))
    finally:
        os.close(target)


def _copy_file(source: int, target: int, name: str) -> None:
    with (
        open(os.open(name, _FILE, dir_fd=source), "rb") as old,  # noqa: PTH123
        open(os.open(name, _NEW_FILE, 0o600, dir_fd=target), "wb") as new,  # noqa: PTH123
    ):
        status = os.fstat(old.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        shutil.copyfileobj(old, new, 1 << 20)
        new.flush()
        _copy_times(new.fileno(), status)


def _copy_times(descriptor: int, status: os.stat_result) -> None:
    os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & 0o777 | 0o200)
    os.utime(descriptor, ns=(status.st_atime_ns, status.st_mtime_ns))
