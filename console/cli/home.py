"""The home directory: whether `mulligan up` runs there, and the embedded Redis in it."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mulligan.console.cli.stopping import unhurried
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.local.embedded_redis import EmbeddedRedis

_LOCK = "up.lock"
#: Seconds between two looks at the embedded Redis.
_LOOK = 2.0


def is_up(home: Path) -> bool:
    """Whether a `mulligan up` serves this directory. The kernel drops the lock of a dead one."""
    try:
        with (home / _LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def has_ledger(home: Path) -> bool:
    """Whether anything has ever been run in this directory."""
    return (home / "redis").is_dir()


@contextmanager
def held_by_up(home: Path) -> Iterator[None]:
    """Be the one `mulligan up` of this directory."""
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
    """The Redis of a directory: joined if it runs, started if not, left when the block ends."""
    server = EmbeddedRedis(home)
    server.start()
    try:
        yield server
    finally:
        with unhurried():
            server.stop()


@dataclass
class SupervisedRedis:
    """An embedded Redis that is started again. It is nobody's child: it outlives its starter."""

    server: EmbeddedRedis
    #: Told before it is started again.
    say: Callable[[str], None]
    _looked: float = 0.0

    def look(self) -> None:
        """Start it again if it is gone; call it now and then."""
        if time.monotonic() - self._looked < _LOOK:
            return
        self._looked = time.monotonic()
        if not self.server.answers():
            self.say("the embedded Redis is gone; starting it again")
            self.server.start()
