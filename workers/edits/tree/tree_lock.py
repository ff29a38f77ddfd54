"""One writer for a tree: ``flock`` on a file of the tree's state and on the root itself.

The kernel frees the lock of a dead holder. Each acquisition gets a higher number (the fence), and a
holder looks again right before it writes: if the lock file was replaced, or the number has moved
on, somebody else writes now. The root is locked too, because two homes may know the same root.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mulligan.tasks.ports.appliers import EditRefused

_POLL = 0.02
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)
#: File systems that do not lock folders: there the lock file alone has to do.
_NO_FOLDER_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP)


@dataclass(frozen=True, kw_only=True)
class LockHolder:
    """Who writes to a tree, and since when."""

    pid: int
    host: str
    session: str
    #: Seconds since 1970.
    since: float
    fence: int

    def __str__(self) -> str:
        at = datetime.fromtimestamp(self.since, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"session {self.session} (process {self.pid} on {self.host}, since {at})"


class TreeBusy(EditRefused):
    """Somebody else holds the tree; ``holder`` is None if that cannot be told."""

    def __init__(self, root: Path, holder: LockHolder | None, waited: float) -> None:
        self.holder = holder
        who = str(holder) if holder else "another process"
        super().__init__(f"{root}: is held by {who}; waited {waited:g} s: try again when it ended")


class LockLost(EditRefused):
    """The tree is no longer ours to write to."""


@dataclass(frozen=True, kw_only=True)
class HeldLock:
    """A lock that is held."""

    holder: LockHolder
    check: Callable[[], None]


class TreeLock:
    """The lock of one tree."""

    def __init__(self, root: Path, state: Path) -> None:
        self._root = root
        self._file = state / "lock"
        self._holder = state / "holder.json"

    @contextmanager
    def held(self, session: str, *, timeout: float) -> Iterator[HeldLock]:
        """Hold the lock. Raises TreeBusy if it is not free within ``timeout`` seconds.

        ``check()`` of the hold raises LockLost if the lock is no longer this process's."""
        with ExitStack() as stack:
            deadline = time.monotonic() + timeout
            locked = self._open(self._file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, stack)
            self._take(locked, deadline, timeout)
            root = self._open(self._root, os.O_RDONLY | os.O_DIRECTORY, stack)
            self._take(root, deadline, timeout, folder=True)
            holder = LockHolder(
                pid=os.getpid(),
                host=socket.gethostname(),
                session=session,
                since=time.time(),
                fence=self._next_fence(),
            )
            self._write(asdict(holder))
            hold = HeldLock(holder=holder, check=lambda: self._check(locked, holder))
            try:
                yield hold
            finally:
                if self._ours(locked, holder):
                    self._write({"fence": holder.fence})

    def holder(self) -> LockHolder | None:
        """Who holds it, as far as is written down."""
        try:
            return LockHolder(**(self._read() or {}))
        except TypeError:  # nobody, or not in a form that we know
            return None

    def _open(self, path: Path, flags: int, stack: ExitStack) -> int:
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EditRefused(f"{path}: {error.strerror or error}") from error
        stack.callback(os.close, descriptor)
        # Closing frees the lock, but not while a forked child still has the descriptor.
        stack.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)
        return descriptor

    def _take(
        self, descriptor: int, deadline: float, timeout: float, *, folder: bool = False
    ) -> None:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if folder and error.errno in _NO_FOLDER_LOCKS:
                    return
                if error.errno not in _TAKEN:
                    raise EditRefused(f"{self._root}: cannot be locked: {error}") from error
            else:
                return
            if time.monotonic() >= deadline:
                # Whoever holds only the root's lock is not written down in our state.
                raise TreeBusy(self._root, None if folder else self.holder(), timeout)
            time.sleep(_POLL)

    def _check(self, descriptor: int, holder: LockHolder) -> None:
        if not self._ours(descriptor, holder):
            raise LockLost(f"{self._root}: the lock of session {holder.session} was taken over")

    def _ours(self, descriptor: int, holder: LockHolder) -> bool:
        mine = os.fstat(descriptor)
        try:
            there = self._file.stat()
        except FileNotFoundError:
            return False
        same = (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
        return same and self._fence() == holder.fence

    def _fence(self) -> int | None:
        fence = (self._read() or {}).get("fence")
        return fence if isinstance(fence, int) else None

    def _next_fence(self) -> int:
        """A number that no holder had before."""
        if not self._holder.exists():
            return 1
        fence = self._fence()
        # The numbers are lost with the file. Counting by ones, none is as high as the clock.
        return int(time.time()) if fence is None else fence + 1

    def _read(self) -> dict[str, Any] | None:
        """What is written down; None if that is nothing or cannot be read: then it is nobody's."""
        try:
            found = json.loads(self._holder.read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        except OSError as error:
            raise EditRefused(f"{self._holder}: {error.strerror or error}") from error
        return found if isinstance(found, dict) else None

    def _write(self, value: dict[str, Any]) -> None:
        """Replace it as a whole: synced before it gets its name, so that a power failure leaves
        the old or the new one."""
        temporary = self._holder.with_suffix(f".{os.getpid()}")
        try:
            with temporary.open("w") as file:
                file.write(json.dumps(value))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._holder)
        except OSError as error:
            raise EditRefused(f"{self._holder}: {error.strerror or error}") from error
