"""Items whose agents hang or repeat themselves: ended, told so, and done by the next attempt."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.coding_loop import GOOD, CodingLoop, agent, check_merged, item
from support.git_repositories import UserRepository

pytestmark = pytest.mark.real_models("command")

#: Fails four times with the same command, as Claude Code prints it, and hangs; then does it.
REPEATS = f"""
import json
def say(kind, **fields): print(json.dumps({{"type": kind, **fields}}), flush=True)
if "The last attempt" not in prompt:
    write("half.txt", "half")
    for number in range(4):
        call = {{"type": "tool_use", "id": "t", "name": "Bash", "input": {{"command": "make it"}}}}
        say("assistant", message={{"id": str(number), "content": [call]}})
        result = {{"type": "tool_result", "tool_use_id": "t", "content": "no", "is_error": True}}
        say("user", message={{"content": [result]}})
    time.sleep(600)
{GOOD}
say("result", subtype="success", is_error=False, result="done")
"""


@pytest.fixture
def user(tmp_path: Path) -> UserRepository:
    return UserRepository.make(tmp_path / "user")


@pytest.fixture
def fleet(tmp_path: Path, user: UserRepository) -> CodingLoop:
    return CodingLoop(tmp_path, user.path, stuck={"silent": "2s"})


def test_an_agent_that_hangs_is_ended_and_the_next_one_passes(
    fleet: CodingLoop, user: UserRepository
) -> None:
    code = f"if not again: time.sleep(600)\n{GOOD}"
    assert fleet.run_all(item("A"), code=code) == {"A": "passed"}
    first, _ = fleet.job("A").attempts
    assert first.verdict is not None
    assert first.verdict.failure is not None
    assert first.verdict.failure.label == "command_failed.stuck.silent"
    assert "The last attempt did nothing for 2" in fleet.prompt("A", 2)
    check_merged(fleet, user.path)


def test_an_agent_that_repeats_itself_starts_over(fleet: CodingLoop, user: UserRepository) -> None:
    """Its work is verified, as that of any agent that did not end well, and then left alone."""
    runner = agent(REPEATS, format="claude")
    assert fleet.run_all(item("A"), runner=runner) == {"A": "passed"}
    first, second = fleet.job("A").attempts
    assert first.output is not None
    assert first.output.commit != first.output.base
    assert second.plan.kept is None
    said = "The last attempt ran `make it` 4 times with the same error. Do something else first."
    assert said in fleet.prompt("A", 2)
    assert "half.txt" not in user.git("ls-tree", "--name-only", "mulligan/demo")
    check_merged(fleet, user.path)
