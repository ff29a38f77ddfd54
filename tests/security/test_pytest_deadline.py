"""pytest.subprocess returns soon after its timeout, whoever holds the pipe of its events."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread
from time import monotonic

import pytest
from support.pytest_project import TESTS, Project

from mulligan.policies.failures.failure import VerificationStatus
from mulligan.workers.verifiers.pytest.event_stream import (
    MAX_EVENTS,
    EventReader,
    signature,
)

#: Ends the launcher, and keeps the events' pipe open in another session, in a process without the
#: worker's variables. That process ends with the private copy.
DETACHED = """
import os, sys, time
HOLD = "import os, time\\nfor _ in range(400):\\n    os.path.exists('test_bitcount.py')"
HOLD += " and time.sleep(0.1)"
def bitcount(n):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for fd in range(3, 64):
                try: os.set_inheritable(fd, True)
                except OSError: pass
            os.execve(sys.executable, [sys.executable, "-I", "-c", HOLD], {})
        os._exit(0)
    time.sleep(1)
    os.kill(os.getppid(), 9)
    time.sleep(40)
"""


def test_a_detached_process_with_the_pipe_delays_nothing(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.write("test_bitcount.py", TESTS)
    started = monotonic()
    result = project.verify(DETACHED, timeout=5)
    assert result.status is VerificationStatus.FAIL
    assert monotonic() - started < 25, "the listing, the run with its timeout, and slack"


def test_the_reader_ends_with_the_run_although_the_pipe_is_open() -> None:
    with EventReader(str) as reader:
        held = os.dup(reader.write_fd)
        os.write(held, b"not an event\n")
        started = monotonic()
    os.close(held)
    assert monotonic() - started < 5
    assert reader.transcript().problems == ["an event that pytest did not send"]


def test_the_reader_ends_although_somebody_keeps_writing() -> None:
    reader = EventReader(str)
    held = os.dup(reader.write_fd)

    def write() -> None:
        try:
            while True:
                os.write(held, b"x" * 4096)
        except BrokenPipeError:
            os.close(held)

    with reader:
        writer = Thread(target=write)
        writer.start()
        started = monotonic()
    assert monotonic() - started < 5
    writer.join(5)
    assert not writer.is_alive()


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, b'{"event": "finish", "exit_code": Infinity}', b"\xff", b"null", b""]
)
def test_any_line_is_only_a_problem(line: bytes) -> None:
    with EventReader(str) as reader:
        writer = Thread(target=lambda: os.write(reader.write_fd, line + b"\n"))
        writer.start()
        writer.join(5)
    assert reader.transcript().problems == ["an event that pytest did not send"]


def test_the_number_of_events_is_bounded() -> None:
    body = b'{"event": "running", "nodeid": "x"}'
    with EventReader(str) as reader:
        for number in range(MAX_EVENTS + 1):
            line = f"{signature(reader.key, number, body)} ".encode() + body + b"\n"
            os.write(reader.write_fd, line)
    assert reader.transcript().problems == [f"more than {MAX_EVENTS} events"]
