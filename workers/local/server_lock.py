"""The lock that a server holds on its data directory, from its start to its last instruction.

It is a POSIX record lock, which `redis_watchdog` takes in the process that becomes the server.
Such a lock belongs to one process: it survives exec, a child that rewrites the append-only file
does not share it, the kernel drops it when the process ends, and tells everybody whose it is.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import sys
import time
from pathlib import Path

#: The kernel's struct flock: its order of fields differs between systems.
_FIELDS = ("start", "length", "pid", "type", "whence")
_LAYOUT = "@qqihh"
if sys.platform == "linux":
    _FIELDS, _LAYOUT = ("type", "whence", "start", "length", "pid"), "@hhqqi0q"
#: Seconds between SIGTERM and SIGKILL.
_GRACE = 5.0
_KILL_SECONDS = 10.0


def lock_owner(path: Path) -> int | None:
    """Return the process that holds the lock; None if nobody does.

    0 stands for a process that this one cannot see, such as one in another container.
    """
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        asked = {"type": fcntl.F_WRLCK, "whence": os.SEEK_SET}
        request = struct.pack(_LAYOUT, *(asked.get(name, 0) for name in _FIELDS))
        answer = struct.unpack(_LAYOUT, fcntl.fcntl(file, fcntl.F_GETLK, request))
    finally:
        os.close(file)
    found = dict(zip(_FIELDS, answer, strict=True))
    return None if found["type"] == fcntl.F_UNLCK else max(found["pid"], 0)


def end_owner(path: Path, pid: int) -> bool:
    """End the process that holds the lock, first gently. Return whether the lock is free.

    Does nothing if ``pid`` is no longer the owner. Raises PermissionError for another user's.
    """
    for number, seconds in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, _KILL_SECONDS)):
        # A pid of 0 would mean our own process group.
        if pid <= 0 or lock_owner(path) != pid:
            break
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + seconds
        while lock_owner(path) == pid and time.monotonic() < deadline:
            time.sleep(0.02)
    return lock_owner(path) is None
