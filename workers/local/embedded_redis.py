"""An embedded Redis: a real server on a private socket, shared by the users of one directory."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.local.hang_watch import HangWatch, ServerCheck
from mulligan.workers.local.home_server import choose_server, record_server
from mulligan.workers.local.redis_watchdog import LOCKED
from mulligan.workers.local.server_binary import ServerBinary
from mulligan.workers.local.server_lock import end_owner, lock_owner
from mulligan.workers.local.server_probe import Reply, ask_server

#: The kernel's limit for socket paths is 108 bytes.
_SOCKET_PATH = 100
#: The directory of sockets whose path would be too long. Not TMPDIR: all processes must agree.
_SHORT_FOLDER = Path("/tmp")  # noqa: S108 - its directory is private, see _make_folders
_STOP_SECONDS = 20.0
_CHECK_SECONDS = 0.35
#: Seconds without an answer after which a server counts as hung.
HUNG_AFTER = 30.0
#: A disk with fewer free bytes is full.
_FULL_DISK = 1_000_000
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)

_log = logging.getLogger(__name__)


def data_folder(home: Path) -> Path:
    """Return the directory of the server's data."""
    return home / "redis"


class EmbeddedRedis:
    """The server of one home directory: the first user starts it, the last one stops it."""

    def __init__(
        self,
        home: Path,
        *,
        hung_after: float = HUNG_AFTER,
        say: Callable[[str], None] = _log.warning,
    ) -> None:
        self._home = home.resolve()
        self._data = data_folder(self._home)
        self._lock = self._data / "server.lock"
        self._users: TextIOWrapper | None = None
        #: Follows the server for all who ask: `start`, and whoever keeps it running.
        self.watch = HangWatch(hung_after, say)

    @property
    def socket(self) -> Path:
        path = self._home / "redis.sock"
        if len(str(path)) < _SOCKET_PATH:
            return path
        name = hashlib.sha256(str(self._home).encode()).hexdigest()[:16]
        return _SHORT_FOLDER / f"mulligan-{os.getuid()}-{name}" / "redis.sock"

    @property
    def url(self) -> str:
        """The URL for Celery."""
        return f"redis+socket://{self.socket}"

    def state(self) -> ServerCheck:
        """Look at the server: whether one holds the lock, and what it answers."""
        pid = lock_owner(self._lock)
        return ServerCheck(pid=pid, reply=None if pid is None else ask_server(self.socket))

    def start(self) -> None:
        """Join the running server, or start it. Its data stays in the home directory."""
        with explain_unwritable(self._home):
            self._make_folders()
            with _locked(self._home / "start.lock"):
                self._join()
                try:
                    if not self._wait_for_running():
                        self._launch(choose_server(self._data))
                except BaseException:
                    self._leave()
                    raise

    def stop(self) -> None:
        """Leave the server. If it has no other users, wait until it has stopped."""
        if self._users is None:
            return
        self._leave()
        now = time.monotonic()
        deadline, next_check = now + _STOP_SECONDS, now + _CHECK_SECONDS
        while lock_owner(self._lock) is not None and time.monotonic() < deadline:
            # Rarely, because checking takes the lock for which the watchdog is waiting.
            if time.monotonic() > next_check:
                if self._has_users():
                    return
                next_check += _CHECK_SECONDS
            time.sleep(0.02)

    def end(self, pid: int) -> None:
        """End the server's process, which hangs. Raises BadInput if that is not possible."""
        try:
            ended = end_owner(self._lock, pid)
        except PermissionError:
            ended = False
        if not ended and lock_owner(self._lock) == pid:
            who = f"process {pid}" if pid else "a process of another container or computer"
            raise BadInput(
                f"the server of {self._home}, {who}, hangs and cannot be ended from here"
            )

    def _make_folders(self) -> None:
        for folder in (self._data, self.socket.parent):
            folder.mkdir(parents=True, exist_ok=True)
        owner = self.socket.parent.lstat().st_uid
        if owner != os.getuid():
            raise BadInput(f"{self.socket.parent} belongs to another user (id {owner})")
        self.socket.parent.chmod(0o700)

    def _join(self) -> None:
        """Take the users' lock in shared mode, waiting for a watchdog that is stopping."""
        if self._users is not None:
            return
        file = (self._home / "users.lock").open("w")
        deadline = time.monotonic() + _STOP_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    file.close()
                    raise BadInput(f"the server of {self._home} does not stop") from None
                time.sleep(0.05)
            else:
                self._users = file
                return

    def _leave(self) -> None:
        if self._users is not None:
            self._users.close()
            self._users = None

    def _has_users(self) -> bool:
        """Whether another process holds the lock in shared mode."""
        with (self._home / "users.lock").open() as file:
            for mode, answer in ((fcntl.LOCK_EX, False), (fcntl.LOCK_SH, True)):
                try:
                    fcntl.flock(file, mode | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                return answer
        return False  # the watchdog holds it exclusively and is stopping the server

    def _wait_for_running(self) -> bool:
        """Wait until the server that holds the lock answers. Return False if there is none."""
        while (state := self.state()).pid is not None:
            if state.reply in (Reply.READY, Reply.BUSY):
                return True
            if self.watch.observe(state, time.monotonic()):
                self.end(state.pid)
            time.sleep(0.02)
        return False

    def _launch(self, server: ServerBinary) -> None:
        watchdog = Path(__file__).with_name("redis_watchdog.py")
        argv = [sys.executable, "-I", str(watchdog), str(self._home / "users.lock")]
        argv += [str(self._lock), server.path]
        argv += ["--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700"]
        argv += ["--dir", str(self._data), "--appendonly", "yes", "--save", ""]
        argv += ["--maxmemory-policy", "noeviction", "--daemonize", "no"]
        with (self._home / "redis.log").open("ab") as output:
            logged = output.tell()
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        # The lock comes first, then the answer; the watchdog ends if there is no server.
        while not self._wait_for_running():
            if process.poll() is not None:
                raise BadInput(self._why_not_started(server, process.returncode, logged))
            time.sleep(0.005)
        record_server(self._data, server)

    def _why_not_started(self, server: ServerBinary, code: int, logged: int) -> str:
        if code == LOCKED:
            return (
                f"{self._lock} cannot be locked: another server holds it, or the file system of"
                " the home directory has no locks"
            )
        log = self._home / "redis.log"
        tail = log.read_bytes()[logged:].decode(errors="replace")[-500:]
        full = shutil.disk_usage(self._home).free < _FULL_DISK
        reason = "its disk is full; " if full else ""
        return f"the embedded server, {server}, did not start: {reason}{log} ends with:\n{tail}"


@contextmanager
def explain_unwritable(home: Path) -> Iterator[None]:
    """Turn an error of the file system into a BadInput that names the directory."""
    try:
        yield
    except OSError as error:
        full = error.errno in _FULL
        if not full and error.errno not in _REFUSED:
            raise
        advice = "free some space" if full else "set MULLIGAN_HOME to a directory you can write to"
        raise BadInput(
            f"cannot write to {error.filename or home} in the home directory {home}:"
            f" {error.strerror or error}; {advice}"
        ) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
