"""The supervisor: children that cannot start, and children that watch their parent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.waiting import wait_for

from mulligan.console.cli.backend import describe_death
from mulligan.workers.local import die_with_parent
from mulligan.workers.local.supervisor import Child, Stack

FAILING = "import sys; print('port 8700 is in use', flush=True); sys.exit({code})"


@pytest.mark.parametrize(("code", "given_up"), [(2, True), (1, False)])
def test_a_child_that_cannot_start_is_given_up_with_its_reason(
    tmp_path: Path, code: int, given_up: bool
) -> None:
    deaths: list[tuple[str, float | None]] = []

    def note(child: Child, ended: int, delay: float | None) -> None:
        deaths.append((describe_death(child, ended, delay), delay))

    stack = Stack(tmp_path, {}, backoff=0.001, backoff_cap=0.004, on_death=note)
    stack.add("console", [sys.executable, "-c", FAILING.format(code=code)])

    def died_often() -> bool:
        stack.watch()
        return len(deaths) == 5

    wait_for(died_often, "five deaths")
    assert stack.children[0].given_up is given_up
    assert [delay for _, delay in deaths[:4]] == [0.001, 0.002, 0.004, 0.004]
    assert "port 8700 is in use" in deaths[0][0]
    assert ("is not started again" in deaths[4][0]) is given_up
    stack.stop()


def test_without_help_of_the_kernel_a_child_watches_its_parent(tmp_path: Path) -> None:
    """As on macOS: when the parent is killed, the program ends."""
    folder = str(Path(die_with_parent.__file__).parent)
    watcher = (
        f"import os, signal, sys; sys.path.insert(0, {folder!r}); import die_with_parent as d;"
        " d.run_watched(['sleep', '3600'], os.getppid(), signal.SIGKILL)"
    )
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {watcher!r}])"
    parent = subprocess.Popen([sys.executable, "-c", code])

    def programs() -> list[psutil.Process]:
        below = psutil.Process(parent.pid).children(recursive=True)
        return [process for process in below if process.name() == "sleep"]

    wait_for(programs, "the program")
    (program,) = programs()
    parent.kill()
    parent.wait()
    wait_for(lambda: not program.is_running(), "the program to end")
