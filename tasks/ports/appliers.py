"""The port of the edit pipeline: an applier computes changes, one writer performs them.

An applier only reads. It returns the files before and after, so that every operation gets atomic
writes, the journal and rollback from the one writer.

    MulliganError
    └── BadInput
        └── EditRefused      cannot be applied
            └── EditConflict     the file is no longer what the change was computed from
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mulligan.policies.edits.edit import Edit, EditRiskTier
from mulligan.tasks.ports.errors import BadInput

#: The default limit for files that an edit reads or writes.
MAX_BYTES = 5_000_000


class EditRefused(BadInput):
    """The edit does not fit: names the file, what was expected and found. Nothing changed."""


class EditConflict(EditRefused):
    """A file changed after an edit was computed and before it was written."""


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """One file before and after an edit; nothing is written yet."""

    #: Relative to the root, with "/" separators.
    path: str
    #: None: the file did not exist.
    before: bytes | None
    #: None: the file is deleted.
    after: bytes | None
    #: Permission bits afterwards; None keeps them (0o644 for a new file). An applier sets it only
    #: if it differs.
    mode: int | None = None
    #: A note for people: which tolerance found the place, or why nothing changes.
    note: str = ""

    @property
    def unchanged(self) -> bool:
        """Whether writing it would change nothing."""
        return self.before == self.after and self.mode is None


@dataclass(frozen=True, kw_only=True)
class ApplyContext:
    """The tree that an applier reads, and its limits."""

    #: Contains every path of every edit.
    root: Path
    #: The folder of the configuration tree, relative to the root.
    config: Path = Path()
    #: Overrides of the table of tiers, by operation.
    tiers: Mapping[str, EditRiskTier] = field(default_factory=dict)
    #: Formatters that ``run_formatter`` may name, each an argument vector.
    formatters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: The limit for each file, before and after.
    max_bytes: int = MAX_BYTES


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Whether an edit is well formed; ``reason`` says what to correct."""

    ok: bool
    reason: str = ""


class EditApplier(Protocol):
    """One operation."""

    @property
    def op(self) -> str:
        """The operation's name in edits."""
        ...

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        """Check the form of target and payload, without reading a file."""
        ...

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        """Return the files that it would change. Without any, or if all are ``unchanged``, it is a
        no-op, and ``note`` says why. Raise EditRefused with a text that helps the edit's author."""
        ...
