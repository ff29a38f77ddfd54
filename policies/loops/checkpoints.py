"""Checkpoints: what was merged into the branch of a loop, and what going back undoes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mulligan.policies.figures.format import counted
from mulligan.policies.loops.commands import NotPossible
from mulligan.policies.loops.loop import ItemRecord, LoopChange, LoopSnapshot
from mulligan.policies.loops.spec import ItemSpec
from mulligan.policies.value import Value

#: ``merge``: the work of an item. ``rollback``: it undoes merges. ``sync``: new commits of another
#: branch. ``other``: a commit that is no work of the loop.
CheckpointKind = Literal["merge", "rollback", "sync", "other"]
#: Commits of others that a sentence names.
_NAMED = 5
#: Why an item is skipped that nobody had to work on.
ALREADY_DONE = "already_done"


class Rollback(Value):
    """A rollback that was requested and is not finished."""

    id: str
    #: The checkpoint to go back to.
    to: str | None = None
    #: The item to undo, with what depends on it; all that came later if there is none.
    item: str | None = None
    by: str = ""
    at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One commit of the branch, which is a state to go back to."""

    commit: str
    #: The commit before it.
    parent: str | None
    at: float
    kind: CheckpointKind
    subject: str
    item: str = ""
    #: The attempt whose work was merged.
    job_id: str = ""
    attempt: int = 0
    #: How rollbacks name it: a merge as ``job/number``, another commit by its id.
    name: str
    #: Of a merge that was made with others: the commit at which they began. They were verified at
    #: the last of them.
    batch: str = ""
    #: Of a merge that was not verified with what other groups had landed meanwhile: what was.
    beside: str = ""
    #: Of a merge of another loop: that loop.
    loop: str = ""
    #: Of a rollback: what it undoes, by name.
    undoes: tuple[str, ...] = ()
    #: Of a rollback: what it brings back, which an earlier one had undone.
    restores: tuple[str, ...] = ()
    #: Of a rollback: its id.
    rollback: str = ""
    #: Whether a later rollback undid it, and none brought it back.
    undone: bool = False


def taken_out(rollbacks: Iterable[tuple[Iterable[str], Iterable[str]]]) -> set[str]:
    """Return the names of what is undone. Of what rollbacks say, the newest counts.

    ``rollbacks``: what each undoes and brings back, the newest first.
    """
    undone, known = set[str](), set[str]()
    for undoes, restores in rollbacks:
        undone.update(each for each in undoes if each not in known)
        known.update(undoes, restores)
    return undone


def marked(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return checkpoints, the newest first, with what is undone at the first of them."""
    undone = taken_out((each.undoes, each.restores) for each in checkpoints)
    return [
        replace(each, undone=each.kind in ("merge", "other") and each.name in undone)
        for each in checkpoints
    ]


def in_effect(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the merges that no later rollback undid, the newest first."""
    return [each for each in checkpoints if each.kind == "merge" and not each.undone]


def verified_commits(checkpoints: Sequence[Checkpoint]) -> dict[str, str]:
    """Return merges → the commit where they were verified when they landed; empty if nowhere.

    ``checkpoints``: the newest first, so that a batch begins with the commit that was verified.
    """
    found, last = dict[str, str](), Checkpoint(commit="", parent=None, at=0, kind="other", name="",
                                               subject="")  # fmt: skip
    for each in checkpoints:
        last = last if each.batch and each.batch == last.batch else each
        found[each.commit] = "" if each.beside else last.commit
    return found


def blamed(checkpoints: Sequence[Checkpoint], commit: str) -> Checkpoint:
    """Return what is to blame for what fails since a commit: a rollback that undid it, or itself.

    What is undone and fails all the same fails because of what the rollback left.
    """
    found = next(each for each in checkpoints if each.commit == commit)
    return next((e for e in checkpoints if found.undone and found.name in e.undoes), found)


@dataclass(frozen=True, kw_only=True)
class RollbackEffects:
    """What a rollback changes on the branch, the newest first."""

    #: The merges that it undoes, and those that it brings back, which an earlier one had undone.
    undone: Sequence[Checkpoint] = ()
    restored: Sequence[Checkpoint] = ()
    #: The same of commits that are no work of a loop.
    removed: Sequence[Checkpoint] = ()
    returned: Sequence[Checkpoint] = ()


def effects_of(
    checkpoints: Sequence[Checkpoint], rollback: Rollback, specs: Sequence[ItemSpec]
) -> RollbackEffects:
    """Return what a rollback does. Raises NotPossible.

    Going back to a checkpoint undoes what counts now and did not then, and brings back what counted
    then: it takes back the rollbacks that came after it, too.
    """
    now, then = present(checkpoints), list[Checkpoint]()
    if rollback.to is not None:
        then = present(_at(checkpoints, rollback.to))
    gone, back = _without(now, then), _without(then, now)
    if rollback.item is not None:
        if all(each.item != rollback.item for each in now):
            raise NotPossible(f"{rollback.item} is not merged: there is nothing to roll back")
        items = dependents({rollback.item}, specs)
        return RollbackEffects(undone=[each for each in gone if each.item in items])
    if rollback.to is None:
        raise NotPossible("name a checkpoint or an item")
    if other := next((each.loop for each in (*gone, *back) if each.loop), ""):
        raise NotPossible(
            f"work of the loop {other} on the same branch would change, too: roll back single items"
            " instead"
        )
    return RollbackEffects(
        undone=[each for each in gone if each.kind == "merge"],
        restored=[each for each in back if each.kind == "merge"],
        removed=[each for each in gone if each.kind == "other"],
        returned=[each for each in back if each.kind == "other"],
    )


def present(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the commits whose changes are in the newest tree, but for those from upstream."""
    return [each for each in checkpoints if each.kind in ("merge", "other") and not each.undone]


def _without(some: Sequence[Checkpoint], others: Sequence[Checkpoint]) -> list[Checkpoint]:
    commits = {each.commit for each in others}
    return [each for each in some if each.commit not in commits]


def named_commits(commits: Sequence[Checkpoint], *, texts: bool = True) -> str:
    """Name commits of others for people. ``texts``: with what they are about."""
    names = [f"{each.commit[:10]} {each.subject if texts else ''}".strip() for each in commits]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{counted(len(names), 'commit')} of others: {', '.join(names[:_NAMED])}{more}"


def _at(checkpoints: Sequence[Checkpoint], commit: str) -> list[Checkpoint]:
    """Return the checkpoints as they were when this one was the newest. Raises NotPossible."""
    commits = [each.commit for each in checkpoints]
    if commit not in commits:
        raise NotPossible(f"{commit} is not a checkpoint of the loop")
    return marked(checkpoints[commits.index(commit) :])


def dependents(items: Collection[str], specs: Sequence[ItemSpec]) -> frozenset[str]:
    """Return items and all that depend on them, directly or through others."""
    found, grown = {*items}, True
    while grown:
        more = {spec.id for spec in specs if spec.id not in found and found & set(spec.depends_on)}
        grown = bool(more)
        found |= more
    return frozenset(found)


def reopen(
    snapshot: LoopSnapshot,
    undone: Mapping[str, str],
    *,
    now: float,
    note: str,
    restored: Collection[str] = (),
) -> LoopChange:
    """Let items run again whose merges were undone. ``undone``: item → the job that was merged.

    One that runs and was merged a moment ago runs again, too. Another job of it is left alone.
    ``restored``: items whose merges are back. They run again to find that they are done. So do
    those that were skipped because other work had done them: it may be gone. What runs and depends
    on any of these was begun with work that is not there any more, and waits for it again.
    """
    records = {spec.id: snapshot.record(spec.id) for spec in snapshot.specs}
    again = {
        item
        for item, record in records.items()
        if (record.state == "passed" and item in undone)
        or (record.state == "running" and undone.get(item) == record.job_id)
        or (record.state in ("running", "failed", "quarantined") and item in restored)
        or (record.state == "skipped" and record.reason == ALREADY_DONE)
    }
    later = dependents(again, snapshot.specs)
    again |= {item for item in later if records[item].state == "running"}
    reopened = {item: record for item, record in records.items() if item in again}
    return LoopChange(
        items={
            item: ItemRecord(state="pending", since=now, runs=record.runs)
            for item, record in reopened.items()
        },
        cancel=tuple(each.job_id for each in reopened.values() if each.state == "running"),
        forget=tuple(reopened),
        rollback="",
        note=note,
    )


def missing_merges(snapshot: LoopSnapshot, checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Return the items that passed although none of their work is on the branch."""
    merged = {each.item for each in in_effect(checkpoints)}
    return [
        spec.id
        for spec in snapshot.specs
        if snapshot.record(spec.id).state == "passed"
        and snapshot.record(spec.id).job_id
        and spec.id not in merged
    ]
