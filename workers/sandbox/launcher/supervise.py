"""Run a program confined, and end all it started: ``launcher CONFIG -- ARGV…``.

The launcher stays as the program's parent. When the program ends, or the worker that wants it ends,
closes ``life_fd`` or writes nothing to it for ``heartbeat`` seconds, it kills the program's process
group and every descendant, also those in sessions of their own: on Linux, a process whose parent
dies becomes the launcher's child. Elsewhere only the group is killed.

It is a separate program because it must outlive a worker that is killed, and because
``preexec_fn`` is unsafe in a process with threads. CONFIG is a marshalled dictionary in hexadecimal
digits, with these fields:

- ``limits``: ``cpu_seconds``, ``memory_bytes``, ``file_bytes``, ``open_files``, ``processes``,
  ``total_memory_bytes`` and ``disk_bytes``, each a number or None
- ``error_fd``: where a failed start and an exceeded limit are reported
- ``life_fd``: a pipe whose other end the worker holds, and to which it writes
- ``heartbeat``: the seconds without a byte there after which the worker counts as frozen, or None
- ``program_fds``: files for the program
- ``parent``: the worker's pid
- ``wrapper``: the arguments of bubblewrap, or None
- ``seccomp``: a filter of system calls, or None
- ``landlock``: whether to confine it with Landlock
- ``uid``: the user to become, or None to stay, and ``powerless``: whether to give up root's powers
- ``read`` and ``write``: the paths that it may use, and ``named``: those that it must be able to
  read
- ``data``: files that bubblewrap makes: path → text
- ``cgroups``: directories for groups of its own, each with the limits to write there
"""

from __future__ import annotations

import marshal
import os
import resource
import select
import sys
import time

from . import confine, usage
from .confine import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterable
    from typing import Any, NoReturn
else:
    import _signal as signal

_NICENESS = 10
_LIMITS = {
    "cpu_seconds": resource.RLIMIT_CPU,
    "memory_bytes": resource.RLIMIT_AS,
    "file_bytes": resource.RLIMIT_FSIZE,
    "open_files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
}
#: Seconds between two looks at the worker, in case a fork of it holds the pipe open, and at what
#: the program uses.
_LOOK_SECONDS = 0.5
#: Longer than a worker waits for it: what a storm of processes left is still ended.
_KILL_SECONDS = 120.0
#: Ended processes that are reaped at once: a storm of them must not hold up anything else.
_REAPED = 1000
#: Signals that end a program: bubblewrap reports them as 128 and their number.
_FATAL = (4, 6, 7, 8, 9, 11, 13, 15, 24, 25, 31)


def main() -> None:
    config = marshal.loads(bytes.fromhex(sys.argv[1]))  # noqa: S302 - from the worker
    argv = sys.argv[3:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        confine.prctl(confine.PR_SET_CHILD_SUBREAPER, 1)
    child_ended, notify = os.pipe()
    os.set_blocking(notify, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
    launcher = os.getpid()
    groups = usage.make_groups(config["cgroups"])
    program, to_join = usage.fork_into(groups)
    if program == 0:
        _become(argv, config, launcher, to_join, is_nice=not groups)
    # Whoever reads these must notice that the program has closed them.
    for fd in (0, 1, 2, *config["program_fds"]):
        os.close(fd)
    worker = Worker(config["life_fd"], config["parent"], config["heartbeat"])
    exceeded = _wait(program, config, worker, child_ended)
    usage.stop_growth(groups)
    status = _kill_all(program, groups)
    # A program may have exceeded a limit after the last look.
    limits = config["limits"]
    if limits["total_memory_bytes"] is not None and usage.ran_out_of_memory(groups):
        exceeded = exceeded or usage.too_much_memory(limits)
    usage.remove_groups(groups)
    files = usage.look_at_files(limits, config["write"])
    exceeded = exceeded or _exceeded(files, worker)
    if worker.silent:
        os.write(config["error_fd"], f"abandoned:limit:{worker.silent}".encode())
    elif exceeded:
        os.write(config["error_fd"], f"limit:{exceeded}".encode())
    _exit_like(status, wrapped=config["wrapper"] is not None)


def _become(
    argv: list[str], config: Any, launcher: int, to_join: list[str], *, is_nice: bool
) -> NoReturn:
    """Replace this process by the program, in a session of its own and confined."""
    try:
        os.setsid()
        os.set_inheritable(config["error_fd"], False)
        os.set_inheritable(config["life_fd"], False)
        # Python ignores the first two, and exec would pass that on to the program.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        usage.join_groups(to_join)
        if is_nice:
            # Whoever ends a storm of processes must get its turn.
            os.nice(_NICENESS)
        if sys.platform == "linux":
            _confine(config)
            confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL)  # after a change of the user
        if os.getppid() != launcher:
            os._exit(1)
        for name, kind in _LIMITS.items():
            if config["limits"][name] is not None:
                _limit(kind, config["limits"][name])
        wrapper = _wrapper(config)
        if config["landlock"]:
            confine.landlock(config["read"], config["write"])
        if config["seccomp"] and not wrapper:
            confine.filter_calls(config["seccomp"])
        os.execvp((wrapper or argv)[0], [*wrapper, *argv])  # noqa: S606 - its purpose
    except (OSError, ValueError) as error:
        os.write(config["error_fd"], str(error).encode()[:500])
    os._exit(126)


def _confine(config: Any) -> None:
    """Become another user, if root started this, and count that user's processes."""
    limits = config["limits"]
    if config["uid"] is not None:
        os.umask(0o022)  # that user must be able to pass the directories that are made for it
        confine.give(config["uid"], config["write"])
        confine.change_user(config["uid"], [*config["read"], *config["write"]])
        confine.require_readable(config["named"])
    elif config["powerless"]:
        confine.drop_capabilities()
    if limits["processes"] is not None:
        # The kernel counts all processes of a user.
        limits["processes"] += usage.count_tasks(os.getuid())
    confine.forbid_new_rights()


def _wrapper(config: Any) -> list[str]:
    """Return the command line of bubblewrap up to the program's own, or nothing."""
    if config["wrapper"] is None:
        return []
    program, *rest = config["wrapper"]
    files: list[str] = []
    for path, text in config["data"].items():
        files += ["--ro-bind-data", str(_file_with(text.encode())), path]
    if config["seccomp"]:
        files += ["--seccomp", str(_file_with(config["seccomp"]))]
    return [program, *files, *rest, "--"]


def _file_with(data: bytes) -> int:
    """Return a file in memory that the next program inherits."""
    descriptor = os.memfd_create("mulligan", 0)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.set_inheritable(descriptor, True)
    return descriptor


def _limit(kind: int, value: int) -> None:
    """Lower the soft and the hard limit; a hard limit that is already lower stays."""
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


class Worker:
    """The worker that wants the program, as far as the launcher can know."""

    def __init__(self, life: int, pid: int, heartbeat: float | None) -> None:
        self._life, self._pid, self._heartbeat = life, pid, heartbeat
        self._looked = self._heard = time.monotonic()
        #: What to report if it has given no sign of life for too long.
        self.silent = ""

    def wants_it(self) -> bool:
        """Return whether the worker lives, runs, and has not closed its end of the pipe."""
        if _readable([self._life], 0):
            if not os.read(self._life, 4096):
                return False
            self._heard = time.monotonic()
        return os.getppid() == self._pid and not self._is_silent()

    def _is_silent(self) -> bool:
        if self._heartbeat is None:
            return False
        now = time.monotonic()
        # A launcher that did not run either says nothing about the worker: all of the computer or
        # of the container was stopped.
        if now - self._looked > max(4 * _LOOK_SECONDS, self._heartbeat / 4):
            self._heard = now
        self._looked = now
        if now - self._heard > self._heartbeat:
            self.silent = f"heard nothing from its worker for {self._heartbeat:g} s"
        return bool(self.silent)


def _wait(program: int, config: Any, worker: Worker, child_ended: int) -> str:
    """Return when the program has ended, the worker no longer wants it, or it uses too much.

    Return which limit it exceeds, if any.
    """
    events, look_at = [config["life_fd"], child_ended], time.monotonic() + _LOOK_SECONDS
    while not _has_ended(program) and worker.wants_it():
        pause = min(_LOOK_SECONDS, look_at - time.monotonic())
        if child_ended in _readable(events, max(0.0, pause)):
            os.read(child_ended, 4096)
        if time.monotonic() >= look_at:
            started = time.monotonic()
            exceeded = _exceeded(usage.look(config["limits"], config["write"]), worker)
            if exceeded:
                return exceeded
            # A tree that takes long to look at is looked at less often.
            now = time.monotonic()
            look_at = now + max(_LOOK_SECONDS, 2 * (now - started))
    return ""


def _readable(files: list[int], seconds: float) -> list[int]:
    """Wait for files. The numbers are those of a worker, which may have opened thousands."""
    waiting = select.poll()
    for fd in files:
        waiting.register(fd, select.POLLIN)
    return [fd for fd, _ in waiting.poll(seconds * 1000)]


def _exceeded(look: Iterable[str], worker: Worker) -> str:
    """Return which limit a look finds exceeded; it ends early if the worker waits no longer."""
    for exceeded in look:
        if exceeded or not worker.wants_it():
            return exceeded
    return ""


def _has_ended(program: int) -> bool:
    """Reap adopted children, but not the program: its number stays that of its group."""
    for _ in range(_REAPED):
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            break
        if ended.si_pid == program:
            return True
        os.waitpid(ended.si_pid, 0)
    return False


def _kill_all(program: int, groups: list[str]) -> int:
    """Kill the program and every descendant; return the program's wait status."""
    status: int = signal.SIGKILL
    _kill(os.killpg, program)
    deadline = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < deadline:
        # All of them in every round: what is killed cannot start another one.
        for pid in (*usage.members(groups), *usage.descendants(os.getpid())):
            _kill(os.kill, pid)
        try:
            for _ in range(_REAPED):
                pid, found = os.waitpid(-1, os.WNOHANG)
                if pid == program:
                    status = found
                elif pid == 0:
                    break
        except ChildProcessError:
            break
        time.sleep(0.002)
    return status


def _kill(send: Any, target: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        send(target, signal.SIGKILL)


def _exit_like(status: int, *, wrapped: bool) -> NoReturn:
    """End as the program ended, so that the worker sees its exit code or signal.

    Bubblewrap reports a signal as a shell does: 128 and its number.
    """
    code = os.waitstatus_to_exitcode(status)
    number = -code if code < 0 else code - 128 if wrapped and code - 128 in _FATAL else 0
    if number > 0:
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(max(code, 0))
