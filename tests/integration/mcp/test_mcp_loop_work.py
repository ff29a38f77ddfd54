"""An agent reads and undoes the work of a loop in a repository."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from support.coding_console import console_of
from support.coding_loop import LOOP, CodingLoop, item
from support.console_server import RunningConsole
from support.git_repositories import UserRepository
from support.mcp_agent import Agent, connected_agent

from mulligan.client.http_requests import ConsoleConnection
from mulligan.console.mcp.bounded_answer import ANSWER_LENGTH
from mulligan.console.mcp.tool_server import create_server

pytestmark = pytest.mark.real_models("command")
CODE = "write(f'{item}.txt', 'done\\n' + 'x\\n' * 50_000)\nprint(f'made {item}')"


def test_an_agent_looks_at_the_work_and_undoes_it(tmp_path: Path) -> None:
    fleet = CodingLoop(tmp_path, UserRepository.make(tmp_path / "user").path)
    assert fleet.run_all(item("A"), item("B", "A"), code=CODE) == {"A": "passed", "B": "passed"}
    console = RunningConsole(console_of(fleet))
    console.start()
    try:
        with (
            closing(ConsoleConnection(console.url, None, patience=5.0)) as connection,
            connected_agent(create_server(connection)) as ada,
        ):
            _look(ada)
            _undo(ada, fleet)
    finally:
        console.stop()


def _look(ada: Agent) -> None:
    page = ada.call("list_checkpoints", loop=LOOP, limit=2)
    rest = ada.call("list_checkpoints", loop=LOOP, limit=2, cursor=page["cursor"])
    found = [*page["checkpoints"], *rest["checkpoints"]]
    assert [each["item"] for each in found] == ["B", "A", None]
    changed = ada.call("read_diff", loop=LOOP, item="B")
    assert changed["files"] == [{"path": "B.txt", "kind": "added", "added": 50_001, "removed": 0}]
    assert changed["diff"].endswith(" more characters]")
    assert len(ada.text("read_diff", loop=LOOP, item="B", max_chars=20_000)) < ANSWER_LENGTH
    assert ada.call("read_diff", loop=LOOP, checkpoint=found[0]["commit"][:10]) == changed
    job_id = ada.call("get_item", loop=LOOP, item="A")["job_id"]
    told = ada.call("read_transcript", loop=LOOP, item="A", job_id=job_id, attempt=1)
    assert told["ended"] is True
    assert any("made A" in each["text"] for each in told["events"])
    other = ada.call("get_item", loop=LOOP, item="B")["job_id"]
    refused = ada.refusal("read_transcript", loop=LOOP, item="A", job_id=other, attempt=1)
    assert refused == f"A has no job {other!r}"


def _undo(ada: Agent, fleet: CodingLoop) -> None:
    plan = ada.call("roll_back", loop=LOOP, item="A", dry_run=True)
    assert plan["reopens"] == ["A", "B"]
    asked = ada.call("roll_back", loop=LOOP, item="A", idempotency_key="once")
    assert asked["rollback"]["item"] == "A"
    refused = ada.refusal("roll_back", loop=LOOP, item="B")
    assert refused == "another rollback of this loop is not finished yet"
    fleet.sweep()
    assert ada.call("roll_back", loop=LOOP, item="A", idempotency_key="once")["rollback"] is None
    notes = [each["note"] for each in ada.call("loop_log", loop=LOOP)["log"]]
    assert "rolled back: A, B" in notes
