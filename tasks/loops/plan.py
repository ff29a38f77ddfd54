"""Plan: read a loop, decide which items go on, give them slots, and write all of it in one step.

A message says only that a loop is dirty. Running this twice, or for a loop that is up to date, is
harmless: the write is a compare-and-swap, and what it would repeat has happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from mulligan.policies.loops.admission import Admission, Admitted, Demand, WaitingItem, admit
from mulligan.policies.loops.budget import breaches
from mulligan.policies.loops.loop import LoopChange, LoopSnapshot
from mulligan.policies.loops.plan import plan_loop
from mulligan.policies.loops.spec import item_job
from mulligan.tasks.loops.caps import current_caps
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.ports.ledger import ItemRun, LoopReading, LoopWrite, Written

#: Tries of one hint while others write. The hint stays, so that nothing is forgotten.
_TRIES = 10
_HOUR = 3600.0
_DAY = 86400.0


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What one hint led to."""

    loop: str
    result: Literal["written", "gone", "contended"]
    change: LoopChange = field(default_factory=LoopChange)
    admitted: tuple[Admitted, ...] = ()


def run_plan(context: LoopContext, name: str) -> Planned:
    """Plan a loop and admit items to the free slots, of this loop and of others."""
    for _ in range(_TRIES):
        reading = context.ledger.read_loop(name)
        if reading is None:
            return Planned(loop=name, result="gone")
        context.step("loop_read", name)
        _keep_workspaces(context, reading.snapshot)
        write = decide(context, reading)
        written = context.ledger.write_loop(write)
        if isinstance(written, Written):
            context.step("loop_written", name)
            context.publish(written.publish)
            admitted = write.admission.admitted
            return Planned(loop=name, result="written", change=write.change, admitted=admitted)
        if written == "gone":
            return Planned(loop=name, result="gone")
    return Planned(loop=name, result="contended")


def decide(context: LoopContext, reading: LoopReading) -> LoopWrite:
    """Return what follows from a reading: the loop's plan, and who gets the free slots."""
    snapshot, fleet = reading.snapshot, reading.fleet
    change = plan_loop(snapshot, context.ledger.now())
    if any(resource == "money" for _, resource in reading.budget.limits):
        caps = current_caps(context, snapshot.config, snapshot.specs)
        if caps != reading.budget.caps:  # prices have changed
            change = replace(change, caps=caps)
    demands = [
        *(each for each in fleet.demands if each.loop != snapshot.loop.name),
        *_own_demand(reading, change),
    ]
    slots = context.slots() if fleet.slots is None else fleet.slots
    admission = admit(demands, slots - len(fleet.live), fleet.lines)
    # A plan that moves an item to `ready` and gives it a slot writes both states, one after the
    # other: the run begins from the planned record.
    runs = dict(_runs(context, reading, change, admission))
    return LoopWrite(
        reading=reading,
        change=change,
        admission=_only(admission, runs),
        runs=runs,
        planned=snapshot.loop.dirty,
        wake_at=_next_day(snapshot, context.ledger.now()),
    )


def _keep_workspaces(context: LoopContext, snapshot: LoopSnapshot) -> None:
    """Keep the workspaces of a loop's items from expiring: once an hour is often enough."""
    planned_at, now = snapshot.loop.planned_at or 0.0, context.ledger.now()
    if planned_at // _HOUR == now // _HOUR:
        return
    spaces = {snapshot.config.workspace, *(spec.workspace for spec in snapshot.specs)}
    for address in {space.snapshot for space in spaces if space is not None}:
        if address is not None:
            context.keep(address)


def _own_demand(reading: LoopReading, change: LoopChange) -> Iterator[Demand]:
    """Yield what the loop asks for after its plan, if it may ask."""
    snapshot, fleet = reading.snapshot, reading.fleet
    loop, config = snapshot.loop, snapshot.config
    if (change.state or loop.state) != "running":
        return
    known = next((each for each in fleet.demands if each.loop == loop.name), None)
    begun = [each for each in known.candidates if each.job_id] if known else []
    records = {**snapshot.items, **change.items}
    ready = [
        WaitingItem(item=spec.id, priority=spec.priority, since=records[spec.id].since)
        for spec in snapshot.specs
        if spec.id in records and records[spec.id].state == "ready"
    ]
    live = sum(each.loop == loop.name for each in fleet.live)
    affordable = reading.budget.room(live)
    room = config.concurrency - live
    yield Demand(
        loop=loop.name,
        priority=config.priority,
        weight=config.weight,
        share=loop.share,
        room=room if affordable is None else min(room, affordable),
        candidates=[*begun, *ready],
    )


def _runs(
    context: LoopContext, reading: LoopReading, change: LoopChange, admission: Admission
) -> Iterator[tuple[Admitted, ItemRun]]:
    """Yield the jobs of the admitted items that have none yet."""
    own, now = reading.snapshot, context.ledger.now()
    others: dict[str, LoopSnapshot] = {
        own.loop.name: replace(own, items={**own.items, **change.items})
    }
    for each in admission.admitted:
        if each.candidate.job_id:
            continue
        if each.loop not in others and (found := context.ledger.read_loop(each.loop)):
            # It may be dirty: an item that is listed as ready must still be when it is planned.
            items = {**found.snapshot.items, **plan_loop(found.snapshot, now).items}
            others[each.loop] = replace(found.snapshot, items=items)
        snapshot = others.get(each.loop)
        if snapshot and (run := _run(context, snapshot, each.candidate.item)):
            yield each, run


def _run(context: LoopContext, snapshot: LoopSnapshot, item: str) -> ItemRun | None:
    loop, spec, record = snapshot.loop, snapshot.spec(item), snapshot.record(item)
    if spec is None or record.state != "ready":
        return None  # it has moved on since it was listed
    labels = {context.tenant_label: loop.tenant} if loop.tenant else {}
    job = item_job(loop.config, spec, labels=labels)
    return ItemRun(
        record=record,
        job_id=context.ledger.item_job_id(loop, item, record.runs + 1),
        job=job,
    )


def _only(admission: Admission, runs: dict[Admitted, ItemRun]) -> Admission:
    """Leave out items that have moved on."""
    kept = tuple(each for each in admission.admitted if each.candidate.job_id or each in runs)
    return replace(admission, admitted=kept)


def _next_day(snapshot: LoopSnapshot, now: float) -> float | None:
    """Return when a loop that has used up its day may go on."""
    broken = breaches(snapshot.config.budget, snapshot.used)
    return (now // _DAY + 1) * _DAY if any(scope == "day" for scope, _ in broken) else None
