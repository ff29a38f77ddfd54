"""A home directory: whether `mulligan up` runs there, and its embedded Redis."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.local.embedded_redis import (
    HUNG_AFTER,
    EmbeddedRedis,
    data_folder,
    explain_unwritable,
)
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
    return data_folder(home).is_dir()


@contextmanager
def lock_home(home: Path) -> Iterator[None]:
    """Ensure that only one `mulligan up` runs in this directory."""
    with explain_unwritable(home):
        home.mkdir(parents=True, exist_ok=True)
        opened = (home / _LOCK).open("w")
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(
                f"mulligan is already up in {home}; stop that one, or set MULLIGAN_HOME to another"
                " directory"
            ) from None
        yield


@contextmanager
def embedded_redis(home: Path, *, hung_after: float = HUNG_AFTER) -> Iterator[EmbeddedRedis]:
    """Join or start the Redis of a directory, and leave it at the end of the block."""
    server = EmbeddedRedis(home, hung_after=hung_after)
    server.start()
    try:
        yield server
    finally:
        with uninterrupted():
            server.stop()


@dataclass
class SupervisedRedis:
    """An embedded Redis that is restarted if it dies or hangs."""

    server: EmbeddedRedis
    #: Called with a message when something is wrong, and when it is over.
    say: Callable[[str], None]
    _checked_at: float = 0.0
    _failure: str = ""

    def __post_init__(self) -> None:
        self.server.watch.say = self.say

    def keep_running(self) -> None:
        """Restart the server if it is gone or hangs. Checks at most every two seconds."""
        if time.monotonic() - self._checked_at < _CHECK_SECONDS:
            return
        try:
            self._check()
            self._failure = ""
        except BadInput as error:
            # Nothing works without it, so it is tried again: a full disk may get some space.
            failure = str(error).partition("\n")[0]  # what follows is a log with times
            if failure != self._failure:
                self.say(f"The embedded server cannot be restarted: {error}")
            self._failure = failure
        self._checked_at = time.monotonic()

    def _check(self) -> None:
        state = self.server.state()
        hung = self.server.watch.observe(state, time.monotonic())
        if state.pid is None:
            if not self._failure:
                self.say("The embedded server is gone; restarting it.")
        elif hung:
            self.server.end(state.pid)
        else:
            return
        self.server.start()
        self.say("The embedded server runs again.")
