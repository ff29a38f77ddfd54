"""A loop that moves from one `mulligan up` to another one, by the command line."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from support.cli_process import Shell, new_shell
from support.coding_loop import agent, has_line
from support.git_repositories import UserRepository, git
from support.running_stack import RunningStack
from support.waiting import wait_for

pytestmark = pytest.mark.real_models("command")

#: B fails at first, and takes a moment for that: it is at work when the loop is exported.
CODE = """
time.sleep(6 if item == "B" and not again else 0)
write(f"{item}.txt", "no\\n" if item == "B" and not again else "done\\n")
"""
NAMES = ("A", "B", "C")


@pytest.fixture
def shells() -> Iterator[tuple[Shell, Shell]]:
    environment = {"MULLIGAN_CONSOLE_PORT": "0", "MULLIGAN_ALLOW_INLINE": "true"}
    with new_shell(**environment) as here, new_shell(**environment) as there:
        yield here, there


def spec(name: str, *depends_on: str) -> dict[str, object]:
    return {
        "id": name,
        "prompt": f"Item {name}: make {name}.txt.",
        "depends_on": [*depends_on],
        "verifiers": [has_line(f"{name}.txt", "done")],
    }


def stop(stack: RunningStack, shell: Shell) -> None:
    stack.process.send_signal(signal.SIGINT)
    assert shell.all_ended(seconds=60)


def test_a_loop_moves_from_one_installation_to_another(
    shells: tuple[Shell, Shell], tmp_path: Path
) -> None:
    """Given a loop whose second item is at work, when it is exported with --pause, then it goes on
    to its end on another computer's fleet, which has only a clone of the repository."""
    here, there = shells
    user = UserRepository.make(tmp_path / "user")
    runner = agent(CODE)
    items = [
        spec("A"),
        *(spec(name, before) for before, name in pairwise(NAMES)),
    ]
    document = {"loop": {"name": "demo", "repo": str(user.path), "base": "main", "runner": runner}}
    here.write("loop.yaml", {"version": 1, **document["loop"], "specs": ["spec.yaml"]})
    here.write("spec.yaml", {"items": items})
    stack = RunningStack(here)
    here.invoke("loops", "create", "loop.yaml", "--start")
    wait_for(lambda: stack.state("/api/loops/demo/tests/B") == "running", "B to run", seconds=60)
    said = here.invoke("loops", "export", "demo", "--pause", "--output", "moved.tar.gz")
    assert "moved.tar.gz: demo with 2 jobs" in said.stdout
    assert "waiting: B" in said.stderr
    assert "was stopped here" in said.stdout
    found = here.invoke_json("loops", "show", "demo")
    assert (found["status"], found["reason"]) == ("stopped", "moved to moved.tar.gz")
    again = here.invoke("loops", "export", "demo", "--output", "moved.tar.gz", code=2)
    assert "moved.tar.gz exists" in again.stderr
    stop(stack, here)

    clone = tmp_path / "clone"
    git(user.path, "clone", "-q", "--no-hardlinks", "--single-branch", str(user.path), str(clone))
    archive = str(here.folder / "moved.tar.gz")
    stack = RunningStack(there)
    wrong = there.invoke("loops", "import", archive, "--to", "x", code=2)
    assert "--to is for other files" in wrong.stderr
    missing = there.invoke("loops", "import", archive, "--repo", str(tmp_path / "nowhere"), code=2)
    assert "nowhere does not exist" in missing.stderr
    imported = there.run("loops", "import", archive, "--repo", str(clone), "--start")
    assert "demo was imported; it is running" in imported.stdout
    assert there.invoke_json("loops", "import", archive, "--repo", str(clone))["imported"] is False
    wait_for(
        lambda: there.invoke_json("loops", "show", "demo")["status"] == "completed",
        "its end",
        seconds=90,
    )
    attempts = {
        name: stack.request("GET", f"/api/loops/demo/tests/{name}")["attempts"] for name in NAMES
    }
    assert {name: len(each) for name, each in attempts.items()} == {"A": 1, "B": 2, "C": 1}
    files = git(clone, "ls-tree", "--name-only", "mulligan/demo").split()
    assert {f"{name}.txt" for name in NAMES} <= set(files)
    stop(stack, there)
