"""Private directories: one per attempt, removed afterwards, however its process ends.

A killed process cannot clean up. Each directory therefore contains a file that its owner has
locked. The kernel drops the lock with the process. Any process that shares the temporary directory
and finds the lock free removes the directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

_PREFIX = "mulligan-"
_LOCK = "owner.lock"
_REMOVE_SECONDS = 60.0
#: How long an attempt waits for its directory to be removed.
_WAIT_SECONDS = 1.0
#: Users that no system gives out (systemd's table of user IDs), for programs that root starts.
_USERS = range(60_600, 61_180)
#: Roots that this process has already cleaned up.
_tidied: set[Path] = set()
_tidying = threading.Lock()


@contextlib.contextmanager
def private_directory(root: Path | None = None) -> Iterator[Path]:
    """Make an empty directory for one attempt and remove it afterwards, whatever happens.

    Its parent is private too and gets the home and temporary files (``clean_environment``).
    """
    if root is not None:
        root.mkdir(parents=True, exist_ok=True)
    tidy_once(root)
    private = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root)).resolve()
    lock = _lock(private)
    try:
        work = private / "work"
        work.mkdir()
        yield work
    finally:
        _wait_a_little_for(lambda: _remove_locked(private, lock))


def user_of(work: Path) -> int:
    """Return the user of the programs that root starts in a private directory.

    It follows from the directory's random name, so that its number can be removed from texts.
    """
    return _USERS[zlib.crc32(os.fsencode(work.parent)) % len(_USERS)]


def tidy_once(root: Path | None = None) -> None:
    """Remove abandoned directories the first time that this process uses the root."""
    folder = root or Path(tempfile.gettempdir())
    with _tidying:
        if folder in _tidied:
            return
        _tidied.add(folder)
    _wait_a_little_for(lambda: remove_abandoned(folder))


def _wait_a_little_for(remove: Callable[[], object]) -> None:
    """Remove something, and leave it to a thread if a program made that take long.

    If this process ends before that, the next one finds it abandoned.
    """
    thread = threading.Thread(target=remove, name="remove private directories", daemon=True)
    thread.start()
    thread.join(_WAIT_SECONDS)


def remove_abandoned(root: Path | None = None) -> int:
    """Remove the private directories whose owners are dead, and return their number.

    Directories of other users and those without a lock file stay.
    """
    folder = root or Path(tempfile.gettempdir())
    try:
        found = [entry.name for entry in os.scandir(folder) if entry.name.startswith(_PREFIX)]
    except OSError:  # it does not exist, or this user may not read it
        return 0
    return sum(_removed_if_abandoned(folder / name) for name in found)


def _lock(private: Path) -> IO[bytes]:
    """Lock the directory and return the open lock file."""
    new = private / f"{_LOCK}.new"
    file = new.open("wb")
    fcntl.flock(file, fcntl.LOCK_EX)
    # It is renamed only once it is locked, so that no process ever finds it free too early.
    new.rename(private / _LOCK)
    return file


def _remove_locked(private: Path, lock: IO[bytes]) -> None:
    """Remove the directory under another name: nobody finds it by the name that it had."""
    with lock:
        removed = private.with_name(f"{private.name}.removed")
        with contextlib.suppress(OSError):
            private = private.rename(removed)
        _remove(private)


def _removed_if_abandoned(private: Path) -> bool:
    try:
        status = private.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return False
        descriptor = os.open(private / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # it has no lock file, or was removed meanwhile
        return False
    with open(descriptor, "rb+") as file:  # noqa: PTH123 - pathlib cannot refuse a link
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False  # its owner lives, or another process is removing it
        _remove(private)
    return True


def _remove(private: Path) -> None:
    """Remove a directory, whatever a program made of it: deeply nested, or closed to its owner.

    Its lock goes last: without one, nobody would remove the rest if this process ended.
    """
    with contextlib.suppress(OSError, RecursionError):
        for entry in os.scandir(private):
            if entry.name != _LOCK:
                shutil.rmtree(entry.path, ignore_errors=True)
        (private / _LOCK).unlink()
        private.rmdir()
    if not private.exists():
        return
    # What takes longer is found and removed as abandoned.
    with contextlib.suppress(subprocess.TimeoutExpired):
        for argv in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            command = [*argv, "--", str(private)]
            subprocess.run(command, capture_output=True, timeout=_REMOVE_SECONDS)
