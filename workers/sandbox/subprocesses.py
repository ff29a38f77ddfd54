"""Run an untrusted program confined, with limits, a deadline and capped output.

Nothing of it is left behind.
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import os
import secrets
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from mulligan.tasks.ports.cancellation import current
from mulligan.tasks.ports.errors import VerifierError
from mulligan.workers.sandbox.confinement import Confinement
from mulligan.workers.sandbox.end_launcher import COOKIE, has_exited, kill_all, wake
from mulligan.workers.sandbox.hidden_process import hide_process
from mulligan.workers.sandbox.isolation import Isolation, find_isolation
from mulligan.workers.sandbox.life_pipe import LifePipe
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.network import open_network
from mulligan.workers.sandbox.private import private_directory
from mulligan.workers.sandbox.programs import (
    DEFAULT_PATH,
    ProgramMissing,
    find_program,
    require_interpreter,
)
from mulligan.workers.sandbox.streams import CappedOutput, OpenInput, OutputListener, pump
from mulligan.workers.sandbox.surroundings import (
    LAUNCHER,
    PROGRAM_USER,
    Surroundings,
    launcher_config,
    require_hidden,
)

#: Starts the launcher without this package's own __init__ modules, which take longer.
_LAUNCHER = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from launcher.supervise import main; main()"
)
#: For a first start on a busy computer.
_TRY_SECONDS = 30.0
_TOO_LONG = (
    "its arguments, its environment variables, or the paths in `read` and sandbox_read are too many"
    " or too long"
)
_ALLOWED = ("PATH", "LANG", "LANGUAGE", "TZ")


#: Gets the process of a launcher, and what ends its program at once, while it runs.
ProgramWatch = Callable[[int, Callable[[], None]], contextlib.AbstractContextManager[None]]


def unwatched(_launcher: int, _end: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
    """Watch nothing."""
    return contextlib.nullcontext()


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
    #: Whether it was ended because this process gave no sign of life for
    #: ``Limits.heartbeat_seconds``. That says nothing about the program.
    abandoned: bool = False
    #: How it was confined.
    layers: tuple[str, ...] = ()
    is_confined: bool = False


def clean_environment(private: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an allow-listed environment without secrets, with private home and temp folders.

    ``extra`` adds to it, but changes neither these folders, which the program may write, nor PATH.
    This Python and what is installed with it come first on PATH, unless PATH says otherwise: what
    comes first for the worker may be a shim of pyenv in a home that the program cannot see.
    """
    env = {
        name: value
        for name, value in os.environ.items()
        if name in _ALLOWED or name.startswith("LC_")
    }
    path, beside_python = env.get("PATH", DEFAULT_PATH), str(Path(sys.executable).parent)
    if beside_python not in path.split(os.pathsep):
        path = f"{beside_python}{os.pathsep}{path}"
    own = {"PATH": path}
    for name, folder in (("HOME", "home"), ("TMPDIR", "tmp")):
        directory = private / folder
        directory.mkdir(parents=True, exist_ok=True)
        own[name] = str(directory)
    # Its user may have no name here, and programs ask for one.
    return {**env, "USER": PROGRAM_USER, "LOGNAME": PROGRAM_USER, **(extra or {}), **own}


def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    timeout: float,
    env: Mapping[str, str],
    limits: Limits,
    stdin: str | bytes | OpenInput | None = None,
    max_output_bytes: int | None = None,
    pass_fds: Sequence[int] = (),
    read: Sequence[Path] = (),
    on_output: OutputListener | None = None,
    on_stderr: OutputListener | None = None,
    watch: ProgramWatch = unwatched,
) -> Completed:
    """Run argv without a shell, and kill everything it started before returning.

    It can write to its directory and to HOME and TMPDIR of its environment, and read the system's
    programs, this Python, ``read``, its own file and those that the arguments name by their full
    path. When it ends, at the deadline, or when this process is killed or frozen, its launcher
    kills it and every descendant. ``on_output`` gets what it prints to stdout as it arrives. While
    that works, the program goes on, but nothing else is read and no deadline ends it. ``watch`` is
    given the launcher's process and a function that ends the program at once. Raise
    ProgramMissing if it cannot be started, NotConfined if it cannot be confined, and CallCancelled
    if nobody wants its result any more.
    """
    if not argv:
        raise ValueError("argv is empty")
    hide_process()
    if not cwd.is_dir():
        raise VerifierError(f"the directory to run in does not exist: {cwd}")
    isolation = isolation_of(limits.confinement)
    around = _surroundings(argv, isolation, cwd, env, limits, read)
    cap = max_output_bytes if max_output_bytes is not None else limits.output_bytes
    talk = _Talk(stdin, cap, on_output, on_stderr, watch)
    network = open_network(limits.confinement, isolation.kind)
    if network is None:
        return _run(argv, isolation, around, timeout, talk, pass_fds)
    with network.open():
        around = replace(around, hosts=network.hosts)
        inside = (*pass_fds, network.descriptor)
        return _run(network.argv(argv), isolation, around, timeout, talk, inside)


def _surroundings(
    argv: Sequence[str],
    isolation: Isolation,
    cwd: Path,
    env: Mapping[str, str],
    limits: Limits,
    read: Sequence[Path] = (),
) -> Surroundings:
    """Return what the program gets to see. Raise VerifierError if it cannot be started so."""
    named = [Path(each) for each in argv[1:] if each.startswith("/") and os.path.isfile(each)]
    seen = (*limits.confinement.read, *read, *named)
    around = Surroundings(cwd=cwd, env=env, limits=limits, read=seen)
    if isolation.kind != "none":
        require_hidden(isolation, around)
    program = find_program(argv[0], cwd, env, around.places)
    around = replace(around, read=(*seen, program))
    if isolation.kind != "none":
        require_interpreter(program, env, around.places)
    return around


def isolation_of(confinement: Confinement) -> Isolation:
    """Return how programs are confined here. Raise NotConfined if they cannot be."""
    return find_isolation(confinement, _try)


def check_start(argv: Sequence[str], limits: Limits) -> None:
    """Raise VerifierError if a program could not be started here; start only a harmless one.

    A program in the workspace is not looked for.
    """
    with private_directory() as work:
        env, isolation = clean_environment(work.parent), isolation_of(limits.confinement)
        if argv[0].startswith("/") or "/" not in argv[0]:
            _surroundings(argv, isolation, work, env, limits)
        done = run(["true"], cwd=work, timeout=_TRY_SECONDS, env=env, limits=limits)
    if done.exit_code != 0:
        raise VerifierError(done.stderr.strip() or "no program can be started")


def _try(isolation: Isolation) -> str:
    """Run this Python in the isolation; return what is wrong with it, or nothing."""
    with private_directory() as work:
        env, limits = clean_environment(work.parent), Limits()
        around = Surroundings(cwd=work, env=env, limits=limits)
        argv = [sys.executable, "-I", "-S", "-c", "open('written', 'x'); print('confined')"]
        try:
            talk = _Talk(None, limits.output_bytes)
            done = _run(argv, isolation, around, _TRY_SECONDS, talk, ())
        except VerifierError as error:
            return str(error)
    if done.stdout == "confined\n":
        return ""
    if done.timed_out:
        return f"a program did not start within {_TRY_SECONDS:g} s"
    return (done.stderr.strip() or f"exit code {done.exit_code}").splitlines()[-1]


class _Talk:
    """What a program reads and prints, what its launcher reports, and who watches it."""

    def __init__(
        self,
        stdin: str | bytes | OpenInput | None,
        cap: int,
        on_output: OutputListener | None = None,
        on_stderr: OutputListener | None = None,
        watch: ProgramWatch = unwatched,
    ) -> None:
        data = stdin.encode("utf-8", "replace") if isinstance(stdin, str) else stdin or b""
        self.stdin = data if isinstance(data, OpenInput) else OpenInput(data, closed=True)
        self.stdout = CappedOutput(cap, on_output)
        self.stderr = CappedOutput(cap, on_stderr)
        self.launcher = CappedOutput(1024)
        self.watch = watch


def _run(
    argv: Sequence[str],
    isolation: Isolation,
    around: Surroundings,
    timeout: float,
    talk: _Talk,
    pass_fds: Sequence[int],
) -> Completed:
    # In a process namespace nothing outlives its first process, and there is nothing to find.
    cookie = None if isolation.kind == "bubblewrap" else secrets.token_hex(16)
    started = monotonic()
    with _started(argv, isolation, around, cookie, pass_fds) as (process, pipes):

        def end() -> None:
            pipes.life.close()
            wake(process)

        try:
            with current().stopping(end), talk.watch(process.pid, end):
                timed_out = _exchange(process, pipes.error, talk, started + timeout)
        finally:
            pipes.life.close()
            kill_all(process, cookie)
    said = talk.launcher.text
    before, _, exceeded = said.partition("limit:")
    if said and not exceeded:
        raise ProgramMissing(f"{argv[0]}: cannot be started: {said}")
    abandoned = before.endswith("abandoned:")
    if abandoned:
        # The lease of this thread is lost, too. Without one, the caller decides.
        current().cancel()
        current().check()
    code = process.returncode
    if code is None or exceeded:  # also if the program had just ended by itself
        code = -signal.SIGKILL
    return Completed(
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        timed_out=timed_out,
        stdout=talk.stdout.text,
        stderr=talk.stderr.text + (f"\nerror: stopped because it {exceeded}\n" if exceeded else ""),
        elapsed=monotonic() - started,
        abandoned=abandoned,
        layers=isolation.layers,
        is_confined=isolation.kind != "none",
    )


class _Pipes:
    """This process's ends of the pipes to a launcher."""

    def __init__(self, limits: Limits) -> None:
        self.life = LifePipe(limits.heartbeat_seconds)
        self.error, self.error_write = os.pipe()

    def close_launchers_ends(self) -> None:
        os.close(self.error_write)
        self.life.close_launchers_end()

    def close(self) -> None:
        self.life.close()
        os.close(self.error)


@contextlib.contextmanager
def _started(
    argv: Sequence[str],
    isolation: Isolation,
    around: Surroundings,
    cookie: str | None,
    pass_fds: Sequence[int],
) -> Iterator[tuple[subprocess.Popen[bytes], _Pipes]]:
    """Start the program's launcher; yield it and the pipes to it."""
    config = launcher_config(isolation, around)
    pipes = _Pipes(around.limits)
    config |= {
        "error_fd": pipes.error_write,
        "life_fd": pipes.life.launchers_end,
        "program_fds": list(pass_fds),
        "parent": os.getpid(),
    }
    launcher = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        _LAUNCHER,
        str(LAUNCHER.parent),
        marshal.dumps(config).hex(),
    ]
    try:
        try:
            process = subprocess.Popen(
                [*launcher, "--", *argv],
                cwd=around.cwd,
                env={**around.env, **({COOKIE: cookie} if cookie else {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=(pipes.error_write, pipes.life.launchers_end, *pass_fds),
            )
        except (OSError, ValueError) as error:  # too long, or with a character that none can have
            why = _TOO_LONG if getattr(error, "errno", None) == errno.E2BIG else str(error)
            raise ProgramMissing(f"{argv[0]}: cannot be started: {why}") from None
        finally:
            pipes.close_launchers_ends()
        try:
            yield process, pipes
        finally:
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
    finally:
        pipes.close()


def _exchange(
    process: subprocess.Popen[bytes], error_fd: int, talk: _Talk, deadline: float
) -> bool:
    """Read until the program ends or the deadline passes; return whether it did."""
    assert process.stdin is not None  # noqa: S101 - tells mypy what PIPE means
    assert process.stdout is not None  # noqa: S101
    assert process.stderr is not None  # noqa: S101
    with selectors.DefaultSelector() as selector:
        streams = {
            process.stdout.fileno(): talk.stdout,
            process.stderr.fileno(): talk.stderr,
            error_fd: talk.launcher,
        }
        return not pump(
            selector, streams, process.stdin, talk.stdin, deadline, lambda: has_exited(process.pid)
        )


def signal_name(number: int) -> str:
    """Return ``SIGSEGV`` for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
