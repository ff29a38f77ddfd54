"""Run an operation that parses foreign text in a child process with limits.

Parsers recurse in C, expand aliases and compare every line with every other: a text can make any of
them crash, or take all time and memory. In a child, that is the failure of one edit.
"""

from __future__ import annotations

from dataclasses import dataclass

from mulligan.policies.edits.edit import Edit
from mulligan.tasks.ports.appliers import (
    ApplyContext,
    EditApplier,
    EditRefused,
    FileChange,
    Validation,
)
from mulligan.tasks.ports.errors import TooCostly
from mulligan.workers.killable.pool import call_killable

#: For checking an edit, and for computing its changes. Replacing a definition in 300 KB of Python
#: takes a third of it on a busy machine.
SECONDS = 60.0
MEMORY_BYTES = 2 << 30


@dataclass(frozen=True)
class KillableApplier:
    """An operation in a child process. The operation must be a value, as those of this room are."""

    applier: EditApplier

    @property
    def op(self) -> str:
        return self.applier.op

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        try:
            return call_killable(
                _validate, self.applier, edit, _plain(ctx), seconds=SECONDS,
                memory_bytes=MEMORY_BYTES, what=f"checking {edit.target}",
            )  # fmt: skip
        except TooCostly as error:
            return Validation(ok=False, reason=str(error))

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        try:
            return call_killable(
                _changes, self.applier, edit, _plain(ctx), seconds=SECONDS,
                memory_bytes=MEMORY_BYTES, what=f"{edit.target}: this edit",
            )  # fmt: skip
        except TooCostly as error:
            raise EditRefused(str(error)) from None


def _validate(applier: EditApplier, edit: Edit, ctx: ApplyContext) -> Validation:
    return applier.validate(edit, ctx)


def _changes(applier: EditApplier, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
    return applier.changes(edit, ctx)


def _plain(ctx: ApplyContext) -> ApplyContext:
    """Return a context without what a caller added to it, which need not be a value."""
    return ApplyContext(
        root=ctx.root,
        config=ctx.config,
        tiers=dict(ctx.tiers),
        formatters=dict(ctx.formatters),
        max_bytes=ctx.max_bytes,
    )
