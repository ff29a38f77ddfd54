"""What an edit would change in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mulligan.policies.edits.edit import Edit
from mulligan.tasks.ports.appliers import ApplyContext, FileChange
from mulligan.workers.edits.applier_registry import default_registry

REGISTRY = default_registry()


def an_edit(op: str, target: str, **payload: Any) -> Edit:
    return Edit(id="e1", op=op, target=target, payload=payload)


def changed(root: Path, edit: Edit, **context: Any) -> list[FileChange]:
    """What an edit would alter; nothing is written, and no-ops are left out."""
    ctx = ApplyContext(root=root, **context)
    applier = REGISTRY.get(edit.op)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    try:
        changes = applier.changes(edit, ctx)
    finally:
        assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == before
    for change in changes:
        there = before.get(root / change.path)
        assert change.before == there
        assert not change.unchanged or change.note
    return [change for change in changes if not change.unchanged]


def text_after(root: Path, edit: Edit, **context: Any) -> str:
    """The one file that an edit alters, as it would be."""
    (change,) = changed(root, edit, **context)
    assert change.after is not None
    return change.after.decode()


def reasons(root: Path, edit: Edit, **context: Any) -> list[str]:
    """Why an edit is not valid."""
    validation = REGISTRY.get(edit.op).validate(edit, ApplyContext(root=root, **context))
    assert validation.ok == (not validation.reason)
    return validation.reason.split("\n") if validation.reason else []
