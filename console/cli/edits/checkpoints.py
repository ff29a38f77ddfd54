"""The checkpoints of a tree, and rollback with its journal, without a ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mulligan.console.cli.output import screen
from mulligan.policies.figures.format import iso_time, timestamp
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.edits.sessions.session_tree import retry_when_busy
from mulligan.workers.edits.tree.edited_tree import EditedTree, TreeCheckpoint, TreeRollback
from mulligan.workers.settings.model import load_settings

#: Files to show per line.
_MAX_PATHS = 5


def journal_rollback(root: Path, name: str | None, to: int | None, *, json: bool) -> None:
    """Roll a tree back, or list its checkpoints if neither a name nor a checkpoint is given."""
    if name is not None and to is not None:
        raise BadInput.at("--to", "cannot be combined with a name")
    tree = EditedTree(root, load_settings().home)
    if name is None and to is None:
        _list(tree, json=json)
        return
    with retry_when_busy():
        done = tree.rollback_to(to) if to is not None else _roll_back(tree, name or "")
    if json:
        number = done.checkpoint.number if done.checkpoint else None
        screen.emit({"root": str(tree.root), "checkpoint": number, "paths": list(done.paths)})
    else:
        screen.say(done.text)


def _roll_back(tree: EditedTree, name: str) -> TreeRollback:
    session_id, slash, edit_id = name.partition("/")
    if slash:
        return tree.rollback_edit(edit_id, session_id)
    if any(point.session_id == name and point.kind == "edit" for point in tree.history()):
        return tree.rollback_session(name)
    return tree.rollback_edit(name)


def _list(tree: EditedTree, *, json: bool) -> None:
    points = tree.history()
    if json:
        found = [_document(point) for point in points]
        screen.emit({"root": str(tree.root), "checkpoints": found})
        return
    for point in points:
        more = f" and {len(point.paths) - _MAX_PATHS} more" * (len(point.paths) > _MAX_PATHS)
        paths = ", ".join(point.paths[:_MAX_PATHS]) + more
        start = f"{point.number}  {timestamp(point.at)}  {_describe(point)}"
        screen.say(f"{start}: {point.state}  {paths}")
    if not points:
        screen.say(f"no edits of {tree.root} yet")


def _describe(point: TreeCheckpoint) -> str:
    if point.kind == "edit":
        return f"edit {point.session_id}/{point.edit_id}"
    return f"rollback of {', '.join(map(str, point.undoes))}"


def _document(point: TreeCheckpoint) -> dict[str, Any]:
    return {
        "checkpoint": point.number,
        "kind": point.kind,
        "session": point.session_id,
        "edit_id": point.edit_id,
        "state": point.state,
        "at": iso_time(point.at),
        "paths": list(point.paths),
        "undoes": list(point.undoes),
    }
