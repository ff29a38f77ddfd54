"""Rollback: list the checkpoints of a loop, and go back to one by a commit that goes forward.

A rollback is written down before it is made, and whoever finds it makes it: first the commit,
under the loop's fence, then the states of the items. Each step looks whether it was made before, so
that a rollback that a crash interrupts goes on where it was.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from mulligan.policies.loops.checkpoints import (
    Checkpoint,
    CheckpointKind,
    Rollback,
    RollbackEffects,
    effects_of,
    marked,
    named_commits,
    present,
    reopen,
)
from mulligan.policies.loops.commands import NotPossible
from mulligan.policies.loops.loop import LoopChange, LoopSnapshot
from mulligan.tasks.jobs.merge import names_in
from mulligan.tasks.loops.change import LoopConflict, change_loop
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
from mulligan.tasks.ports.ledger import LoopReading, Requester
from mulligan.tasks.ports.repositories import (
    ATTEMPT_TRAILER,
    BATCH_TRAILER,
    BESIDE_TRAILER,
    ITEM_TRAILER,
    RESTORED_TRAILER,
    ROLLBACK_TRAILER,
    SYNC_TRAILER,
    UNDONE_TRAILER,
    BranchCommit,
    Repository,
)

#: The year 9999: a commit may have any time, but there is no date after that.
_LATEST = 253_370_764_800.0
#: Tries while others write to the branch.
_TRIES = 10
_PLANNER = Requester(by="rollback")
#: An attempt's number. Anybody who can commit to the branch can write something else there.
_NUMBER = re.compile("[0-9]{1,9}")


class NoSuchCheckpoint(BadInput):
    """The loop has no such checkpoint."""


def repository_of(context: LoopContext, snapshot: LoopSnapshot) -> Repository:
    """Return the repository of a loop. Raises LoopConflict if it has none."""
    if snapshot.config.repo is None:
        raise LoopConflict("the loop has no repository, and so no checkpoints")
    return context.repository(snapshot.config.repo)


def readable_repository(context: LoopContext, snapshot: LoopSnapshot) -> Repository:
    """Return the repository of a loop for somebody who looks at it.

    Raises LoopConflict if it has none, and RepositoryUnavailable if it is not here any more.
    """
    try:
        return repository_of(context, snapshot)
    except LoopConflict:
        raise
    except BadInput as error:
        raise RepositoryUnavailable(str(error)) from error


def read_checkpoints(context: LoopContext, snapshot: LoopSnapshot) -> list[Checkpoint]:
    """Return what is on the loop's branch since the loop began it, the newest first."""
    repository = readable_repository(context, snapshot)
    return checkpoints_of(repository.history(snapshot.config.target), snapshot.loop.name)


def find_checkpoint(checkpoints: Sequence[Checkpoint], start: str) -> Checkpoint:
    """Return the checkpoint whose id begins so. Raises NoSuchCheckpoint or LoopConflict."""
    found = [each for each in checkpoints if start and each.commit.startswith(start)]
    if not found:
        raise NoSuchCheckpoint(f"no checkpoint of the loop begins with {start!r}")
    if len(found) > 1:
        raise LoopConflict(f"several checkpoints begin with {start!r}")
    return found[0]


def checkpoints_of(history: Sequence[BranchCommit], loop: str) -> list[Checkpoint]:
    """Return the commits from the newest to the one before the loop's first, with their meaning."""
    found = [_checkpoint(each, loop) for each in history]
    ours = [index for index, each in enumerate(found) if each.kind != "other"]
    return marked(found[: max(ours, default=-1) + 2])


def _checkpoint(commit: BranchCommit, loop: str) -> Checkpoint:
    trailers = commit.trailers
    owner, _, item = trailers.get(ITEM_TRAILER, "").rpartition("/")
    job_id, _, number = trailers.get(ATTEMPT_TRAILER, "").rpartition("/")
    is_work = bool(owner and job_id) and _NUMBER.fullmatch(number) is not None
    merge = is_work and owner == loop
    kind: CheckpointKind = "merge" if merge else "other"
    if not is_work and ROLLBACK_TRAILER in trailers:
        kind = "rollback"
    elif not is_work and SYNC_TRAILER in trailers:
        kind = "sync"
    return Checkpoint(
        commit=commit.commit,
        parent=commit.parents[0] if commit.parents else None,
        at=min(max(0.0, commit.at), _LATEST),
        kind=kind,
        subject=commit.subject,
        item=item if merge else "",
        job_id=job_id if merge else "",
        attempt=int(number) if merge else 0,
        name=trailers[ATTEMPT_TRAILER] if is_work else commit.commit,
        batch=trailers.get(BATCH_TRAILER, "") if merge else "",
        beside=trailers.get(BESIDE_TRAILER, "") if merge else "",
        loop=owner if is_work and not merge else "",
        undoes=names_in(commit, UNDONE_TRAILER),
        restores=names_in(commit, RESTORED_TRAILER),
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
    asked = Rollback(id="", to=to, item=item, by=caller.by)

    def decide(found: LoopSnapshot, now: float) -> LoopChange:
        nonlocal asked
        change = rollback_change(context, found, to=to, item=item, by=caller.by, now=now)
        log = found.loop.regressions
        if item is not None and item in log.rounds:  # it may be reopened again
            change = replace(change, regressions=log.with_new_rounds(item))
        asked = Rollback.model_validate_json(change.rollback or "")
        return change

    change_loop(context, name, caller, decide)
    return asked


def rollback_change(
    context: LoopContext,
    snapshot: LoopSnapshot,
    *,
    to: str | None,
    item: str | None,
    by: str,
    now: float,
) -> LoopChange:
    """Return the change that asks for a rollback. Raises LoopConflict."""
    plan = preview_rollback(context, snapshot, to=to, item=item)
    asked = Rollback(id=secrets.token_hex(8), to=plan.to, item=item, by=by, at=now)
    what = f"of {item}" if item else f"to {(asked.to or '')[:10]}"
    return LoopChange(rollback=asked.model_dump_json(), note=f"rollback {what} requested")


def last_good_checkpoint(context: LoopContext, snapshot: LoopSnapshot) -> str:
    """Return the commit before the last merge of a loop whose branch is broken.

    Raises LoopConflict if there is none, or if going back there would remove a person's work.
    """
    found = present(read_checkpoints(context, snapshot))
    if not found or found[0].kind != "merge" or found[0].loop or found[0].parent is None:
        what = "the last change is not a merge of this loop" if found else "nothing is merged yet"
        raise LoopConflict(f"{what}: mend the branch, or name a checkpoint")
    return found[0].parent


@dataclass(frozen=True, kw_only=True)
class RollbackPlan:
    """What a rollback would do."""

    #: The checkpoint to go back to.
    to: str | None
    item: str | None
    effects: RollbackEffects
    #: The items whose attempts end because they depend on what is undone.
    interrupted: Sequence[str]

    @property
    def items(self) -> list[str]:
        """The items whose work is undone, the one that was merged first at the beginning."""
        back = self.brought_back
        return [each for each in _items(self.effects.undone) if each not in back]

    @property
    def brought_back(self) -> list[str]:
        """The items whose earlier work is on the branch again, in the same order."""
        return _items(self.effects.restored)


def _items(merges: Sequence[Checkpoint]) -> list[str]:
    return list(dict.fromkeys(each.item for each in reversed(merges)))


def preview_rollback(
    context: LoopContext, snapshot: LoopSnapshot, *, to: str | None = None, item: str | None = None
) -> RollbackPlan:
    """Return what a rollback would do. Raises LoopConflict if it is not possible now."""
    if snapshot.loop.rollback:
        raise LoopConflict("another rollback of this loop is not finished yet")
    if item is not None and snapshot.spec(item) is None:
        raise LoopConflict(f"the loop has no item {item!r}")
    checkpoints = read_checkpoints(context, snapshot)
    try:
        whole = None if to is None else find_checkpoint(checkpoints, to).commit
        effects = effects_of(checkpoints, Rollback(id="", to=whole, item=item), snapshot.specs)
    except (NotPossible, NoSuchCheckpoint) as error:
        raise LoopConflict(str(error)) from None
    if not effects.undone and not effects.restored:
        raise LoopConflict("nothing was merged after that: there is nothing to roll back")
    changed = _reopened(snapshot, effects, now=0.0).items
    merged = {*_items(effects.undone), *_items(effects.restored)}
    ends = [each for each in changed if snapshot.record(each).state == "running"]
    return RollbackPlan(
        to=whole,
        item=item,
        effects=effects,
        interrupted=[each for each in ends if each not in merged],
    )


def _reopened(snapshot: LoopSnapshot, effects: RollbackEffects, *, now: float) -> LoopChange:
    """Return what a rollback changes about the items."""
    merged = {each.item: each.job_id for each in effects.undone}
    # Of several merges of one item, that of its present job.
    merged |= _present_jobs(snapshot, effects)
    back = _items(effects.restored)
    return reopen(snapshot, merged, now=now, note=_note(effects), restored=back)


def _present_jobs(snapshot: LoopSnapshot, effects: RollbackEffects) -> dict[str, str]:
    """Return the items whose last job was merged by what is undone, with that job."""
    jobs = {each.item: snapshot.record(each.item).job_id for each in effects.undone}
    return {each.item: each.job_id for each in effects.undone if each.job_id == jobs[each.item]}


def _note(effects: RollbackEffects) -> str:
    """Say for the log what was done. Whoever reads it may not read what commits are about."""
    items = {"rolled back": effects.undone, "brought back": effects.restored}
    others = {"also removed": effects.removed, "also brought back": effects.returned}
    return "; ".join(
        [f"{what}: {', '.join(sorted(_items(each)))[:200]}" for what, each in items.items() if each]
        + [f"{what} {named_commits(each, texts=False)}" for what, each in others.items() if each]
    )


def finish_rollback(context: LoopContext, name: str) -> bool:
    """Make the rollback of a loop that was asked for. Return whether there was one.

    Raises RepositoryUnavailable. A rollback that is not possible ends with a note in the log.
    """
    reading = context.ledger.read_loop(name)
    if reading is None or not reading.snapshot.loop.rollback:
        return False
    rollback = Rollback.model_validate_json(reading.snapshot.loop.rollback)
    try:
        landed = _land(context, reading, rollback)
    except (NotPossible, BadInput) as error:
        refused = LoopChange(rollback="", note=f"the rollback was not possible: {error}")
        change_loop(
            context,
            name,
            _PLANNER,
            lambda found, _now: refused if _is_pending(found, rollback) else LoopChange(),
        )
        return True
    if landed is None:
        return False
    context.step("rollback_landed", name)
    effects = landed.effects

    def decide(found: LoopSnapshot, now: float) -> LoopChange:
        if _is_pending(found, rollback):
            return _reopened(found, effects, now=now)
        present = _present_jobs(found, effects)
        if not landed.made or not present:
            return LoopChange()
        # Somebody else has refused it at the same time. It was made all the same.
        return replace(reopen(found, present, now=now, note=_note(effects)), rollback=None)

    change_loop(context, name, _PLANNER, decide)
    context.step("rollback_written", name)
    return True


def _is_pending(snapshot: LoopSnapshot, rollback: Rollback) -> bool:
    return f'"{rollback.id}"' in snapshot.loop.rollback


@dataclass(frozen=True, kw_only=True)
class _Landed:
    """The commit of a rollback that is on the branch."""

    effects: RollbackEffects
    #: Whether this process has put it there.
    made: bool


def _land(context: LoopContext, reading: LoopReading, rollback: Rollback) -> _Landed | None:
    """Put the commit of a rollback on the branch, once. None: it has ended without this process."""
    snapshot = reading.snapshot
    repository, branch = repository_of(context, snapshot), snapshot.config.target
    for _ in range(_TRIES):
        fence = repository.take_fence(snapshot.loop.name)
        context.step("rollback_fenced", snapshot.loop.name)
        # Whoever slept since it read the loop must not make what others made, or refused, long ago.
        now = context.ledger.read_loop(snapshot.loop.name)
        if now is None or not _is_pending(now.snapshot, rollback):
            return None
        history = repository.history(branch)
        checkpoints = checkpoints_of(history, snapshot.loop.name)
        if done := next((each for each in checkpoints if each.rollback == rollback.id), None):
            return _Landed(effects=_effects_by(done, checkpoints), made=False)
        effects = effects_of(checkpoints, rollback, snapshot.specs)
        tip = history[0].commit
        tree = _tree(repository, rollback, history, effects.undone)
        commit = repository.commit(tree, (tip,), _message(rollback, effects))
        if repository.land(branch, old=tip, new=commit, fence=fence) is not None:
            return _Landed(effects=effects, made=True)
    raise RepositoryUnavailable(f"{branch} was changed {_TRIES} times during the rollback")


def _effects_by(made: Checkpoint, checkpoints: Sequence[Checkpoint]) -> RollbackEffects:
    """Return what a rollback that was made says that it did."""

    def named(kind: CheckpointKind, names: Sequence[str]) -> list[Checkpoint]:
        return [each for each in checkpoints if each.kind == kind and each.name in names]

    return RollbackEffects(
        undone=named("merge", made.undoes),
        restored=named("merge", made.restores),
        removed=named("other", made.undoes),
        returned=named("other", made.restores),
    )


def _tree(
    repository: Repository,
    rollback: Rollback,
    history: Sequence[BranchCommit],
    undone: Sequence[Checkpoint],
) -> str:
    """Return the tree without the undone merges. Raises NotPossible if they cannot be taken out."""
    ours = history[0].commit
    if rollback.item is None:
        return _tree_of_checkpoint(repository, rollback.to or ours, history)
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


def _tree_of_checkpoint(
    repository: Repository, commit: str, history: Sequence[BranchCommit]
) -> str:
    """Return the tree of a checkpoint, with what was merged from upstream since.

    That is no work of the loop. Git counts it as merged, so that it would never come back, and a
    delivery would take it out of the branch that it came from. Only what each merge added counts:
    upstream has the work of the loop, too, once that was delivered.
    """
    later = takewhile(lambda each: each.commit != commit, history)
    ours = commit
    for sync in reversed([each for each in later if SYNC_TRAILER in each.trailers]):
        merged = repository.merge(ours, sync.commit, base=sync.parents[0])
        if merged.conflicts:
            paths = ", ".join(each.path for each in merged.conflicts[:3])
            raise NotPossible(
                f"what was merged from upstream after {commit[:10]} conflicts with it in {paths};"
                " roll back single items instead"
            )
        ours = repository.commit(merged.tree, (ours,), f"with {sync.subject}")
    return repository.tree_of(ours)


def _message(rollback: Rollback, effects: RollbackEffects) -> str:
    what = f"Undo {rollback.item}" if rollback.item else f"Go back to {(rollback.to or '')[:10]}"
    trailers = {
        ROLLBACK_TRAILER: rollback.id,
        UNDONE_TRAILER: " ".join(each.name for each in (*effects.undone, *effects.removed)),
        RESTORED_TRAILER: " ".join(each.name for each in (*effects.restored, *effects.returned)),
    }
    lines = [f"{name}: {value}" for name, value in trailers.items() if value]
    return "\n".join([what, "", *lines, ""])
