"""What people and orchestrators change about a loop, as pure functions of its snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mulligan.policies.loops.budget import breaches
from mulligan.policies.loops.loop import (
    DONE,
    ItemRecord,
    LoopChange,
    LoopSnapshot,
    LoopState,
    PausedBy,
)
from mulligan.policies.loops.plan import WORDS, used_up
from mulligan.policies.loops.spec import MOST_ITEMS, ItemSpec, LoopConfig

Verb = Literal["start", "stop", "pause", "resume"]
#: Added items whose ids the loop's log names.
_NAMED = 10


class NotPossible(ValueError):
    """A change that the loop's state does not allow. The message says what to do instead."""


@dataclass(frozen=True)
class _Move:
    origins: frozenset[LoopState]
    to: LoopState


#: The legal moves of people. Everything else that changes a state is the planner's.
MOVES: dict[Verb, _Move] = {
    "start": _Move(frozenset({"created", "stopped"}), "running"),
    "pause": _Move(frozenset({"running", "waiting", "blocked"}), "paused"),
    "resume": _Move(frozenset({"paused"}), "running"),
    "stop": _Move(
        frozenset({"created", "running", "waiting", "paused", "blocked", "completed"}), "stopped"
    ),
}
_NOTES = {"start": "started", "stop": "stopped", "pause": "paused", "resume": "resumed"}
#: What to do instead of a move that is not legal.
_INSTEAD: dict[LoopState, str] = {
    "created": "start it",
    "stopped": "start it",
    "waiting": "`why` says what it waits for",
    "paused": "resume it",
    "blocked": "reset or skip what failed",
    "completed": "reset an item or add one",
}


def move_loop(
    snapshot: LoopSnapshot, verb: Verb, *, now: float, despite_move: bool = False
) -> LoopChange:
    """Start, stop, pause or resume a loop. Raises NotPossible.

    A loop that is already where the verb leads stays as it is. ``despite_move``: start it although
    it goes on in another installation.
    """
    loop, move = snapshot.loop, MOVES[verb]
    # A person's pause outlasts the budget's, which ends by itself.
    outlasts = verb == "pause" and loop.state == "paused" and loop.paused_by == "budget"
    if loop.state == move.to and not outlasts:
        return LoopChange()
    if loop.has_moved and verb == "start" and not despite_move:
        raise NotPossible(
            f"{loop.name} {loop.reason}, and goes on there: two that run could write one branch."
            f" Here, too, for once: mulligan loops start {loop.name} --despite-move"
        )
    if loop.state == "paused" and verb in ("start", "resume"):
        _refuse_if_used_up(snapshot)
    if loop.state not in move.origins and not outlasts:
        instead = "it does not run" if verb == "pause" else _INSTEAD[loop.state]
        raise NotPossible(f"cannot {verb} a loop that is {loop.state}: {instead}")
    if verb == "stop":
        return _stopped(snapshot, now)
    paused_by: PausedBy = "person" if verb == "pause" else ""
    return LoopChange(state=move.to, paused_by=paused_by, note=_NOTES[verb])


def _refuse_if_used_up(snapshot: LoopSnapshot) -> None:
    for scope, resource in breaches(snapshot.config.budget, snapshot.used):
        raise NotPossible(f"{used_up(scope, resource)}: raise budget.{scope}.{resource}")


def _stopped(snapshot: LoopSnapshot, now: float) -> LoopChange:
    """End what runs. Its items are ready again, for the next start."""
    running = {
        spec.id: snapshot.record(spec.id)
        for spec in snapshot.specs
        if snapshot.record(spec.id).state == "running"
    }
    return LoopChange(
        state="stopped",
        note=_NOTES["stop"],
        items={
            item: ItemRecord(state="ready", since=now, runs=record.runs)
            for item, record in running.items()
        },
        cancel=(*(record.job_id for record in running.values()), *own_jobs(snapshot)),
    )


def own_jobs(snapshot: LoopSnapshot) -> list[str]:
    """Return the jobs that draft a split, or verify again what passed."""
    drafts = [each.job_id for each in snapshot.heals if each.outcome == "pending"]
    log = snapshot.loop.regressions
    checks = [each.job_id for each in (log.check, log.searching) if each is not None]
    return [each for each in (*drafts, *checks) if each]


def reset_item(
    snapshot: LoopSnapshot, item: str, *, now: float, merged: bool = False
) -> LoopChange:
    """Run an item again in a new context: its failures are forgotten. Raises NotPossible.

    ``merged``: its work is on the loop's branch. It would find that, and pass without an attempt.
    """
    record = _known(snapshot, item)
    if record.state == "passed" and merged:
        raise NotPossible(
            f"the work of {item} is on the branch, so that a reset would change nothing; undo it:"
            f" mulligan loops rollback {snapshot.loop.name} --item {item}"
        )
    if record.state == "blocked":
        raise NotPossible(f"{item} is blocked: {record.reason}; reset or skip that one")
    if record.state in ("pending", "ready"):
        raise NotPossible(f"{item} is {record.state}: there is nothing to reset")
    return LoopChange(
        items={item: ItemRecord(state="pending", since=now, runs=record.runs)},
        cancel=(record.job_id,) if record.state == "running" else (),
        forget=(item,),
        note=f"{item} was reset",
    )


def skip_item(snapshot: LoopSnapshot, item: str, *, reason: str, now: float) -> LoopChange:
    """Leave an item out; what depends on it goes on. Raises NotPossible."""
    record = _known(snapshot, item)
    if record.state in DONE:
        raise NotPossible(f"{item} {WORDS[record.state]} already")
    return LoopChange(
        items={item: record.moved("skipped", now=now, reason=reason)},
        cancel=(record.job_id,) if record.state == "running" else (),
        forget=(item,),
        note=f"{item} was skipped" + (f": {reason}" if reason else ""),
    )


def add_items(snapshot: LoopSnapshot, items: Sequence[ItemSpec], *, now: float) -> LoopChange:
    """Add items to a loop. Raises NotPossible for ids in use.

    Their dependencies have been checked: see item_set_problems.
    """
    specs = (*snapshot.specs, *items)
    if len(specs) > MOST_ITEMS:
        raise NotPossible(f"the loop would have {len(specs):,} items; {MOST_ITEMS:,} are allowed")
    if used := [item.id for item in items if snapshot.spec(item.id) is not None]:
        raise NotPossible(f"the loop has {_listed(used)} already")
    return LoopChange(
        specs=specs,
        items={item.id: ItemRecord(since=now) for item in items},
        note=f"added {_listed([item.id for item in items])}",
    )


def _listed(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return ", ".join(ids[:_NAMED]) + more


def configure_loop(snapshot: LoopSnapshot, values: dict[str, Any]) -> LoopChange:
    """Change the configuration. Raises ValidationError for values that are not possible.

    Limits of a budget are merged; None removes one.
    """
    config = snapshot.config.model_dump(mode="json", exclude_defaults=True)
    budget = values.get("budget")
    if isinstance(budget, dict):
        values = {**values, "budget": _merged(config.get("budget", {}), budget)}
    changed = LoopConfig.model_validate(
        {name: value for name, value in {**config, **values}.items() if value is not None}
    )
    if changed == snapshot.config:
        return LoopChange()
    names = ", ".join(sorted(values))
    return LoopChange(config=changed, note=f"changed {names}")


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return a budget with the scopes and limits of another one; what is None is removed."""
    merged = dict(old)
    for name, value in new.items():
        merged[name] = _merged(old.get(name, {}), value) if isinstance(value, dict) else value
    return {name: value for name, value in merged.items() if value is not None}


def _known(snapshot: LoopSnapshot, item: str) -> ItemRecord:
    if snapshot.spec(item) is None:
        raise NotPossible(f"the loop has no item {item!r}")
    return snapshot.record(item)
