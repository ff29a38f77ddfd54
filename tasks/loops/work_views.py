"""What people see of the work in a repository: checkpoints, changes and transcripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mulligan.policies.loops.loop import LoopSnapshot
from mulligan.policies.value import Json
from mulligan.tasks.loops.change import LoopConflict
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.rollback import read_checkpoints, repository_of
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


@dataclass(frozen=True, kw_only=True)
class SessionTranscript:
    """What an agent did in an attempt."""

    job_id: str
    attempt: int
    #: In order; each has ``seq``, ``at``, ``kind`` and ``text``, and more by its kind.
    events: Sequence[Mapping[str, Json]] = field(default_factory=tuple)
    #: Whether the whole transcript is kept, or only the last events of an attempt that runs.
    is_kept: bool = False


def checkpoint_diff(context: LoopContext, snapshot: LoopSnapshot, commit: str) -> WorkDiff:
    """Return what a checkpoint changed. ``commit`` may be the beginning of its id."""
    found = [each for each in read_checkpoints(context, snapshot) if each.commit.startswith(commit)]
    if len(found) != 1:
        raise LoopConflict(f"the loop has no checkpoint {commit!r}")
    old = found[0].parent or found[0].commit
    return _diff(context, snapshot, old, found[0].commit, merged=not found[0].undone)


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
    repository = repository_of(context, snapshot)
    return WorkDiff(
        old=old,
        new=new,
        changes=repository.changes(old, new),
        text=repository.diff(old, new, max_bytes=_LONGEST_DIFF),
        merged=merged,
    )


def read_session(
    context: LoopContext, snapshot: LoopSnapshot, item: str, job_id: str, attempt: int
) -> SessionTranscript:
    """Return what the agent of an attempt did, also while it works."""
    repository, name = repository_of(context, snapshot), f"{job_id}/{attempt}"
    found = repository.transcript(snapshot.loop.name, item, name)
    events = {int(each["seq"]): each for each in context.parse_transcript(found)}
    for each in context.live_transcript(job_id, attempt):
        events.setdefault(int(each["seq"]), each)
    return SessionTranscript(
        job_id=job_id,
        attempt=attempt,
        events=[events[seq] for seq in sorted(events)],
        is_kept=bool(found),
    )
