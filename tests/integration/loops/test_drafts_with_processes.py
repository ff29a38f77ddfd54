"""A goal becomes a loop that runs to its end: real workers, a real repository, the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.cli_process import new_shell
from support.coding_loop import GOOD as WORKS
from support.coding_loop import agent, check_passed_means_merged, merges
from support.drafts import DEFECTIVE, GOOD, drafter
from support.fleet import running_fleet
from support.git_repositories import UserRepository
from support.loop_hosts import CONTROL, work_pool
from support.waiting import wait_for

pytestmark = pytest.mark.real_models("command")


def test_a_goal_becomes_a_loop_that_runs_to_its_end(tmp_path: Path) -> None:
    """Given a drafter whose first draft has four defects, when somebody asks for a loop and leaves,
    then each defect is found and repaired, and the loop is created, started and done."""
    user = UserRepository.make(tmp_path / "user")
    runners = {"planner": drafter(DEFECTIVE, GOOD), "coder": agent(WORKS)}
    pools = (CONTROL, work_pool(2))
    with running_fleet(tmp_path / "fleet", pools=pools, runners=runners) as fleet:
        environment = {
            "MULLIGAN_BROKER_URL": fleet.server.url,
            "MULLIGAN_LEDGER_URL": fleet.server.ledger_url,
            "MULLIGAN_RUNNERS": json.dumps(runners),
            "MULLIGAN_ALLOW_INLINE": "true",
            "COLUMNS": "300",
        }
        with new_shell(**environment) as shell:
            done = shell.run(
                "loops", "draft", "Make five files", "--repo", str(user.path), "--base", "main",
                "--runner", "planner", "--agent", "coder", "--name", "files", "--auto-start",
                "--allow", sys.executable, "--allow", "grep",
            )  # fmt: skip
            lines = done.stdout.splitlines()
            first = next(i for i, line in enumerate(lines) if line.startswith("attempt 1"))
            assert lines[first].endswith("4 problems")
            unknown, cycle, cannot_run, passes = (each.strip() for each in lines[first + 1 :][:4])
            assert unknown == "C depends on Z, which does not exist"
            assert cycle == "A: the dependencies form a cycle: A → B → A"
            assert "tests/nowhere.py cannot run" in cannot_run
            assert "passes before the work" in passes
            assert "attempt 2  score 100  no problems" in lines
            assert lines[-1] == "files created and started"
            spec = (shell.folder / "files/specs/files.yaml").read_text()
            assert "- id: A" in spec

        def completed() -> bool:
            fleet.stack.watch()
            reading = fleet.ledger.read_loop("files")
            return reading is not None and reading.snapshot.loop.state == "completed"

        wait_for(completed, "the loop to be completed", seconds=90)
        reading = fleet.ledger.read_loop("files")
        assert reading is not None
        assert sorted(merges(user.path, "mulligan/files")) == list("ABCDE")
        check_passed_means_merged(fleet.services.loops, reading.snapshot)
