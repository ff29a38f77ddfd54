"""Locks between the processes of one host, and files that are written at once or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from mulligan.tasks.ports.errors import RepositoryUnavailable

_POLL_SECONDS = 0.02


@contextlib.contextmanager
def shared_lock(path: Path, *, wait: float) -> Iterator[None]:
    """Hold a lock with others, and note in the file's time that it is used."""
    descriptor = _acquire(path, fcntl.LOCK_SH, wait)
    try:
        os.utime(descriptor)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def exclusive_lock(path: Path, *, wait: float) -> Iterator[int]:
    """Hold a lock alone, and yield its descriptor.

    Raise RepositoryUnavailable if others keep it for longer than ``wait``.
    """
    descriptor = _acquire(path, fcntl.LOCK_EX, wait)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def if_unused(path: Path) -> Iterator[bool]:
    """Yield whether nobody has the lock. Nobody gets it before the end then."""
    try:
        descriptor = _acquire(path, fcntl.LOCK_EX, 0)
    except RepositoryUnavailable:
        yield False
        return
    try:
        yield True
    finally:
        os.close(descriptor)


def _acquire(path: Path, kind: int, wait: float) -> int:
    deadline = time.monotonic() + wait
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise RepositoryUnavailable(f"{path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            # Whoever removes what a lock is for removes the file, too.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                raise RepositoryUnavailable(
                    f"{path} has been locked by another process for {wait:g} s"
                ) from None
            time.sleep(_POLL_SECONDS)
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file under another name, and rename it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        new.write_bytes(data)
        new.rename(path)
    except OSError as error:
        raise RepositoryUnavailable(f"{path}: {error.strerror}") from error
