"""What people see of the work in a repository: what items and checkpoints changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mulligan.policies.loops.loop import LoopSnapshot
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.rollback import find_checkpoint, read_checkpoints, readable_repository
from mulligan.tasks.ports.repositories import FileChange

#: Bytes of a difference that people see.
_LONGEST_DIFF = 500_000


@dataclass(frozen=True, kw_only=True)
class WorkDiff:
    """What an attempt, an item or a checkpoint changed."""

    old: str
    new: str
    changes: Sequence[FileChange]
    #: As git shows it, cut at a length.
    text: str
    #: Whether it is on the branch.
    merged: bool


def checkpoint_diff(context: LoopContext, snapshot: LoopSnapshot, commit: str) -> WorkDiff:
    """Return what a checkpoint changed. ``commit`` may be the beginning of its id.

    Raises NoSuchCheckpoint.
    """
    found = find_checkpoint(read_checkpoints(context, snapshot), commit)
    old = found.parent or found.commit
    return _diff(context, snapshot, old, found.commit, merged=not found.undone)


def item_diff(context: LoopContext, snapshot: LoopSnapshot, item: str) -> WorkDiff | None:
    """Return what an item changed on the branch, or what its last attempt did; None: nothing."""
    for each in read_checkpoints(context, snapshot):
        if each.kind == "merge" and each.item == item and not each.undone and each.parent:
            return _diff(context, snapshot, each.parent, each.commit, merged=True)
    job = context.ledger.job(snapshot.record(item).job_id) if snapshot.record(item).job_id else None
    for attempt in reversed(job.attempts if job is not None else ()):
        output = attempt.output
        if output is not None and output.commit is not None and output.base is not None:
            return _diff(context, snapshot, output.base, output.commit, merged=False)
    return None


def _diff(
    context: LoopContext, snapshot: LoopSnapshot, old: str, new: str, *, merged: bool
) -> WorkDiff:
    repository = readable_repository(context, snapshot)
    return WorkDiff(
        old=old,
        new=new,
        changes=repository.changes(old, new),
        text=repository.diff(old, new, max_bytes=_LONGEST_DIFF),
        merged=merged,
    )
