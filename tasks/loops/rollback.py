"""Rollback: list the checkpoints of a loop, and go back to one by a commit that goes forward.

A rollback is written down before it is made, and whoever finds it makes it: first the commit,
under the loop's fence, then the states of the items. Each step looks whether it was made before, so
that a rollback that a crash interrupts goes on where it was.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace

from mulligan.policies.loops.checkpoints import (
    Checkpoint,
    CheckpointKind,
    Rollback,
    reopen,
    undone_by,
)
from mulligan.policies.loops.commands import NotPossible
from mulligan.policies.loops.loop import LoopChange, LoopSnapshot
from mulligan.tasks.loops.change import LoopConflict, change_loop
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
from mulligan.tasks.ports.ledger import LoopReading, Requester
from mulligan.tasks.ports.repositories import (
    ATTEMPT_TRAILER,
    ITEM_TRAILER,
    ROLLBACK_TRAILER,
    SYNC_TRAILER,
    UNDONE_TRAILER,
    BranchCommit,
    Repository,
)

#: Tries while others write to the branch.
_TRIES = 10
_PLANNER = Requester(by="rollback")


def repository_of(context: LoopContext, snapshot: LoopSnapshot) -> Repository:
    """Return the repository of a loop. Raises LoopConflict if it has none."""
    if snapshot.config.repo is None:
        raise LoopConflict("the loop has no repository, and so no checkpoints")
    return context.repository(snapshot.config.repo)


def read_checkpoints(context: LoopContext, snapshot: LoopSnapshot) -> list[Checkpoint]:
    """Return what is on the loop's branch since the loop began it, the newest first."""
    repository = repository_of(context, snapshot)
    return checkpoints_of(repository.history(snapshot.config.target), snapshot.loop.name)


def checkpoints_of(history: Sequence[BranchCommit], loop: str) -> list[Checkpoint]:
    """Return the commits from the newest to the one before the loop's first, with their meaning."""
    found = [_checkpoint(each, loop) for each in history]
    ours = [index for index, each in enumerate(found) if each.kind != "other"]
    kept = found[: max(ours, default=-1) + 2]
    undone: set[str] = set()
    marked = []
    for each in kept:  # a rollback comes before what it undoes
        marked.append(replace(each, undone=each.kind == "merge" and each.attempt_name in undone))
        undone.update(each.undoes)
    return marked


def _checkpoint(commit: BranchCommit, loop: str) -> Checkpoint:
    trailers = commit.trailers
    owner, _, item = trailers.get(ITEM_TRAILER, "").rpartition("/")
    job_id, _, number = trailers.get(ATTEMPT_TRAILER, "").rpartition("/")
    merge = owner == loop and bool(job_id) and number.isdigit()
    kind: CheckpointKind = "merge" if merge else "other"
    if not merge and ROLLBACK_TRAILER in trailers:
        kind = "rollback"
    elif not merge and SYNC_TRAILER in trailers:
        kind = "sync"
    return Checkpoint(
        commit=commit.commit,
        parent=commit.parents[0] if commit.parents else None,
        at=commit.at,
        kind=kind,
        subject=commit.subject,
        item=item if merge else "",
        job_id=job_id if merge else "",
        attempt=int(number) if merge else 0,
        undoes=tuple(trailers.get(UNDONE_TRAILER, "").split()),
        rollback=trailers.get(ROLLBACK_TRAILER, ""),
    )


def request_rollback(
    context: LoopContext,
    name: str,
    caller: Requester,
    *,
    to: str | None = None,
    item: str | None = None,
) -> Rollback:
    """Ask for a rollback to a checkpoint, or of one item. Raises LoopConflict.

    ``to`` may be the beginning of the checkpoint's id.
    """
    asked = Rollback(id=secrets.token_hex(8), to=to, item=item, by=caller.by)

    def decide(found: LoopSnapshot, now: float) -> LoopChange:
        nonlocal asked
        if found.loop.rollback:
            raise NotPossible("another rollback of this loop is not finished yet")
        if item is not None and found.spec(item) is None:
            raise NotPossible(f"the loop has no item {item!r}")
        checkpoints = read_checkpoints(context, found)
        asked = asked.model_copy(update={"to": _whole(checkpoints, to), "at": now})
        if not undone_by(checkpoints, asked, found.specs):
            raise NotPossible("nothing was merged after that: there is nothing to roll back")
        what = f"of {item}" if item else f"to {(asked.to or '')[:10]}"
        return LoopChange(rollback=asked.model_dump_json(), note=f"a rollback {what} was asked for")

    change_loop(context, name, caller, decide)
    return asked


def _whole(checkpoints: Sequence[Checkpoint], start: str | None) -> str | None:
    if start is None:
        return None
    found = [each.commit for each in checkpoints if start and each.commit.startswith(start)]
    if len(found) != 1:
        how = "several checkpoints begin" if found else "no checkpoint of the loop begins"
        raise NotPossible(f"{how} with {start!r}")
    return found[0]


def finish_rollback(context: LoopContext, name: str) -> bool:
    """Make the rollback of a loop that was asked for. Return whether there was one.

    Raises RepositoryUnavailable. A rollback that is not possible ends with a note in the log.
    """
    reading = context.ledger.read_loop(name)
    if reading is None or not reading.snapshot.loop.rollback:
        return False
    rollback = Rollback.model_validate_json(reading.snapshot.loop.rollback)
    try:
        undone = _land(context, reading, rollback)
    except (NotPossible, BadInput) as error:
        change = LoopChange(rollback="", note=f"the rollback was not possible: {error}")
        _write(context, name, rollback, lambda _found, _now: change)
        return True
    context.step("rollback_landed", name)
    merged = {each.item: each.job_id for each in undone}
    note = f"rolled back: {', '.join(sorted(merged))[:200]}"
    _write(context, name, rollback, lambda found, now: reopen(found, merged, now=now, note=note))
    context.step("rollback_written", name)
    return True


def _write(
    context: LoopContext,
    name: str,
    rollback: Rollback,
    decide: Callable[[LoopSnapshot, float], LoopChange],
) -> None:
    """Write the end of a rollback, unless somebody else has."""

    def guarded(found: LoopSnapshot, now: float) -> LoopChange:
        if not found.loop.rollback or f'"{rollback.id}"' not in found.loop.rollback:
            return LoopChange()
        return decide(found, now)

    change_loop(context, name, _PLANNER, guarded)


def _land(context: LoopContext, reading: LoopReading, rollback: Rollback) -> list[Checkpoint]:
    """Put the commit of a rollback on the branch, once. Return the merges that it undoes."""
    snapshot = reading.snapshot
    repository, branch = repository_of(context, snapshot), snapshot.config.target
    for _ in range(_TRIES):
        fence = repository.take_fence(snapshot.loop.name)
        context.step("rollback_fenced", snapshot.loop.name)
        history = repository.history(branch)
        checkpoints = checkpoints_of(history, snapshot.loop.name)
        if done := next((each for each in checkpoints if each.rollback == rollback.id), None):
            return [each for each in checkpoints if each.attempt_name in done.undoes]
        undone = undone_by(checkpoints, rollback, snapshot.specs)
        tip = history[0].commit
        tree = _tree(repository, rollback, tip, undone)
        commit = repository.commit(tree, (tip,), _message(rollback, undone))
        if repository.land(branch, old=tip, new=commit, fence=fence) is not None:
            return undone
    raise RepositoryUnavailable(f"{branch} was changed {_TRIES} times during the rollback")


def _tree(
    repository: Repository, rollback: Rollback, tip: str, undone: Sequence[Checkpoint]
) -> str:
    """Return the tree without the undone merges. Raises NotPossible if they cannot be taken out."""
    if rollback.item is None:
        return repository.tree_of(rollback.to or tip)
    ours = tip
    for merge in undone:
        without = repository.merge(ours, merge.parent or merge.commit, base=merge.commit)
        if without.conflicts:
            paths = ", ".join(each.path for each in without.conflicts[:3])
            raise NotPossible(
                f"{merge.item} cannot be taken out alone: later work changed the same lines of"
                f" {paths}; roll back to the checkpoint before it, {(merge.parent or '')[:10]}"
            )
        ours = repository.commit(without.tree, (ours,), f"without {merge.item}")
    return repository.tree_of(ours)


def _message(rollback: Rollback, undone: Sequence[Checkpoint]) -> str:
    what = f"Undo {rollback.item}" if rollback.item else f"Go back to {(rollback.to or '')[:10]}"
    names = " ".join(each.attempt_name for each in undone)
    return f"{what}\n\n{ROLLBACK_TRAILER}: {rollback.id}\n{UNDONE_TRAILER}: {names}\n"
