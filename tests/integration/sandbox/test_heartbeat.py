"""The launcher ends a program whose worker gives no sign of life: frozen processes, for real."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.waiting import wait_for

from mulligan.tasks.ports.cancellation import Cancellation, cancelled_by
from mulligan.tasks.ports.errors import CallCancelled
from mulligan.workers.sandbox import life_pipe
from mulligan.workers.sandbox.allowed import program_limits
from mulligan.workers.sandbox.launcher import supervise
from mulligan.workers.sandbox.life_pipe import LifePipe
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.subprocesses import Completed, clean_environment, run
from mulligan.workers.settings.model import Settings

#: A worker that runs a program with a lease of 2 s, and then says what became of it.
WORKER = """if True:
    import json, sys
    from pathlib import Path
    from mulligan.workers.sandbox.limits import Limits
    from mulligan.workers.sandbox.subprocesses import clean_environment, run
    here, seconds = Path(sys.argv[1]), sys.argv[2]
    done = run(
        ["sh", "-c", f"echo begun; setsid sleep {seconds} & exec sleep {seconds}"],
        cwd=here, timeout=600, env=clean_environment(here), limits=Limits(heartbeat_seconds=2),
    )
    print(json.dumps([done.abandoned, done.signal, done.timed_out, done.stdout, done.stderr]))
"""


def sleepers(seconds: str) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if (process.info["cmdline"] or [])[-2:] == ["sleep", seconds]
    ]


@pytest.fixture
def seconds() -> str:
    """A time to sleep that no other process has."""
    return f"3600.{secrets.randbelow(10**9):09}"


@pytest.fixture
def worker(tmp_path: Path, seconds: str) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", WORKER, str(tmp_path), seconds]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    yield process
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGCONT)
    process.kill()
    process.communicate()


def python(tmp_path: Path, code: str, limits: Limits, **options: object) -> Completed:
    argv = [sys.executable, "-c", code]
    env = clean_environment(tmp_path)
    return run(argv, cwd=tmp_path, timeout=60, env=env, limits=limits, **options)  # type: ignore[arg-type]


def test_the_lease_is_the_heartbeat_of_programs(tmp_path: Path) -> None:
    assert program_limits(Settings(home=tmp_path, lease=17)).heartbeat_seconds == 17
    assert Limits().heartbeat_seconds is None


def test_a_program_ends_with_its_frozen_worker(worker: subprocess.Popen[str], seconds: str) -> None:
    """Given a program with a child in a session of its own, when its worker is frozen for longer
    than its lease, then both end. When the worker goes on, then it knows that they were ended."""
    wait_for(lambda: len(sleepers(seconds)) == 2, "the program and its child")
    worker.send_signal(signal.SIGSTOP)
    wait_for(lambda: not sleepers(seconds), "the end of both", seconds=30)
    assert psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED
    worker.send_signal(signal.SIGCONT)
    said, _ = worker.communicate(timeout=30)
    abandoned, number, timed_out, stdout, stderr = json.loads(said)
    assert (abandoned, number, timed_out) == (True, signal.SIGKILL, False)
    assert stdout == "begun\n"
    assert "error: stopped because it heard nothing from its worker for 2 s" in stderr


def test_a_slow_listener_is_no_frozen_worker(tmp_path: Path) -> None:
    """Given a listener that needs longer than the heartbeat, then the program goes on."""
    heard: list[bytes] = []

    def listen(data: bytes) -> None:
        heard.append(data)
        time.sleep(3.5 if len(heard) == 1 else 0)

    code = "import time; print('begun', flush=True); time.sleep(3); print('ended')"
    done = python(tmp_path, code, Limits(heartbeat_seconds=2), on_output=listen)
    assert (done.exit_code, done.abandoned) == (0, False)
    assert b"".join(heard) == b"begun\nended\n"


def test_a_lost_lease_cancels_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a process whose thread does not write, as if it were frozen: its result would be
    refused, and a verdict about what was killed would be wrong."""
    monkeypatch.setattr(LifePipe, "beat", lambda _pipe: None)
    limits = Limits(heartbeat_seconds=0.5)
    started = time.monotonic()
    with cancelled_by(Cancellation()), pytest.raises(CallCancelled):
        python(tmp_path, "import time; time.sleep(600)", limits)
    assert time.monotonic() - started < 30
    # Without a lease, the caller decides.
    assert python(tmp_path, "import time; time.sleep(600)", limits).abandoned


@pytest.mark.parametrize("again", [False, True])
def test_a_stopped_launcher_leaves_nothing_behind(
    tmp_path: Path, seconds: str, again: bool
) -> None:
    """Given a launcher that is stopped, perhaps again and again, when the deadline has passed, then
    it is woken, or killed with its program."""
    ended = threading.Event()

    @contextlib.contextmanager
    def stop(launcher: int, _end: object) -> Iterator[None]:
        def suspend() -> None:
            with contextlib.suppress(ProcessLookupError):
                wait_for(lambda: sleepers(seconds), "the program")
                os.kill(launcher, signal.SIGSTOP)
                while again and not ended.wait(0.001):
                    os.kill(launcher, signal.SIGSTOP)

        threading.Thread(target=suspend, daemon=True).start()
        yield

    argv = ["sh", "-c", f"setsid sleep {seconds} & exec sleep {seconds}"]
    done = run(
        argv, cwd=tmp_path, timeout=1, env=clean_environment(tmp_path), limits=Limits(), watch=stop
    )
    ended.set()
    assert done.timed_out
    wait_for(lambda: not sleepers(seconds), "the end of both")


# -- the worker's side -----------------------------------------------------------------------------


def test_one_thread_writes_to_all_pipes_and_ends_with_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(life_pipe, "_threads", {})

    def threads() -> int:
        return sum(each.name == "sandbox life" for each in threading.enumerate())

    before = threads()
    pipes = [LifePipe(0.2) for _ in range(3)]
    assert threads() == before + 1
    for pipe in pipes:
        assert os.read(pipe.launchers_end, 1) == b"."
        pipe.close()
        pipe.close()
    wait_for(lambda: threads() == before, "the end of the thread")
    for pipe in pipes:
        while os.read(pipe.launchers_end, 100):
            pass
        pipe.close_launchers_end()


def test_without_a_heartbeat_nothing_is_written() -> None:
    pipe = LifePipe()
    pipe.close()
    assert os.read(pipe.launchers_end, 1) == b""
    pipe.close_launchers_end()


def test_a_full_pipe_and_a_launcher_that_has_ended_are_no_errors() -> None:
    pipe = LifePipe(3600)
    for _ in range(70_000):
        pipe.beat()
    pipe.close_launchers_end()
    pipe.beat()
    pipe.close()
    pipe.beat()


def test_a_fork_has_a_thread_of_its_own() -> None:
    """Given a process whose thread writes, when it forks, then the fork's pipes are written to."""
    parents = LifePipe(0.2)
    pid = os.fork()
    if pid == 0:
        pipe = LifePipe(0.2)
        os._exit(0 if os.read(pipe.launchers_end, 1) == b"." else 1)
    assert os.waitpid(pid, 0)[1] == 0
    parents.close()
    parents.close_launchers_end()


# -- the launcher's side ---------------------------------------------------------------------------


class _Clock:
    """Replaces the launcher's clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(supervise, "time", clock)
    return clock


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for each in (read, write):
        with contextlib.suppress(OSError):
            os.close(each)


def wants_it(worker: supervise.Worker, clock: _Clock, seconds: float) -> bool:
    """Return whether the worker wants the program during a time, looked at twice a second."""
    until = clock.now + seconds
    while clock.now < until:
        if not worker.wants_it():
            return False
        clock.now += 0.5
    return True


def test_a_silent_worker_is_given_its_lease(clock: _Clock, pipe: tuple[int, int]) -> None:
    worker = supervise.Worker(pipe[0], os.getppid(), 30)
    assert wants_it(worker, clock, 30)
    assert not wants_it(worker, clock, 1)
    assert worker.silent == "heard nothing from its worker for 30 s"


def test_each_byte_begins_a_new_lease(clock: _Clock, pipe: tuple[int, int]) -> None:
    worker = supervise.Worker(pipe[0], os.getppid(), 30)
    for _ in range(5):
        assert wants_it(worker, clock, 25)
        os.write(pipe[1], b"...")
    assert wants_it(worker, clock, 30)
    assert not wants_it(worker, clock, 2)


def test_a_closed_pipe_and_another_parent_end_it(clock: _Clock, pipe: tuple[int, int]) -> None:
    assert not supervise.Worker(pipe[0], os.getppid() + 1, None).wants_it()
    worker = supervise.Worker(pipe[0], os.getppid(), None)
    os.write(pipe[1], b".")
    assert wants_it(worker, clock, 100_000)
    os.close(pipe[1])
    assert not worker.wants_it()
    assert not worker.wants_it()
    assert worker.silent == ""


def test_a_launcher_that_did_not_run_either_gives_another_lease(
    clock: _Clock, pipe: tuple[int, int]
) -> None:
    """Given a computer that was suspended: the worker had no time to write."""
    worker = supervise.Worker(pipe[0], os.getppid(), 30)
    assert wants_it(worker, clock, 20)
    clock.now += 3600
    assert wants_it(worker, clock, 29)
    assert not wants_it(worker, clock, 2)
