"""Plan: read a loop, decide which items go on, give them slots, and write all of it in one step.

A message says only that a loop is dirty. Running this twice, or for a loop that is up to date, is
harmless: the write is a compare-and-swap, and what it would repeat has happened.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from mulligan.policies.coordination.critical_path import asks_of, weigh_items
from mulligan.policies.coordination.locks import lock_space
from mulligan.policies.coordination.schedule import (
    describe_admission,
    ready_items,
    scored,
    urgent_items,
)
from mulligan.policies.loops.admission import (
    LEAST_URGENT,
    SPARE_OF_OWN,
    Admission,
    Admitted,
    Demand,
    WaitingItem,
    admit,
    demand_of,
    overlooked,
)
from mulligan.policies.loops.budget import breaches
from mulligan.policies.loops.heal_record import MOST_HEALS
from mulligan.policies.loops.healing import advice_of, healed_run, next_due, runner_of
from mulligan.policies.loops.loop import LoopChange, LoopRecord, LoopSnapshot
from mulligan.policies.loops.merge_groups import merge_group
from mulligan.policies.loops.plan import plan_loop
from mulligan.policies.loops.regression_run import regression_run
from mulligan.policies.loops.spec import item_job
from mulligan.tasks.loops.caps import current_caps
from mulligan.tasks.loops.change import repository_identity
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.heal import heal_loop
from mulligan.tasks.ports.errors import BadInput, DamagedRecord, RepositoryUnavailable
from mulligan.tasks.ports.ledger import ItemRun, LoopFleet, LoopReading, LoopWrite, Written

log = logging.getLogger(__name__)
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


def run_plan(context: LoopContext, name: str, *, before: Collection[str] = ()) -> Planned:
    """Plan a loop and admit items to the free slots, of this loop and of others.

    ``before``: loops that were planned for it already.
    """
    tries = healed = 0
    planned, declared = {name, *before}, set[str]()
    while tries < _TRIES and healed <= MOST_HEALS:
        reading = context.ledger.read_loop(name)
        if reading is None:
            return Planned(loop=name, result="gone")
        context.step("loop_read", name)
        _keep_workspaces(context, reading.snapshot)
        if undeclared := [each for each in reading.fleet.undeclared if each not in declared]:
            for each in undeclared:
                declared.add(each)
                _declare(context, each)
            continue
        if heal_loop(context, reading):
            healed += 1
            continue
        write = decide(context, reading)
        if write.overlooked and not planned.issuperset(write.overlooked):
            for other in sorted({*write.overlooked}.difference(planned)):
                run_plan(context, other, before=planned)
                planned.add(other)
            continue
        tries += 1
        written = context.ledger.write_loop(write)
        if isinstance(written, Written):
            context.step("loop_written", name)
            context.publish(written.publish)
            admitted = write.admission.admitted
            return Planned(loop=name, result="written", change=write.change, admitted=admitted)
        if written == "gone":
            return Planned(loop=name, result="gone")
    return Planned(loop=name, result="contended")


def _declare(context: LoopContext, name: str) -> None:
    """Note the files of a loop whose items an earlier release wrote, before any gets a slot."""
    try:
        for _ in range(_TRIES):
            reading = context.ledger.read_loop(name)
            if reading is None:
                return
            loop = reading.snapshot.loop
            space = loop.space or lock_space(_repository_of(context, loop), loop.tenant)
            write = LoopWrite(reading=reading, change=LoopChange(), space=space)
            if context.ledger.write_loop(write) != "stale":
                return
    except DamagedRecord:
        log.exception("The files of the loop %s cannot be noted: it gets no slots", name)


def _repository_of(context: LoopContext, loop: LoopRecord) -> str | None:
    try:
        return repository_identity(context, loop.config)
    except (BadInput, RepositoryUnavailable):  # no attempt of its items can begin here either
        return loop.config.repo


def decide(context: LoopContext, reading: LoopReading) -> LoopWrite:
    """Return what follows from a reading: the loop's plan, and who gets the free slots."""
    snapshot, fleet = reading.snapshot, reading.fleet
    change = plan_loop(snapshot, context.ledger.now())
    if any(resource == "money" for _, resource in reading.budget.limits):
        caps = current_caps(context, snapshot.config, snapshot.specs)
        if caps != reading.budget.caps:  # prices have changed
            change = replace(change, caps=caps)
    # A plan that moves an item to `ready` and gives it a slot writes both states, one after the
    # other: the run begins from the planned record.
    planned = replace(snapshot, items={**snapshot.items, **change.items})
    weights = weigh_items(planned, fleet.waiting)
    ready = ready_items(planned, weights, context.ageing())
    urgent = urgent_items(planned, weights)
    demands = [
        *(each for each in fleet.demands if each.loop != snapshot.loop.name),
        *_own_demand(reading, change, ready, urgent, context.ledger.now()),
    ]
    admits = len(fleet.live) < (context.slots() if fleet.slots is None else fleet.slots)
    admission, runs = _admit(context, fleet, demands, planned)
    return LoopWrite(
        reading=reading,
        change=change,
        admission=admission,
        runs={each: run for each, run in runs.items() if run is not None},
        planned=snapshot.loop.dirty,
        wake_at=context.ledger.now()
        if admission.is_cut
        else _wake_at(planned, context.ledger.now(), _next_lapse(fleet, admission)),
        ready={each.item: each for each in ready},
        urgent=urgent,
        scored=scored(snapshot.loop.spec, urgent),
        asks=asks_of(planned, weights),
        overlooked=overlooked(fleet.demands, admission, context.ageing()) if admits else (),
        **describe_admission(admission, fleet.denied),
        lock_ttl=context.lock_ttl,
    )


def _admit(
    context: LoopContext, fleet: LoopFleet, demands: Sequence[Demand], planned: LoopSnapshot
) -> tuple[Admission, dict[Admitted, ItemRun | None]]:
    """Give the free slots to items that are still ready, with the jobs of those that have none."""
    slots = context.slots() if fleet.slots is None else fleet.slots
    snapshots: dict[str, LoopSnapshot | None] = {planned.loop.name: planned}
    while True:
        admission = admit(
            demands,
            slots - len(fleet.live),
            fleet.lines,
            locks=fleet.locks,
            now=context.ledger.now(),
            ageing=context.ageing(),
            compared=context.compared,
        )
        runs = dict(_runs(context, snapshots, admission))
        moved = {
            (each.loop, each.candidate.item) for each in admission.admitted if each not in runs
        }
        if not moved:
            return admission, runs
        demands = [_without(demand, moved) for demand in demands]


def _keep_workspaces(context: LoopContext, snapshot: LoopSnapshot) -> None:
    """Keep the workspaces of a loop's items from expiring: once an hour is often enough."""
    planned_at, now = snapshot.loop.planned_at or 0.0, context.ledger.now()
    if planned_at // _HOUR == now // _HOUR:
        return
    spaces = {snapshot.config.workspace, *(spec.workspace for spec in snapshot.specs)}
    for address in {space.snapshot for space in spaces if space is not None}:
        if address is not None:
            context.keep(address)


def _own_demand(
    reading: LoopReading,
    change: LoopChange,
    ready: Sequence[WaitingItem],
    urgent: Mapping[str, int],
    now: float,
) -> Iterator[Demand]:
    """Yield what the loop asks for after its plan, if it may ask."""
    snapshot, fleet = reading.snapshot, reading.fleet
    loop, config = snapshot.loop, snapshot.config
    if (change.state or loop.state) != "running":
        return
    known = next((each for each in fleet.demands if each.loop == loop.name), None)
    live = [each.item for each in fleet.live if each.loop == loop.name]
    yield demand_of(
        loop.name,
        priority=config.priority,
        weight=config.weight,
        share=loop.share,
        concurrency=config.concurrency,
        live=live,
        begun=snapshot.count("running"),
        affordable=reading.budget.room(len(live)),
        waiting=[
            replace(each, urgency=urgent.get(each.item, LEAST_URGENT))
            for each in (known.candidates if known else ())
            if each.job_id
        ],
        ready=ready,
        space=loop.space,
        admitted_at=loop.admitted_at,
        goes_on_since=now if change.state else loop.since,
        spare=SPARE_OF_OWN,
    )


def _runs(
    context: LoopContext, snapshots: dict[str, LoopSnapshot | None], admission: Admission
) -> Iterator[tuple[Admitted, ItemRun | None]]:
    """Yield the admitted items, with the jobs of those that have none. Others have moved on.

    ``snapshots``: the loops that were read and planned so far.
    """
    for each in admission.admitted:
        if each.candidate.job_id:
            yield each, None
            continue
        if each.loop not in snapshots:
            snapshots[each.loop] = _planned(context, each.loop)
        snapshot = snapshots[each.loop]
        if snapshot and (run := _run(context, snapshot, each.candidate.item)):
            yield each, run


def _planned(context: LoopContext, name: str) -> LoopSnapshot | None:
    """Read another loop. It may be dirty: what is listed as ready must still be when planned."""
    found = context.ledger.read_loop(name)
    if found is None:
        return None
    items = plan_loop(found.snapshot, context.ledger.now()).items
    return replace(found.snapshot, items={**found.snapshot.items, **items})


def _run(context: LoopContext, snapshot: LoopSnapshot, item: str) -> ItemRun | None:
    loop, spec, record = snapshot.loop, snapshot.spec(item), snapshot.record(item)
    if spec is None or record.state != "ready":
        return None  # it has moved on since it was listed
    labels = {context.tenant_label: loop.tenant} if loop.tenant else {}
    heal = healed_run(snapshot, item)
    changed, told = regression_run(snapshot, spec)
    job = item_job(
        loop.config,
        changed,
        labels=labels,
        runner=runner_of(loop.config, heal),
        advice="\n\n".join(filter(None, (advice_of(loop.config, heal), told))),
    )
    return ItemRun(
        record=record,
        job_id=context.ledger.item_job_id(loop, item, record.runs + 1),
        job=job,
        owner=loop.owner or None,
        merge_group=merge_group(snapshot.specs, item) if loop.config.repo is not None else "",
    )


def _without(demand: Demand, moved: Container[tuple[str, str]]) -> Demand:
    """Leave out items that have moved on since they were listed: others get their slots."""
    kept = [each for each in demand.candidates if (demand.loop, each.item) not in moved]
    return replace(demand, candidates=kept)


def _wake_at(snapshot: LoopSnapshot, now: float, lapse: float | None) -> float | None:
    """Return when to plan a loop again although nothing changes."""
    times = [_next_day(snapshot, now), next_due(snapshot, now), lapse]
    return min((each for each in times if each is not None), default=None)


def _next_lapse(fleet: LoopFleet, admission: Admission) -> float | None:
    """Return when somebody loses files that others were denied: nothing else happens then."""
    holders = {each.holder for each in admission.denied}
    expiries = [each.expires for each in fleet.locks if each.name in holders]
    return min((each for each in expiries if each is not None), default=None)


def _next_day(snapshot: LoopSnapshot, now: float) -> float | None:
    """Return when a loop that has used up its day may go on."""
    broken = breaches(snapshot.config.budget, snapshot.used)
    return (now // _DAY + 1) * _DAY if any(scope == "day" for scope, _ in broken) else None
