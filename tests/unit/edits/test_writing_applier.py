"""Appliers that write files themselves work like any other in the registry."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from mulligan.policies.edits.edit import AutonomyMode, Edit
from mulligan.tasks.ports.appliers import ApplyContext
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.edits.applier_registry import EditApplierRegistry
from mulligan.workers.edits.execute_edits import EditContext, execute_edits
from mulligan.workers.edits.tree.edited_tree import EditedTree

ValidationResult = namedtuple("ValidationResult", "ok reason")


class AddTool:
    """An applier as the handbook of the execute phase describes it."""

    op = "add_tool"

    def validate(self, edit: Edit, ctx: ApplyContext) -> ValidationResult:
        known = (ctx.root / edit.target).is_file()
        return ValidationResult(known, "" if known else f"there is no {edit.target}")

    def apply(self, edit: Edit, ctx: ApplyContext) -> None:
        path = ctx.root / edit.target
        path.write_text(path.read_text() + f"{edit.payload['tool']}\n")
        (ctx.root / "log").mkdir(exist_ok=True)
        (ctx.root / "log/tools.txt").write_text(edit.id)
        (ctx.root / "run.sh").chmod(0o755)
        (ctx.root / "old.txt").unlink(missing_ok=True)
        if edit.payload.get("fails"):
            raise RuntimeError("the disk is full")

    def rollback(self, edit: Edit, ctx: ApplyContext) -> None:
        raise AssertionError("the tree restores its files itself")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / ".git").mkdir(parents=True)
    (root / ".git/config").write_text("[core]\n")
    (root / "agent.txt").write_text("search\n")
    (root / "old.txt").write_text("old\n")
    (root / "run.sh").write_text("true\n")
    (root / "run.sh").chmod(0o644)
    return root


def add(target: str = "agent.txt", **payload: Any) -> Edit:
    return Edit(id="e1", op="add_tool", target=target, payload={"tool": "browse", **payload})


def run(root: Path, edit: Edit, applier: Any = AddTool) -> Any:
    registry = EditApplierRegistry()
    registry.register(applier)
    ctx = EditContext(root=root, home=root.parent / "home", session="s1")
    (outcome,) = execute_edits(
        edits=[edit], ctx=ctx, autonomy_mode=AutonomyMode.AUTO, registry=registry
    )
    return outcome


def files(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mode)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("applier", [AddTool, AddTool()], ids=["class", "object"])
def test_its_files_are_written_and_rolled_back(root: Path, applier: Any) -> None:
    before = files(root)
    outcome = run(root, add(), applier)
    assert (outcome.status, outcome.error) == ("applied", None)
    assert outcome.applied_at is not None
    assert (root / "agent.txt").read_text() == "search\nbrowse\n"
    assert (root / "log/tools.txt").read_text() == "e1"
    assert (root / "run.sh").stat().st_mode & 0o777 == 0o755
    assert not (root / "old.txt").exists()
    EditedTree(root, root.parent / "home").rollback_edit("e1")
    assert files(root) == before


def test_a_refused_edit_says_why(root: Path) -> None:
    before = files(root)
    outcome = run(root, add("agents.txt"))
    assert (outcome.status, outcome.reason) == ("rejected_by_gate", "validation")
    assert outcome.error == "there is no agents.txt"
    assert files(root) == before


def test_an_applier_that_fails_half_way_changes_nothing(root: Path) -> None:
    before = files(root)
    outcome = run(root, add(fails=True))
    assert (outcome.status, outcome.error) == ("rejected_by_gate", "the disk is full")
    assert files(root) == before


def test_an_applier_that_writes_nothing_is_a_no_op(root: Path) -> None:
    class Idle(AddTool):
        def apply(self, edit: Edit, ctx: ApplyContext) -> None: ...

    assert (run(root, add(), Idle).status, run(root, add(), Idle).reason) == ("skipped", "no_op")


def test_an_operation_has_one_applier() -> None:
    registry = EditApplierRegistry([AddTool()])
    assert registry.is_supported("add_tool")
    with pytest.raises(BadInput, match="'add_tool' has an applier already"):
        registry.register(AddTool)
    with pytest.raises(BadInput, match="object is not an applier: it has no op"):
        registry.register(object())  # type: ignore[arg-type]
