"""What people see of the work in a repository: what items and checkpoints changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mulligan.policies.loops.checkpoints import in_effect
from mulligan.policies.loops.loop import GAVE_UP, LoopSnapshot
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.rollback import find_checkpoint, read_checkpoints, readable_repository
from mulligan.tasks.ports.repositories import ChangedFile

#: Bytes of a difference that people see.
_LONGEST_DIFF = 500_000


@dataclass(frozen=True, kw_only=True)
class WorkDiff:
    """What an attempt, an item or a checkpoint changed."""

    old: str
    new: str
    changes: Sequence[ChangedFile]
    #: As git shows it, cut at a length.
    text: str
    #: Whether it is on the branch.
    merged: bool
    #: The attempt whose work it is; 0 if that is not known.
    attempt: int = 0


def checkpoint_diff(context: LoopContext, snapshot: LoopSnapshot, commit: str) -> WorkDiff:
    """Return what a checkpoint changed. ``commit`` may be the beginning of its id.

    Raises NoSuchCheckpoint.
    """
    found = find_checkpoint(read_checkpoints(context, snapshot), commit)
    old = found.parent or found.commit
    merged = not found.undone
    return _diff(context, snapshot, old, found.commit, merged=merged, attempt=found.attempt)


def item_diff(context: LoopContext, snapshot: LoopSnapshot, item: str) -> WorkDiff | None:
    """Return what an item changed on the branch; None: nothing was done for it.

    Of one that is not merged: what its best attempt did if it failed, or else what was saved last,
    also by an earlier run or by an attempt that was stopped.
    """
    for each in read_checkpoints(context, snapshot):
        if each.kind == "merge" and each.item == item and not each.undone and each.parent:
            return _diff(
                context, snapshot, each.parent, each.commit, merged=True, attempt=each.attempt
            )
    record = snapshot.record(item)
    job = context.ledger.job(record.job_id) if record.job_id else None
    best = job.best if job is not None and record.state in GAVE_UP else None
    output = best.output if best is not None else None
    if best is not None and output is not None and output.commit and output.base:
        number = best.plan.number
        return _diff(context, snapshot, output.base, output.commit, merged=False, attempt=number)
    saved = readable_repository(context, snapshot).saved(snapshot.loop.name, item)
    for kept in reversed(saved):
        if kept.base:
            name = kept.attempt.rpartition("/")[2]
            number = int(name) if name.isdecimal() and len(name) < 10 else 0
            return _diff(context, snapshot, kept.base, kept.commit, merged=False, attempt=number)
    return None


def unmerged_attempts(context: LoopContext, snapshot: LoopSnapshot) -> int:
    """Return how many attempts have saved work that is not on the branch."""
    merged = {each.name for each in in_effect(read_checkpoints(context, snapshot))}
    saved = readable_repository(context, snapshot).saved(snapshot.loop.name)
    return len({each.attempt for each in saved} - merged)


def _diff(
    context: LoopContext,
    snapshot: LoopSnapshot,
    old: str,
    new: str,
    *,
    merged: bool,
    attempt: int,
) -> WorkDiff:
    repository = readable_repository(context, snapshot)
    return WorkDiff(
        old=old,
        new=new,
        changes=repository.changes(old, new),
        text=repository.diff(old, new, max_bytes=_LONGEST_DIFF),
        merged=merged,
        attempt=attempt,
    )
