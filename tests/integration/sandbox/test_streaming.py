"""What a program prints is passed on while it runs."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.streams import CappedOutput
from mulligan.workers.sandbox.subprocesses import Completed, clean_environment, run


def python(tmp_path: Path, code: str, **options: Any) -> Completed:
    env = clean_environment(tmp_path)
    argv = [sys.executable, "-c", code]
    return run(argv, cwd=tmp_path, timeout=60, env=env, limits=Limits(), **options)


def test_output_arrives_before_the_program_ends(tmp_path: Path) -> None:
    """Given a program that waits for what the listener does with its first line."""
    heard: list[bytes] = []

    def listen(data: bytes) -> None:
        heard.append(data)
        (tmp_path / "heard").touch()

    code = """if True:
        import os, sys, time
        print("first", flush=True)
        print("not passed on", file=sys.stderr)
        while not os.path.exists("heard"):
            time.sleep(0.01)
        print("second")
    """
    done = python(tmp_path, code, on_output=listen)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "first\nsecond\n", "not passed on\n")
    assert b"".join(heard) == b"first\nsecond\n"


def test_the_listener_gets_what_the_cap_leaves_out(tmp_path: Path) -> None:
    heard = bytearray()
    code = "print('x' * 300_000, end='')"
    done = python(tmp_path, code, on_output=heard.extend, max_output_bytes=1000)
    assert bytes(heard) == b"x" * 300_000
    assert "299000 bytes left out" in done.stdout


def test_a_failing_listener_loses_nothing_and_is_not_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[bytes] = []

    def fail(data: bytes) -> None:
        heard.append(data)
        raise RuntimeError("cannot listen")

    code = "import time; print(1, flush=True); time.sleep(0.2); print(2, flush=True); print(3)"
    done = python(tmp_path, code, on_output=fail)
    assert (done.exit_code, done.stdout) == (0, "1\n2\n3\n")
    assert len(heard) == 1
    assert "no longer passed on" in caplog.text


class SoftTimeLimitExceeded(Exception):
    """What a worker's time limit raises in whatever is running."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, SoftTimeLimitExceeded])
def test_what_is_not_about_the_listener_ends_the_program(
    tmp_path: Path, error: type[BaseException]
) -> None:
    def interrupt(_: bytes) -> None:
        raise error

    code = """if True:
        import pathlib, time
        print("begun", flush=True)
        while True:
            pathlib.Path("alive").touch()
            time.sleep(0.02)
    """
    with pytest.raises(error):
        python(tmp_path, code, on_output=interrupt)
    with contextlib.suppress(FileNotFoundError):
        (tmp_path / "alive").unlink()
    time.sleep(0.2)
    assert not (tmp_path / "alive").exists()


def test_the_end_of_a_stream_is_nothing_to_pass_on() -> None:
    heard: list[bytes] = []
    output = CappedOutput(10, heard.append)
    for data in (b"a", b"", b"bc"):
        output.add(data)
    assert heard == [b"a", b"bc"]
    assert output.text == "abc"
