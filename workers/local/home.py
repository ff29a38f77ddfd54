"""A home directory: whether `mulligan up` runs there, and its embedded Redis."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.local.embedded_redis import EmbeddedRedis
from mulligan.workers.local.stopping import uninterrupted

_LOCK = "up.lock"
#: Seconds between two checks of the embedded Redis.
_CHECK_SECONDS = 2.0


def is_up(home: Path) -> bool:
    """Whether a `mulligan up` serves this directory. The kernel releases the lock of a dead one."""
    try:
        with (home / _LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def has_ledger(home: Path) -> bool:
    """Whether a Redis has ever run in this directory."""
    return (home / "redis").is_dir()


@contextmanager
def lock_home(home: Path) -> Iterator[None]:
    """Ensure that only one `mulligan up` runs in this directory."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / _LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(
                f"mulligan is already up in {home}; stop that one, or set MULLIGAN_HOME to another"
                " directory"
            ) from None
        yield


@contextmanager
def embedded_redis(home: Path) -> Iterator[EmbeddedRedis]:
    """Join or start the Redis of a directory, and leave it at the end of the block."""
    server = EmbeddedRedis(home)
    server.start()
    try:
        yield server
    finally:
        with uninterrupted():
            server.stop()


@dataclass
class SupervisedRedis:
    """An embedded Redis that is restarted if it dies. It can outlive its first process."""

    server: EmbeddedRedis
    #: Called with a message before each restart.
    say: Callable[[str], None]
    _checked_at: float = 0.0

    def restart_if_gone(self) -> None:
        """Restart the server if it is gone. Checks at most every two seconds."""
        if time.monotonic() - self._checked_at < _CHECK_SECONDS:
            return
        self._checked_at = time.monotonic()
        if not self.server.answers():
            self.say("The embedded Redis is gone; restarting it.")
            self.server.start()
