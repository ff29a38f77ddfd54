"""End a program with all it started: wait for its launcher, which kills it, or do it instead."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from pathlib import Path
from time import monotonic

from mulligan.workers.sandbox.process_watch import read_processes

#: Every descendant inherits this variable, so that those outside the process group are found, too.
COOKIE = "MULLIGAN_RUN"
#: Longer than the launcher tries to kill processes, and shorter than what a deadline may be
#: exceeded by.
_LAUNCHER_SECONDS = 4.0
#: Seconds between two tries to wake a launcher that somebody has stopped.
_WAKE_SECONDS = 0.5


def has_exited(pid: int) -> bool:
    """Return whether a child has ended, without reaping it: its group id stays reserved."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def wake(process: subprocess.Popen[bytes]) -> None:
    """Let a launcher go on that somebody has stopped. It was not reaped yet."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process.pid, signal.SIGCONT)


def kill_all(process: subprocess.Popen[bytes], cookie: str | None) -> None:
    """Wait for the launcher to kill the program, and kill what a killed launcher left.

    A launcher that needs longer goes on without anybody waiting for it.
    """
    code = _wait_for_launcher(process)
    if code is None:
        threading.Thread(target=process.wait, name="sandbox launcher", daemon=True).start()
        return
    if cookie is None or code != -signal.SIGKILL:
        return
    # Repeated because a process may fork between being listed and being killed.
    for _ in range(20):
        escaped = _with_cookie(f"{COOKIE}={cookie}".encode())
        if not escaped:
            return
        for pid in escaped:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _wait_for_launcher(process: subprocess.Popen[bytes]) -> int | None:
    """Return how the launcher ended; None if it needs longer.

    One that is stopped is woken. If it does not wake, it is killed, and its program with it.
    """
    until = monotonic() + _LAUNCHER_SECONDS
    while monotonic() < until:
        wake(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_WAKE_SECONDS)
    look = read_processes([process.pid]).get(process.pid)
    if look is None or process.pid not in look.stopped:
        return None
    process.kill()
    return process.wait()


def _with_cookie(cookie: bytes) -> list[int]:
    """Return the processes that inherited the cookie; none where there is no /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if cookie in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found
