"""The diff of an edit, in bounded time: matching the lines of long files can take hours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mulligan.tasks.edits.advance import diff_of_changes
from mulligan.tasks.ports.appliers import FileChange
from mulligan.tasks.ports.errors import VerifierError
from mulligan.workers.killable.pool import call_killable

_SECONDS = 5.0
#: Shorter files are compared here, within a second at worst.
_FEW_LINES = 200


def bounded_diff(changes: Sequence[FileChange], modes: Mapping[str, int | None]) -> str:
    """Return changes as a unified diff, with whole files removed and added again if matching their
    lines takes too long."""
    lines = sum((data or b"").count(b"\n") for c in changes for data in (c.before, c.after))
    if lines <= _FEW_LINES:
        return diff_of_changes(changes, modes)
    try:
        return call_killable(
            diff_of_changes, tuple(changes), dict(modes), seconds=_SECONDS, what="the diff"
        )
    except VerifierError:
        return diff_of_changes(changes, modes, matched=False)
