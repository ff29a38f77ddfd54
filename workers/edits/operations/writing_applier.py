"""Appliers that write files themselves: ``validate``, ``apply`` and ``rollback``.

Such an operation runs on a private copy of the tree. The files that differ afterwards are its
changes, which the one writer performs. So they are written whole or not at all, and rolled back
byte for byte; the applier's own ``rollback`` is not needed.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, cast

from mulligan.policies.edits.edit import Edit
from mulligan.tasks.ports.appliers import ApplyContext, EditApplier, FileChange, Validation
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.edits.tree import confined_paths
from mulligan.workers.edits.tree.write_changes import NEW_FILE_MODE


class WritingApplier(Protocol):
    """An operation that writes below ``ctx.root``. ``validate`` returns ``ok`` and ``reason``."""

    @property
    def op(self) -> str: ...

    def validate(self, edit: Edit, ctx: ApplyContext) -> Any: ...

    def apply(self, edit: Edit, ctx: ApplyContext) -> Any: ...

    def rollback(self, edit: Edit, ctx: ApplyContext) -> Any: ...


def as_applier(candidate: Any) -> EditApplier:
    """Return an applier, or one that computes what a writing one would write. A class is called
    without arguments. Raises BadInput for anything else."""
    applier = candidate() if isinstance(candidate, type) else candidate
    if hasattr(applier, "apply") and not hasattr(applier, "changes"):
        applier = _OnCopy(applier)
    missing = [name for name in ("op", "validate", "changes") if not hasattr(applier, name)]
    if missing:
        text = f"{type(applier).__name__} is not an applier: it has no {' and no '.join(missing)}"
        raise BadInput(text)
    return cast(EditApplier, applier)


@dataclass(frozen=True)
class _OnCopy:
    """The changes of a writing applier, found by running it on a copy."""

    applier: WritingApplier

    @property
    def op(self) -> str:
        return str(self.applier.op)

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        found = self.applier.validate(edit, ctx)
        return Validation(ok=bool(found.ok), reason=str(getattr(found, "reason", "") or ""))

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        with TemporaryDirectory(prefix="mulligan-edit-") as folder:
            copy = Path(folder) / "tree"
            ignored = shutil.ignore_patterns(*confined_paths.UNSEARCHED)
            shutil.copytree(ctx.root, copy, symlinks=True, ignore=ignored)
            self.applier.apply(edit, replace(ctx, root=copy))
            return list(_differences(ctx, copy))


def _differences(ctx: ApplyContext, copy: Path) -> Iterator[FileChange]:
    before, after = _files(ctx.root), _files(copy)
    for path in sorted(before | after):
        if path in before & after and _same(ctx.root / path, copy / path):
            continue
        old = confined_paths.read(ctx.root, path, max_bytes=ctx.max_bytes)
        new = confined_paths.read(copy, path, max_bytes=ctx.max_bytes)
        kept = NEW_FILE_MODE if old is None else old.mode
        yield FileChange(
            path=path,
            before=None if old is None else old.data,
            after=None if new is None else new.data,
            mode=None if new is None or new.mode == kept else new.mode,
        )


def _same(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and one.readlink() == other.readlink()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (one, other)]
    return modes[0] == modes[1] and filecmp.cmp(one, other, shallow=False)


def _files(root: Path) -> set[str]:
    found: set[str] = set()
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in confined_paths.UNSEARCHED]
        found |= {str((Path(folder) / name).relative_to(root)) for name in names}
    return found
