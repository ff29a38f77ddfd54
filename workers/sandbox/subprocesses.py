"""Run an untrusted program with limits, a deadline and capped output, and leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from pydantic import Field

from mulligan.policies.value import Value
from mulligan.tasks.ports.cancellation import current
from mulligan.tasks.ports.errors import VerifierError
from mulligan.workers.sandbox.streams import CappedOutput, pump

_LAUNCHER = Path(__file__).with_name("launcher.py")
#: Every descendant inherits this variable, so that those outside the process group are found, too.
_COOKIE = "MULLIGAN_RUN"
#: Longer than the launcher tries to kill processes.
_LAUNCHER_SECONDS = 20.0
_ALLOWED = ("PATH", "LANG", "LANGUAGE", "TZ")
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


class Limits(Value):
    """What one program may use; None means no limit."""

    #: Processor time of each process.
    cpu_seconds: int | None = Field(default=300, ge=1)
    #: Address space of each process.
    memory_bytes: int | None = Field(default=2 << 30, ge=1 << 20)
    #: The largest file it may write.
    file_bytes: int | None = Field(default=64 << 20, ge=0)
    #: Processes of the operating-system user: set it only if the workers have a separate user.
    processes: int | None = Field(default=None, ge=1)
    #: Bytes to keep of stdout and of stderr; the middle of more is left out.
    output_bytes: int = Field(default=256 << 10, ge=1024)


class ProgramMissing(VerifierError):
    """The program does not exist or may not be executed."""


@dataclass(frozen=True, kw_only=True)
class Completed:
    """How a program ended. Exactly one of exit_code and signal is set."""

    exit_code: int | None
    signal: int | None
    timed_out: bool
    #: The text, with a note in the middle if it was capped.
    stdout: str
    stderr: str
    elapsed: float


def clean_environment(private: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an allow-listed environment without secrets, with private home and temp folders."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name in _ALLOWED or name.startswith("LC_")
    }
    env.setdefault("PATH", _DEFAULT_PATH)
    for name, folder in (("HOME", "home"), ("TMPDIR", "tmp")):
        directory = private / folder
        directory.mkdir(parents=True, exist_ok=True)
        env[name] = str(directory)
    return env | dict(extra or {})


def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    timeout: float,
    env: Mapping[str, str],
    limits: Limits,
    stdin: str | bytes | None = None,
    max_output_bytes: int | None = None,
    pass_fds: Sequence[int] = (),
) -> Completed:
    """Run argv without a shell, and kill everything it started before returning.

    It gets its own session. When it ends, at the deadline, or when this process is killed, its
    launcher kills its process group and every descendant outside the group. Raise ProgramMissing
    if it cannot be started.
    """
    if not argv:
        raise ValueError("argv is empty")
    if not cwd.is_dir():
        raise VerifierError(f"the directory to run in does not exist: {cwd}")
    _require_program(argv[0], cwd, env)
    cookie = secrets.token_hex(16)
    cap = max_output_bytes if max_output_bytes is not None else limits.output_bytes
    started = monotonic()
    with _started(argv, cwd, {**env, _COOKIE: cookie}, limits, pass_fds) as (process, pipes):
        try:
            with current().stopping(pipes.close_life):
                outputs, timed_out = _watch(process, pipes.error, stdin, started + timeout, cap)
        finally:
            pipes.close_life()
            _kill_all(process, cookie)
        out, err, launch_error = outputs
    if launch_error.text:
        raise ProgramMissing(f"{argv[0]}: cannot be started: {launch_error.text}")
    code = process.returncode
    return Completed(
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        timed_out=timed_out,
        stdout=out.text,
        stderr=err.text,
        elapsed=monotonic() - started,
    )


def _require_program(program: str, cwd: Path, env: Mapping[str, str]) -> None:
    """Raise a clear ProgramMissing before anything runs."""
    if "/" in program:
        path = cwd / program
        found = path.is_file() and os.access(path, os.X_OK)
    else:
        found = shutil.which(program, path=env.get("PATH", _DEFAULT_PATH)) is not None
    if not found:
        raise ProgramMissing(f"{program}: no such program, or it may not be executed")


class _Pipes:
    """This process's ends of the pipes to a launcher."""

    def __init__(self) -> None:
        self.error, self.error_write = os.pipe()
        self.life_read, self._life = os.pipe()
        self._closing = threading.Lock()

    def close_launchers_ends(self) -> None:
        os.close(self.error_write)
        os.close(self.life_read)

    def close_life(self) -> None:
        """Tell the launcher to end the program. If this process dies, the kernel does it.

        Any thread may call it, any number of times.
        """
        with self._closing:
            life, self._life = self._life, -1
        if life >= 0:
            os.close(life)

    def close(self) -> None:
        self.close_life()
        os.close(self.error)


@contextlib.contextmanager
def _started(
    argv: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    limits: Limits,
    pass_fds: Sequence[int],
) -> Iterator[tuple[subprocess.Popen[bytes], _Pipes]]:
    """Start the program's launcher; yield it and the pipes to it."""
    pipes = _Pipes()
    config = limits.model_dump(exclude={"output_bytes"})
    config |= {
        "error_fd": pipes.error_write,
        "life_fd": pipes.life_read,
        "program_fds": list(pass_fds),
        "parent": os.getpid(),
    }
    try:
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_LAUNCHER), json.dumps(config), "--", *argv],
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=(pipes.error_write, pipes.life_read, *pass_fds),
            )
        finally:
            pipes.close_launchers_ends()
        with process:
            yield process, pipes
    finally:
        pipes.close()


def _watch(
    process: subprocess.Popen[bytes],
    error_fd: int,
    stdin: str | bytes | None,
    deadline: float,
    cap: int,
) -> tuple[tuple[CappedOutput, CappedOutput, CappedOutput], bool]:
    """Read until the program ends or the deadline passes; return the outputs and whether it did."""
    assert process.stdin is not None  # noqa: S101 - tells mypy what PIPE means
    assert process.stdout is not None  # noqa: S101
    assert process.stderr is not None  # noqa: S101
    outputs = CappedOutput(cap), CappedOutput(cap), CappedOutput(1024)
    data = stdin.encode("utf-8", "replace") if isinstance(stdin, str) else stdin or b""
    with selectors.DefaultSelector() as selector:
        files = (process.stdout.fileno(), process.stderr.fileno(), error_fd)
        streams = dict(zip(files, outputs, strict=True))
        ended = pump(
            selector, streams, process.stdin, data, deadline, lambda: has_exited(process.pid)
        )
    return outputs, not ended


def has_exited(pid: int) -> bool:
    """Return whether a child has ended, without reaping it: its group id stays reserved."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_all(process: subprocess.Popen[bytes], cookie: str) -> None:
    """Wait for the launcher to kill the program, and kill what a killed launcher left."""
    try:
        process.wait(_LAUNCHER_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # Repeated because a process may fork between being listed and being killed.
    for _ in range(20):
        escaped = _with_cookie(f"{_COOKIE}={cookie}".encode())
        if not escaped:
            return
        for pid in escaped:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _with_cookie(cookie: bytes) -> list[int]:
    """Return the processes that inherited the cookie; none where there is no /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if cookie in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found


def signal_name(number: int) -> str:
    """Return ``SIGSEGV`` for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
