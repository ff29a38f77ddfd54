"""The changes that an edit would make in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mulligan.policies.edits.edit import Edit
from mulligan.tasks.ports.appliers import ApplyContext, FileChange
from mulligan.workers.edits.applier_registry import default_registry

REGISTRY = default_registry()


def an_edit(op: str, target: str, **payload: Any) -> Edit:
    return Edit(id="e1", op=op, target=target, payload=payload)


def changes_of(root: Path, edit: Edit, **context: Any) -> list[FileChange]:
    """Return an edit's changes without the no-ops, and check that nothing is written."""
    ctx = ApplyContext(root=root, **context)
    applier = REGISTRY.get(edit.op)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    try:
        changes = applier.changes(edit, ctx)
    finally:
        assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == before
    for change in changes:
        assert change.before == before.get(root / change.path)
        assert not change.unchanged or change.note
    return [change for change in changes if not change.unchanged]


def text_after(root: Path, edit: Edit, **context: Any) -> str:
    """Return the new text of the one file that an edit changes."""
    (change,) = changes_of(root, edit, **context)
    assert change.after is not None
    return change.after.decode()


def validation_errors(root: Path, edit: Edit, **context: Any) -> list[str]:
    """Return the reasons why an edit is invalid."""
    validation = REGISTRY.get(edit.op).validate(edit, ApplyContext(root=root, **context))
    assert validation.ok == (not validation.reason)
    return validation.reason.split("\n") if validation.reason else []
