"""Run a program with limits, and end all it started: ``python -I -S launcher.py CONFIG -- ARGV…``.

The launcher stays as the program's parent. When the program ends, or the worker that wants it ends
or closes ``life_fd``, it kills the program's process group and every descendant, also those in
sessions of their own: on Linux, a process whose parent dies becomes the launcher's child. Elsewhere
only the group is killed.

It is a separate program because it must outlive a worker that is killed, and because
``preexec_fn`` is unsafe in a process with threads; it uses only the standard library. CONFIG is a
JSON object: ``cpu_seconds``, ``memory_bytes``, ``file_bytes``, ``processes`` (each a number or
null), ``error_fd`` (where a failed exec is reported), ``life_fd`` (a pipe whose other end the
worker holds), ``program_fds`` (files for the program) and ``parent`` (the worker's pid).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any, NoReturn

_LIMITS = {
    "cpu_seconds": resource.RLIMIT_CPU,
    "memory_bytes": resource.RLIMIT_AS,
    "file_bytes": resource.RLIMIT_FSIZE,
    "processes": resource.RLIMIT_NPROC,
}
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
#: Seconds between two looks at the parent, in case a fork of the worker holds the pipe open.
_LOOK_SECONDS = 1.0
_KILL_SECONDS = 10.0


def main() -> None:
    config = json.loads(sys.argv[1])
    argv = sys.argv[3:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child_ended, notify = os.pipe()
    os.set_blocking(notify, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
    launcher = os.getpid()
    program = os.fork()
    if program == 0:
        _become(argv, config, launcher)
    # Whoever reads these must notice that the program has closed them.
    for fd in (0, 1, 2, config["error_fd"], *config["program_fds"]):
        os.close(fd)
    _wait(program, config["parent"], config["life_fd"], child_ended)
    _exit_like(_kill_all(program))


def _become(argv: list[str], config: dict[str, Any], launcher: int) -> NoReturn:
    """Replace this process by the program, in a session of its own."""
    try:
        os.setsid()
        os.set_inheritable(config["error_fd"], False)
        os.set_inheritable(config["life_fd"], False)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:
            os._exit(1)
        # Python ignores the first two, and exec would pass that on to the program.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for name, kind in _LIMITS.items():
            if config.get(name) is not None:
                _limit(kind, config[name])
        os.execvp(argv[0], argv)  # noqa: S606 - becoming the given program is the purpose
    except (OSError, ValueError) as error:
        os.write(config["error_fd"], str(error).encode()[:500])
    os._exit(126)


def _limit(kind: int, value: int) -> None:
    """Lower the soft and the hard limit; a hard limit that is already lower stays."""
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value)


def _wait(program: int, parent: int, life_fd: int, child_ended: int) -> None:
    """Return when the program has ended or the worker no longer wants it."""
    while not _has_ended(program) and os.getppid() == parent:
        ready, _, _ = select.select([life_fd, child_ended], [], [], _LOOK_SECONDS)
        if life_fd in ready:
            return
        if child_ended in ready:
            os.read(child_ended, 4096)


def _has_ended(program: int) -> bool:
    """Reap adopted children, but not the program: its number stays that of its group."""
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return False
        if ended.si_pid == program:
            return True
        os.waitpid(ended.si_pid, 0)


def _kill_all(program: int) -> int:
    """Kill the program and every descendant; return the program's wait status."""
    status: int = signal.SIGKILL
    _kill(os.killpg, program)
    deadline = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < deadline:
        for child in _children():
            _kill(os.kill, child)
        try:
            pid, found = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == program:
            status = found
        elif pid == 0:
            time.sleep(0.002)
    return status


def _kill(send: Any, target: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(target, signal.SIGKILL)


def _children() -> list[int]:
    """Return this process's children; none where there is no /proc."""
    own = str(os.getpid())
    try:
        with open(f"/proc/{own}/task/{own}/children") as file:  # noqa: PTH123 - few imports
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def _exit_like(status: int) -> NoReturn:
    """End as the program ended, so that the worker sees its exit code or signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
