"""Private directories: one per attempt, removed afterwards, however its process ends.

A process that is killed cannot tidy up. Each directory therefore holds a file that its owner has
locked: the kernel drops the lock with the process, also for others that share the temporary
directory, and whoever finds the lock free removes the directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

_PREFIX = "mulligan-"
_LOCK = "owner.lock"
#: Roots that this process has tidied already.
_tidied: set[Path] = set()
_tidying = threading.Lock()


@contextlib.contextmanager
def private_directory(root: Path | None = None) -> Iterator[Path]:
    """An empty directory for one attempt, removed afterwards, whatever happens.

    Its parent is private too: home and temporary files go there (``clean_environment``).
    """
    if root is not None:
        root.mkdir(parents=True, exist_ok=True)
    tidy_once(root)
    private = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root)).resolve()
    with contextlib.ExitStack() as leaving:
        leaving.callback(_remove, private)
        leaving.enter_context(_owned(private))
        work = private / "work"
        work.mkdir()
        yield work


def tidy_once(root: Path | None = None) -> None:
    """Remove what others left behind, the first time that this process looks there."""
    folder = root or Path(tempfile.gettempdir())
    with _tidying:
        if folder in _tidied:
            return
        _tidied.add(folder)
    remove_abandoned(folder)


def remove_abandoned(root: Path | None = None) -> int:
    """Remove the private directories whose owners are dead; how many there were.

    Those of other users and those without a lock are left alone.
    """
    folder = root or Path(tempfile.gettempdir())
    try:
        found = [entry.name for entry in os.scandir(folder) if entry.name.startswith(_PREFIX)]
    except OSError:  # nothing was ever made there, or it is not ours to read
        return 0
    return sum(_removed_if_abandoned(folder / name) for name in found)


def _owned(private: Path) -> IO[bytes]:
    """The open, locked file that says that somebody is at work here."""
    new = private / f"{_LOCK}.new"
    file = new.open("wb")
    fcntl.flock(file, fcntl.LOCK_EX)
    # It gets its name when it is locked already: nobody ever finds it free too early.
    new.rename(private / _LOCK)
    return file


def _removed_if_abandoned(private: Path) -> bool:
    try:
        seen = private.lstat()
        if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
            return False
        descriptor = os.open(private / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # it has no lock, or is gone by now
        return False
    with open(descriptor, "rb+") as file:  # noqa: PTH123 - pathlib cannot refuse a link
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False  # somebody is at work, or removes it already
        _remove(private)
    return True


def _remove(private: Path) -> None:
    shutil.rmtree(private, onerror=_force)


def _force(remove: Callable[..., Any], path: str, _error: Any) -> None:
    """Make a directory writable that a program closed, and try once more."""
    with contextlib.suppress(OSError):
        Path(path).parent.chmod(0o700)
        if not os.path.islink(path):  # noqa: PTH114 - rmtree's callback deals in strings
            Path(path).chmod(0o700)
        if remove in (os.unlink, os.rmdir):
            remove(path)
        else:
            shutil.rmtree(path, ignore_errors=True)
