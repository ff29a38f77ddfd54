"""Whatever is killed leaves nothing behind: processes are killed with -9 and the living counted."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.cli_process import Shell, new_shell
from support.deploy_files import ROOT, procfile
from support.jobs import GOOD, scripted
from support.redis_server import RedisServer
from support.waiting import wait_for

pytestmark = pytest.mark.real_models("command")


class Agents:
    """Jobs whose programs start a child in a session of its own, as agents do."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        #: An argument that no other process of this host has.
        self._seconds = f"9{os.getpid()}{shell.folder.stat().st_ino}"

    def submit(self) -> None:
        self._shell.write("agents.json", self.jobs())
        self._shell.invoke("submit", "agents.json")

    def jobs(self) -> list[dict[str, object]]:
        """Return a job that such a program answers, and one that such a program verifies."""
        argv = ["sh", "-c", f"setsid sleep {self._seconds} & sleep {self._seconds}"]
        check = {"id": "command.subprocess", "argv": argv, "timeout": 500}
        return [
            scripted(runner={"kind": "command", "argv": argv}, task_type="agent"),
            scripted(GOOD, verifiers=[check], task_type="checked"),
        ]

    def wait_until_running(self) -> None:
        wait_for(lambda: len(self.alive("sleep")) == 4, "the programs and their children")

    def alive(self, name: str = "") -> list[psutil.Process]:
        return [
            process
            for process in psutil.process_iter(["name", "cmdline", "status"])
            if self._seconds in " ".join(process.info["cmdline"] or [])
            and name in process.info["name"]
            and process.info["status"] != psutil.STATUS_ZOMBIE
        ]

    def kill(self) -> None:
        """Kill what a failed test left behind."""
        for process in self.alive():
            process.kill()


@pytest.fixture
def shell() -> Iterator[Shell]:
    variables = {
        "MULLIGAN_ALLOW_INLINE": "true", "MULLIGAN_CONSOLE_PORT": "0", "MULLIGAN_FLOWER_PORT": "0",
        "MULLIGAN_ATTEMPT_SLOTS": "2", "MULLIGAN_VERIFY_SLOTS": "2",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    with new_shell(**variables) as shell:
        yield shell


@pytest.fixture
def agents(shell: Shell) -> Iterator[Agents]:
    agents = Agents(shell)
    yield agents
    agents.kill()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "r")
    server.start()
    yield server
    server.kill(signal.SIGTERM)


def test_a_killed_process_of_the_procfile_leaves_nothing_behind(
    shell: Shell, agents: Agents, broker: RedisServer
) -> None:
    """Given each line of the Procfile, run as a supervisor runs it, when one after the other is
    killed, then what it had started ends, too."""
    shell.environment |= {"MULLIGAN_BROKER_URL": broker.url, "FLOWER_BASIC_AUTH": "user:password"}
    home = {"MULLIGAN_HOME": str(shell.folder / "home")}
    commands = procfile()
    running = {
        name: shell.spawn(["sh", "-c", command], ROOT, home) for name, command in commands.items()
    }
    agents.submit()
    agents.wait_until_running()
    alive = shell.folder / "home" / "alive"
    wait_for(
        lambda: alive.is_dir() and len(list(alive.iterdir())) >= 5,
        "the pools to be ready",
        seconds=150,
    )
    for name, process in running.items():
        started = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()  # not communicate(): an orphan would keep the pipes open
        wait_for(lambda: _all_ended(started), f"what {name} had started to end")  # noqa: B023
    assert shell.processes() == []
    assert agents.alive() == []


def _all_ended(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=0)[1]


@pytest.mark.parametrize("command", ["up", "run"])
def test_a_killed_supervisor_leaves_nothing_behind(
    shell: Shell, agents: Agents, command: str
) -> None:
    shell.write("agents.json", agents.jobs())
    process = shell.start(*(["up"] if command == "up" else ["run", "agents.json"]))
    if command == "up":
        wait_for(lambda: (shell.folder / ".mulligan" / "redis.sock").exists(), "Redis to start")
        agents.submit()
    agents.wait_until_running()
    process.kill()
    process.wait()
    wait_for(lambda: not agents.alive(), "the agents to end")
    assert shell.all_ended()


def test_a_killed_test_run_with_a_client_leaves_nothing_behind(
    shell: Shell, agents: Agents
) -> None:
    """The client's embedded Redis and its agents end with the process that works itself."""
    code = f"""
import pytest
from mulligan import Client

@pytest.mark.real_models("command")
def test_a_job():
    with Client() as client:
        client.run({agents.jobs()[0]!r})
"""
    shell.write("test_it.py", code)
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_it.py"]
    process = shell.spawn(argv, shell.folder, {})
    wait_for(lambda: len(agents.alive("sleep")) == 2, "the agent and its child")
    process.kill()
    process.wait()
    wait_for(lambda: not agents.alive(), "the agent to end")
    assert shell.all_ended()


def test_a_second_ctrl_c_leaves_nothing_behind(shell: Shell, agents: Agents) -> None:
    shell.write("agents.json", agents.jobs())
    process = shell.start("run", "agents.json")
    agents.wait_until_running()
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)  # as a person would; the workers wait longer for their attempts
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    wait_for(lambda: not agents.alive(), "the agents to end")
    assert shell.all_ended()
