"""Liveness and readiness of real processes: what a supervisor is told, by a command with a code."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fleet import CONTROL, Fleet, running_fleet
from support.waiting import wait_for
from typer.testing import CliRunner

from mulligan.console.cli.main import create_cli
from mulligan.workers.liveness_file import FRESH, LivenessFile, find_problem

NODE = f"control@{socket.gethostname()}"


def probe(home: Path, *words: str, **settings: str) -> tuple[int, str]:
    names = {f"MULLIGAN_{name.upper()}": value for name, value in settings.items()}
    ran = CliRunner().invoke(
        create_cli(), ["probe", *words], env={"MULLIGAN_HOME": str(home), **names}
    )
    return ran.exit_code, ran.output.strip()


# -- files -----------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path) -> LivenessFile:
    """The file of this process."""
    file = LivenessFile(home=tmp_path, name=NODE)
    file.write()
    return file


def test_a_process_that_writes_its_file_is_alive_and_ready(
    written: LivenessFile, tmp_path: Path
) -> None:
    assert probe(tmp_path, "control") == probe(tmp_path, "control", "--ready") == (0, "")
    assert probe(tmp_path, NODE) == (0, "")
    written.remove()
    assert probe(tmp_path, "control")[0] == 1


def test_what_a_process_lacks_makes_it_unready_and_not_dead(
    written: LivenessFile, tmp_path: Path
) -> None:
    written.write("its ledger cannot be reached")
    assert probe(tmp_path, "control")[0] == 0
    assert probe(tmp_path, "control", "--ready") == (1, f"{NODE}: its ledger cannot be reached")


def test_a_file_that_is_old_or_of_an_ended_process_shows_no_life(
    written: LivenessFile, tmp_path: Path
) -> None:
    old = written.path.stat().st_mtime - FRESH - 1
    os.utime(written.path, (old, old))
    assert "no sign of life for" in find_problem(tmp_path, "control", ready=False)
    fields = {"pid": 2**22 + 1, "host": socket.gethostname(), "problem": ""}
    written.path.write_text(json.dumps(fields))
    assert "has ended or is stopped" in find_problem(tmp_path, "control", ready=False)
    written.path.write_text(json.dumps({**fields, "host": "another"}))
    assert find_problem(tmp_path, "control", ready=False) == "", "its process cannot be seen"
    written.path.write_text("{")
    assert "cannot be read" in find_problem(tmp_path, "control", ready=False)


def test_one_living_process_of_a_pool_is_enough(written: LivenessFile, tmp_path: Path) -> None:
    written.path.with_name("control@another").write_text("{")
    assert find_problem(tmp_path, "control", ready=True) == ""
    assert find_problem(tmp_path, "attempt", ready=True) != "", "of another pool"


def test_a_console_that_does_not_answer_is_dead(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    code, text = probe(tmp_path, "console", console_port=port)
    assert (code, "/livez does not answer" in text) == (1, True)


# -- a real worker ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("probes"), pools=(CONTROL,)) as found:
        wait_for(lambda: probe(found.folder, "control", "--ready")[0] == 0, "a ready worker")
        yield found


def test_a_stopped_worker_is_not_alive(fleet: Fleet) -> None:
    pid = json.loads(LivenessFile(home=fleet.folder, name=NODE).path.read_text())["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: probe(fleet.folder, "control")[0] == 1, "the stopped worker to be noticed")
        assert probe(fleet.folder, "control", "--ready")[0] == 1
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: probe(fleet.folder, "control", "--ready")[0] == 0, "the worker to go on")


def test_a_ledger_that_is_away_makes_a_worker_unready_but_not_dead(fleet: Fleet) -> None:
    fleet.server.kill()
    try:
        wait_for(
            lambda: probe(fleet.folder, "control", "--ready")[0] == 1, "the worker to be unready"
        )
        assert "its ledger cannot be reached" in probe(fleet.folder, "control", "--ready")[1]
        assert probe(fleet.folder, "control")[0] == 0
    finally:
        fleet.server.start()
    wait_for(lambda: probe(fleet.folder, "control", "--ready")[0] == 0, "the worker to be ready")
