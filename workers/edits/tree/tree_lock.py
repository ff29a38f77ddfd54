"""The lock of a tree: ``flock`` on a file of the tree's state and on the root itself.

The kernel frees the lock of a dead holder. Each acquisition gets a higher number (the fence), and
the holder checks it right before writing: if the lock file was replaced, or the number is higher,
another process writes now. The root is locked too, because two homes may use the same root.
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
from pathlib import Path
from typing import Any

from mulligan.policies.figures.format import timestamp
from mulligan.tasks.ports.appliers import EditRefused

_POLL_SECONDS = 0.02
_ALREADY_LOCKED = (errno.EWOULDBLOCK, errno.EACCES)
#: The file system cannot lock folders; then the lock file has to suffice.
_NO_FOLDER_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP)


@dataclass(frozen=True, kw_only=True)
class LockHolder:
    """The process and session that write to a tree."""

    pid: int
    host: str
    session: str
    #: Seconds since 1970.
    since: float
    fence: int

    def __str__(self) -> str:
        since = timestamp(self.since)
        return f"session {self.session} (process {self.pid} on {self.host}, since {since})"


class TreeBusy(EditRefused):
    """Another process holds the tree; ``holder`` is None if it is unknown."""

    def __init__(self, root: Path, holder: LockHolder | None, waited: float) -> None:
        self.holder = holder
        who = str(holder) if holder else "another process"
        super().__init__(f"{root}: is held by {who}; waited {waited:g} s: try again later")


class LockLost(EditRefused):
    """Another process took the lock over."""


@dataclass(frozen=True, kw_only=True)
class HeldLock:
    """A lock that this process holds."""

    fence: int
    #: Raises LockLost if another process took the lock over.
    check: Callable[[], None]


class TreeLock:
    """The lock of one tree."""

    def __init__(self, root: Path, state: Path) -> None:
        self._root = root
        self._lock_file = state / "lock"
        self._holder_file = state / "holder.json"

    @contextmanager
    def held(self, session: str, *, timeout: float) -> Iterator[HeldLock]:
        """Hold the lock. Raises TreeBusy if it is not free within ``timeout`` seconds."""
        with ExitStack() as stack:
            deadline = time.monotonic() + timeout
            locked = self._open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, stack)
            self._acquire(locked, deadline, timeout)
            root = self._open(self._root, os.O_RDONLY | os.O_DIRECTORY, stack)
            self._acquire(root, deadline, timeout, folder=True)
            holder = LockHolder(
                pid=os.getpid(),
                host=socket.gethostname(),
                session=session,
                since=time.time(),
                fence=self._next_fence(),
            )
            self._write(asdict(holder))
            try:
                yield HeldLock(fence=holder.fence, check=lambda: self._check(locked, holder))
            finally:
                if self._is_held(locked, holder.fence):
                    self._write({"fence": holder.fence})

    def holder(self) -> LockHolder | None:
        """Return the recorded holder, if any."""
        try:
            return LockHolder(**self._read())
        except TypeError:  # no holder, or an unknown format
            return None

    def _open(self, path: Path, flags: int, stack: ExitStack) -> int:
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EditRefused(f"{path}: {error.strerror or error}") from error
        stack.callback(os.close, descriptor)
        # Closing alone keeps the lock if a forked child still has the descriptor.
        stack.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)
        return descriptor

    def _acquire(
        self, descriptor: int, deadline: float, timeout: float, *, folder: bool = False
    ) -> None:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if folder and error.errno in _NO_FOLDER_LOCKS:
                    return
                if error.errno not in _ALREADY_LOCKED:
                    raise EditRefused(f"{self._root}: cannot be locked: {error}") from error
            else:
                return
            if time.monotonic() >= deadline:
                # A holder of the root's lock alone uses another home and is not recorded here.
                raise TreeBusy(self._root, None if folder else self.holder(), timeout)
            time.sleep(_POLL_SECONDS)

    def _check(self, descriptor: int, holder: LockHolder) -> None:
        if not self._is_held(descriptor, holder.fence):
            raise LockLost(f"{self._root}: the lock of session {holder.session} was taken over")

    def _is_held(self, descriptor: int, fence: int) -> bool:
        try:
            current = self._lock_file.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(descriptor), current) and self._fence() == fence

    def _fence(self) -> int | None:
        fence = self._read().get("fence")
        return fence if isinstance(fence, int) else None

    def _next_fence(self) -> int:
        """Return a number higher than that of any earlier holder."""
        if not self._holder_file.exists():
            return 1
        fence = self._fence()
        # A damaged file has lost the number. Counted one by one, no fence reaches the clock.
        return int(time.time()) if fence is None else fence + 1

    def _read(self) -> dict[str, Any]:
        """Return the content of the holder file; empty if it is missing or damaged."""
        try:
            found = json.loads(self._holder_file.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        except OSError as error:
            raise EditRefused(f"{self._holder_file}: {error.strerror or error}") from error
        return found if isinstance(found, dict) else {}

    def _write(self, value: dict[str, Any]) -> None:
        """Replace the holder file. It is synced first, so that a power failure leaves either the
        old or the new one."""
        temporary = self._holder_file.with_suffix(f".{os.getpid()}")
        try:
            with temporary.open("w") as file:
                file.write(json.dumps(value))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._holder_file)
        except OSError as error:
            raise EditRefused(f"{self._holder_file}: {error.strerror or error}") from error
