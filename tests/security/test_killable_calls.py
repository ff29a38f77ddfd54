"""Work that may explode runs in a child process: whatever it does, its caller goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from support import explosions
from support.waiting import wait_for

from mulligan.policies.failures.failure import Finding
from mulligan.tasks.ports.errors import BadInput, TooCostly, VerifierError
from mulligan.workers.killable.pool import call_killable

NESTED = 100_000


def test_a_call_returns_what_the_function_returns() -> None:
    assert call_killable(explosions.add, 1, 2, seconds=10) == 3
    assert call_killable(explosions.a_finding, seconds=10) == Finding(message="wrong", path="$.a")


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (explosions.run_for_ever, (), "it takes longer than 0.5 s"),
        (explosions.fill_memory, (), "it needs more than 64 MB"),
        (explosions.end_by, (signal.SIGSEGV,), "it ends the process that does it (SIGSEGV)"),
        (explosions.end_by, (signal.SIGABRT,), "it ends the process that does it (SIGABRT)"),
        (explosions.exit_with, (3,), "it ends the process that does it (exit code 3)"),
        (explosions.recurse, (), "it is nested too deeply"),
    ],
)
def test_what_uses_too_much_is_ended_and_named(
    function: object, arguments: tuple[int, ...], message: str
) -> None:
    with pytest.raises(TooCostly) as raised:
        call_killable(
            function,  # type: ignore[arg-type]
            *arguments,
            seconds=0.5 if function is explosions.run_for_ever else 60,
            memory_bytes=64 << 20,
            what="it",
        )
    assert str(raised.value) == message
    assert call_killable(explosions.add, 1, 2, seconds=10) == 3


def test_arguments_nested_too_deeply_are_refused() -> None:
    nested: list[object] = []
    for _ in range(NESTED):
        nested = [nested]
    with pytest.raises(TooCostly, match="nested too deeply"):
        call_killable(explosions.add, nested, seconds=10)


def test_our_errors_come_back_as_they_are_and_others_by_name() -> None:
    with pytest.raises(BadInput) as refused:
        call_killable(explosions.refuse_input, seconds=10)
    assert refused.value.problems[0].path == ("schema", "type")
    with pytest.raises(VerifierError, match="it failed: KeyError: 'name'"):
        call_killable(explosions.fail, seconds=10, what="it")


def test_a_child_sends_values_only() -> None:
    with pytest.raises(VerifierError, match=r"subprocess\.Popen is not a value"):
        call_killable(explosions.a_program, seconds=10)


def test_a_child_knows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", "secret")
    # A new child: the secret was set after the others had started.
    with pytest.raises(TooCostly):
        call_killable(explosions.exit_with, 1, seconds=10)
    assert "MODEL_KEY" not in call_killable(explosions.environment, seconds=10)


def test_many_threads_share_few_children() -> None:
    with ThreadPoolExecutor(300) as threads:
        calls = [
            threads.submit(call_killable, explosions.add, i, 1, seconds=60, wait_seconds=500)
            for i in range(600)
        ]
        found = {
            threads.submit(call_killable, explosions.process_id, seconds=60, wait_seconds=500)
            for _ in range(99)
        }
    assert [call.result() for call in calls] == list(range(1, 601))
    assert len({each.result() for each in found}) <= max(2, os.cpu_count() or 2)


def test_a_forked_process_has_children_of_its_own() -> None:
    own = call_killable(explosions.process_id, seconds=10)
    reader, writer = os.pipe()
    forked = os.fork()
    if forked == 0:
        try:
            os.write(writer, str(call_killable(explosions.process_id, seconds=10)).encode())
        finally:
            os._exit(0)
    os.waitpid(forked, 0)
    other = int(os.read(reader, 100))
    os.close(reader)
    os.close(writer)
    assert other != own
    wait_for(lambda: not psutil.pid_exists(other), "the end of the child", seconds=10)


_PROGRAM = """
import os, sys, threading
sys.path.insert(0, sys.argv[2])
from support import explosions
from mulligan.workers.killable.pool import call_killable
print(call_killable(explosions.process_id, seconds=10), flush=True)
threading.Thread(
    target=call_killable, args=(explosions.run_for_ever,), kwargs={"seconds": 60}, daemon=True
).start()
if sys.argv[1] == "wait":
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["returns", "is killed"])
def test_no_child_outlives_its_parent(end: str) -> None:
    argument = "wait" if end == "is killed" else "return"
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, argument, str(Path(explosions.__file__).parents[1])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdout is not None
        child = int(program.stdout.readline())
        if end == "is killed":
            program.kill()
    wait_for(lambda: not psutil.pid_exists(child), "the end of the child", seconds=10)


def test_a_large_process_keeps_its_children() -> None:
    """Given a worker that uses more memory than a child may keep, then a child stays warm."""
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from mulligan.workers.killable.pool import call_killable
from support import explosions
large = bytearray(b"x" * (600 << 20))
print(len({call_killable(explosions.process_id, seconds=60) for _ in range(5)}))
"""
    argv = [sys.executable, "-c", code, str(Path(__file__).parents[1])]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
