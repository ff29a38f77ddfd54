"""The seam of the edit pipeline: an applier computes changes, one writer performs them.

An applier only reads. It returns the files as they are and as they shall be, so that every
operation gets atomic writes, the journal and rollback from the one writer behind it.

    MulliganError
    └── BadInput
        └── EditRefused      cannot be applied as it is given
            └── EditConflict     the file is no longer what the change was computed from
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mulligan.policies.edits.edit import Edit, EditRiskTier
from mulligan.tasks.ports.errors import BadInput

#: No file that an edit reads or writes is larger, unless configuration says so.
MAX_BYTES = 5_000_000


class EditRefused(BadInput):
    """An edit cannot be applied: which file, what was expected, what is there. Nothing changed."""


class EditConflict(EditRefused):
    """A file changed between the moment an edit was computed and the moment it was written."""


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """One file before and after, as an applier computed it; nothing is written yet."""

    #: Relative to the root, with "/" separators.
    path: str
    #: None: the file did not exist.
    before: bytes | None
    #: None: the file is deleted.
    after: bytes | None
    #: Permission bits afterwards; None keeps them (0o644 for a new file). An applier sets it only
    #: where it differs from what the file has.
    mode: int | None = None
    #: What a person should know: which tolerance found the place, or why nothing changes.
    note: str = ""

    @property
    def unchanged(self) -> bool:
        """Whether performing it would alter nothing."""
        return self.before == self.after and self.mode is None


@dataclass(frozen=True, kw_only=True)
class ApplyContext:
    """What an applier works on, and within which limits."""

    #: Every path of every edit is inside it.
    root: Path
    #: The folder of the configuration tree, relative to the root.
    config: Path = Path()
    #: Overrides of the table of tiers, by operation.
    tiers: Mapping[str, EditRiskTier] = field(default_factory=dict)
    #: Formatters that ``run_formatter`` may name, each an argument vector.
    formatters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: No file may be larger, before or after.
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
        """The operation's name, as edits give it."""
        ...

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        """Whether target and payload have the right form. Reads no file."""
        ...

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        """The files it would alter. None, or all of them ``unchanged``: a no-op, whose ``note``
        says why. Raises EditRefused with a text that helps the edit's author."""
        ...
