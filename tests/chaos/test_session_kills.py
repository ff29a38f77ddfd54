"""A process is killed at every step of a session: apply, measure, keep or roll back.

The tree is then before or after a whole edit. A resumed session ends as if it had not been killed,
and a session that is rolled back leaves the tree as it was.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from support.file_trees import die, in_child, snapshot, write_files
from support.ledger_scenario import SettingsMaker

from mulligan.policies.edits.edit import AutonomyMode, EditPlan
from mulligan.policies.edits.session import EditSession
from mulligan.policies.edits.suite import Suite
from mulligan.workers.edits.sessions.engine import EditEngine, build_edit_engine
from mulligan.workers.edits.sessions.session_store import SessionStore
from mulligan.workers.edits.sessions.suite_measurer import SuiteMeasurer
from mulligan.workers.edits.tree.edited_tree import EditedTree
from mulligan.workers.ledger.redis_ledger import RedisLedger

pytestmark = pytest.mark.chaos

#: The scores are the numbers in the file.
SCORE = b"""
import json, pathlib
main, rest = pathlib.Path("a.txt").read_text().split()
print(json.dumps({"scores": {"main": float(main), "rest": float(rest)}}))
"""
SUITE = Suite.model_validate(
    {"deterministic": True, "tasks": [{"id": "all", "command": [sys.executable, "score.py"]}]}
)
#: The text that each edit writes into a.txt. The first is kept, the second rejected.
PLAN = {"e1": "0.7 0.5\n", "e2": "0.9 0.1\n"}
#: The effects of a session. The process is killed right before and right after each.
EFFECTS: list[tuple[type, str]] = [
    (SessionStore, "save"),
    (SessionStore, "add_delta"),
    (SuiteMeasurer, "snapshot"),
    (SuiteMeasurer, "start"),
    (SuiteMeasurer, "poll"),
    (EditedTree, "apply"),
    (EditedTree, "rollback_edit"),
]
KILLED = -9
MakeEngine = Callable[[], EditEngine]


@pytest.fixture
def engine(redis_client: redis.Redis, settings: SettingsMaker) -> MakeEngine:
    def make() -> EditEngine:
        chosen = settings()
        return build_edit_engine(
            chosen, RedisLedger(redis_client, chosen, patience=5.0), None, commands=True
        )

    return make


def begin(engine: EditEngine, root: Path, name: str) -> EditSession:
    write_files(root, {"a.txt": b"0.5 0.5\n", "score.py": SCORE})
    edits = [
        {"id": key, "op": "write_file", "target": "a.txt", "payload": {"content": text}}
        for key, text in PLAN.items()
    ]
    plan = EditPlan.model_validate({"session": name, "edits": edits})
    return engine.begin(plan, root, AutonomyMode.AUTO, suite=SUITE)


def run_killed_at(moment: int, engine: MakeEngine, name: str) -> int:
    """Drive the session in a child that is killed at this moment. Return its exit status."""

    def run() -> None:
        passed = 0

        def counted() -> None:
            nonlocal passed
            passed += 1
            if passed == moment:
                die()

        for owner, method in EFFECTS:
            setattr(owner, method, _watched(getattr(owner, method), counted))
        engine().drive(name)

    return in_child(run)


def _watched(real: Callable[..., Any], counted: Callable[[], None]) -> Callable[..., Any]:
    def wrapper(*arguments: Any, **named: Any) -> Any:
        counted()
        answer = real(*arguments, **named)
        counted()
        return answer

    return wrapper


@pytest.mark.parametrize("way", ["resumed", "rolled back"])
def test_a_session_survives_a_kill_at_every_moment(
    tmp_path: Path, engine: MakeEngine, way: str
) -> None:
    whole = {b"0.5 0.5\n", *(text.encode() for text in PLAN.values())}
    moment = 0
    while True:
        moment += 1
        name, root = f"k{moment}", tmp_path / str(moment)
        backend = engine()
        begin(backend, root, name)
        before = snapshot(root)
        ended = run_killed_at(moment, engine, name)
        if ended == 0:
            break
        assert ended == KILLED
        assert (root / "a.txt").read_bytes() in whole
        if way == "rolled back":
            done, _ = backend.roll_back(name, None, by="ada")
            assert (done.phase, snapshot(root)) == ("done", before), moment
            assert not any(outcome.status == "applied" for outcome in done.outcomes)
            continue
        done = backend.drive(name)
        assert [outcome.reason for outcome in done.outcomes] == ["kept", "regression"], moment
        assert (root / "a.txt").read_text() == PLAN["e1"]
        kinds = [point.kind for point in EditedTree(root, backend.home).history()]
        assert kinds == ["edit", "edit", "rollback"], moment
        effects = [delta for delta in backend.sessions.deltas() if delta.session == name]
        assert len(effects) == 2, moment
    assert moment > 40
