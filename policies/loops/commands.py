"""What people and orchestrators change about a loop, as pure functions of its snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mulligan.policies.loops.budget import breaches
from mulligan.policies.loops.loop import ItemRecord, LoopChange, LoopSnapshot, LoopState
from mulligan.policies.loops.spec import ItemSpec, LoopConfig, item_set_problems

Verb = Literal["start", "stop", "pause", "resume"]


class NotPossible(ValueError):
    """A change that the loop's state does not allow. The message says what to do instead."""


@dataclass(frozen=True)
class _Move:
    origins: frozenset[LoopState]
    to: LoopState


#: The legal moves of people. Everything else that changes a state is the planner's.
MOVES: dict[Verb, _Move] = {
    "start": _Move(frozenset({"created", "stopped"}), "running"),
    "pause": _Move(frozenset({"running", "blocked"}), "paused"),
    "resume": _Move(frozenset({"paused"}), "running"),
    "stop": _Move(frozenset({"created", "running", "paused", "blocked", "completed"}), "stopped"),
}
_INSTEAD = {
    "created": "start it first",
    "stopped": "start it",
    "paused": "resume it",
    "completed": "reset an item or add one",
    "running": "it runs already",
    "blocked": "reset or skip what failed",
}


def move_loop(snapshot: LoopSnapshot, verb: Verb, *, now: float) -> LoopChange:
    """Start, stop, pause or resume a loop. Raises NotPossible.

    A loop that is already where the verb leads stays as it is.
    """
    loop, move = snapshot.loop, MOVES[verb]
    if loop.state == move.to and verb != "resume":
        return LoopChange()
    if verb == "resume" and loop.state == "running":
        return LoopChange()
    if loop.state not in move.origins:
        raise NotPossible(f"cannot {verb} a loop that is {loop.state}: {_INSTEAD[loop.state]}")
    if verb == "resume" and (broken := breaches(loop.config.budget, snapshot.used)):
        scope, resource = broken[0]
        raise NotPossible(
            f"the {scope} budget of {resource} is used up: raise budget.{scope}.{resource}"
        )
    change = LoopChange(
        state=move.to, paused_by="person" if verb == "pause" else "", note=_NOTES[verb]
    )
    return change if verb != "stop" else _stopped(snapshot, change, now)


_NOTES = {"start": "started", "stop": "stopped", "pause": "paused", "resume": "resumed"}


def _stopped(snapshot: LoopSnapshot, change: LoopChange, now: float) -> LoopChange:
    """End what runs. Its items are ready again, for the next start."""
    running = {
        spec.id: snapshot.record(spec.id)
        for spec in snapshot.specs
        if snapshot.record(spec.id).state == "running"
    }
    return LoopChange(
        state=change.state,
        note=change.note,
        items={
            item: ItemRecord(state="ready", since=now, runs=record.runs)
            for item, record in running.items()
        },
        cancel=tuple(record.job_id for record in running.values()),
    )


def reset_item(snapshot: LoopSnapshot, item: str, *, now: float) -> LoopChange:
    """Run an item again in a new context: its failures are forgotten. Raises NotPossible."""
    record = _known(snapshot, item)
    if record.state in ("pending", "ready", "blocked"):
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
    if record.state in ("passed", "skipped"):
        raise NotPossible(f"{item} is {record.state} already")
    return LoopChange(
        items={item: record.moved("skipped", now=now, reason=reason)},
        cancel=(record.job_id,) if record.state == "running" else (),
        forget=(item,),
        note=f"{item} was skipped" + (f": {reason}" if reason else ""),
    )


def add_items(snapshot: LoopSnapshot, items: Sequence[ItemSpec], *, now: float) -> LoopChange:
    """Add items to a loop. Raises NotPossible for ids in use and impossible dependencies."""
    if problems := item_problems([*snapshot.specs, *items]):
        raise NotPossible("; ".join(problems))
    return LoopChange(
        specs=(*snapshot.specs, *items),
        items={item.id: ItemRecord(since=now) for item in items},
        note=f"added {', '.join(item.id for item in items)}",
    )


def configure_loop(snapshot: LoopSnapshot, values: dict[str, Any]) -> LoopChange:
    """Change the configuration. Raises ValidationError for values that are not possible.

    Limits of a budget are merged; None removes one.
    """
    config = snapshot.config.model_dump(mode="json", exclude_defaults=True)
    merged = _merged(config, values)
    changed = LoopConfig.model_validate(merged)
    if changed == snapshot.config:
        return LoopChange()
    names = ", ".join(sorted(values))
    return LoopChange(config=changed, note=f"changed {names}")


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for name, value in new.items():
        if isinstance(value, dict):
            merged[name] = _merged(merged.get(name) or {}, value)
        elif value is None:
            merged.pop(name, None)
        else:
            merged[name] = value
    return merged


def item_problems(items: Sequence[ItemSpec]) -> list[str]:
    """Return ids that occur twice, unknown dependencies and cycles, each once."""
    return list(dict.fromkeys(problem.message for problem in item_set_problems(items)))


def _known(snapshot: LoopSnapshot, item: str) -> ItemRecord:
    if snapshot.spec(item) is None:
        raise NotPossible(f"the loop has no item {item!r}")
    return snapshot.record(item)
