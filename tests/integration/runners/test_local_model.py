"""The bundled model and its one server per host, both real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema_rs
import pytest
from support.waiting import wait_for

from mulligan.policies.jobs.job import Decoding, Message, Output
from mulligan.policies.value import Json
from mulligan.tasks.ports.errors import TransportFault
from mulligan.tasks.ports.runners import Request
from mulligan.workers.runners import local_state
from mulligan.workers.runners.local import LocalRunner, ensure_local_server, stop_local_server

pytestmark = [pytest.mark.model, pytest.mark.real_models]

SCHEMA: dict[str, Json] = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "priority": {"enum": ["low", "medium", "high"]},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 4},
    },
    "required": ["title", "priority", "tags"],
    "additionalProperties": False,
}
TICKET = "Turn this into a JSON ticket: 'The login page shows an error 500 since this morning!'"
OWNER = """
import os, sys
from mulligan.workers.runners.local import ensure_local_server
print(ensure_local_server(owner_pid=os.getpid()), flush=True)
sys.stdin.read()
"""
USER = OWNER.replace("owner_pid=os.getpid()", "idle_exit=600")


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A separate runtime directory, so that no other server is found or stopped."""
    monkeypatch.setenv("MULLIGAN_RUNTIME_DIR", str(tmp_path))
    yield tmp_path
    stop_local_server()
    wait_for(lambda: servers_of(tmp_path) == [])


def servers_of(directory: Path) -> list[int]:
    """Return the server processes of this runtime directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"mulligan.workers.runners.local_server" in words and str(directory).encode() in words:
            found.append(int(entry.parent.name))
    return found


def owner(code: str = OWNER) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def answer(runner: LocalRunner, text: str, decoding: Decoding | None = None) -> Output:
    messages = (Message(role="user", content=text),)
    return runner.answer(
        Request(messages=messages, decoding=decoding or Decoding(), json_schema=SCHEMA)
    )


@pytest.mark.usefixtures("runtime")
def test_the_model_is_deterministic_and_follows_a_schema() -> None:
    ensure_local_server(owner_pid=os.getpid())
    runner = LocalRunner.from_options({"temperature": 0.7, "seed": 1, "max_tokens": 150})

    free = answer(runner, "What is the capital of France?")
    assert free.text.strip()
    assert free.usage.prompt_tokens
    assert free.usage.completion_tokens
    assert answer(runner, "What is the capital of France?").text == free.text

    constrained = answer(runner, TICKET, Decoding(constrained=True, max_tokens=300))
    assert constrained.finish_reason == "stop"
    jsonschema_rs.validate(SCHEMA, json.loads(constrained.text))

    assert answer(runner, "Count to one hundred.", Decoding(max_tokens=5)).truncated


def test_concurrent_processes_share_one_server_until_the_last_owner_ends(runtime: Path) -> None:
    # Given four processes that need the server at the same moment
    owners = [owner() for _ in range(4)]
    urls = {first_line(process) for process in owners}
    # Then there is one server
    assert len(urls) == 1
    assert len(servers_of(runtime)) == 1
    # When all but one release it, then it stays
    results = [stop_local_server(owner_pid=process.pid) for process in owners[:3]]
    assert results == [False] * 3
    assert len(servers_of(runtime)) == 1
    # When the last one is killed without releasing it, then it ends
    owners[3].kill()
    wait_for(lambda: servers_of(runtime) == [])
    for process in owners:
        process.kill()
        process.communicate()


def test_stopping_leaves_no_process(runtime: Path) -> None:
    ensure_local_server(owner_pid=os.getpid())
    assert len(servers_of(runtime)) == 1
    assert stop_local_server() is True
    assert servers_of(runtime) == []
    assert stop_local_server() is True


def test_a_killed_server_is_started_again(runtime: Path) -> None:
    runner = LocalRunner.from_options({"max_tokens": 5})
    assert answer(runner, "Hello").text
    (pid,) = servers_of(runtime)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: local_state.identify(pid) is None)
    assert answer(runner, "Hello").text
    assert pid not in servers_of(runtime)


def test_a_server_without_an_owner_ends_when_idle(runtime: Path) -> None:
    ensure_local_server(idle_exit=0.2)
    wait_for(lambda: servers_of(runtime) == [])
    wait_for(lambda: not (runtime / "local-model.json").exists())


def test_a_server_ends_with_the_last_worker_that_asked_it(runtime: Path) -> None:
    workers = [owner(USER), owner(USER)]
    assert len({first_line(process) for process in workers}) == 1
    for process in workers:
        assert len(servers_of(runtime)) == 1
        process.kill()
        process.communicate()
    wait_for(lambda: servers_of(runtime) == [])


def test_an_unrecorded_server_ends(runtime: Path) -> None:
    """Given a starter that died before it recorded the server."""
    ensure_local_server(owner_pid=os.getpid())
    local_state.forget_state(runtime)
    wait_for(lambda: servers_of(runtime) == [])


def test_a_failed_start_shows_the_log(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(TransportFault, match="did not start") as caught:
        ensure_local_server()
    assert caught.value.provider == "local"
    assert servers_of(runtime) == []
