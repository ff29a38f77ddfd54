"""View: a loop as people, programs and agents see it, read from the ledger."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from mulligan.policies.coordination.locks import Denial, find_conflict
from mulligan.policies.coordination.order import NO_ORDERS, ItemOrders
from mulligan.policies.figures.waiting_words import waiting_words
from mulligan.policies.loops.loop import GAVE_UP, ItemRecord, LoopSnapshot, ShownState, shown_state
from mulligan.policies.loops.plan import stuck_items
from mulligan.policies.loops.spec import EVENT, ItemSpec
from mulligan.policies.loops.why import (
    FleetState,
    JobWaits,
    Reason,
    root_of,
    running_item,
    why_item,
    why_loop,
)
from mulligan.policies.repair.instruction import one_line
from mulligan.tasks.coordination.denials import standing_denials
from mulligan.tasks.loops.change import NoSuchLoop, no_such_loop
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.registry import LoopSummary
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import JobView, LiveItem, LoopReading

#: The states of items that end no wait before a person acts.
_GAVE_UP = GAVE_UP | {"blocked"}
#: How a loop is called that the reader may not know.
ANOTHER = "another loop"


@dataclass(frozen=True, kw_only=True)
class LoopView:
    """A loop with its items, its budget and who works on it."""

    reading: LoopReading
    #: The slots of all loops.
    slots: int
    #: The pools without a worker.
    missing_pools: Collection[str] = ()
    #: Whether `mulligan up` serves the ledger; None if other supervisors run the workers.
    up: bool | None = None
    #: Whose loops the reader sees; None for all.
    tenant: str | None = None
    owner: str | None = None
    #: Items that are kept from files now.
    denials: Mapping[str, Denial] = field(default_factory=dict)

    @property
    def of_tenant(self) -> bool:
        """Whether the reader sees only a tenant's loops: providers are not for everyone."""
        return self.tenant is not None

    @property
    def hides_others(self) -> bool:
        """Whether the reader may not know the names of other loops."""
        return self.tenant is not None or self.owner is not None

    @property
    def of_producer(self) -> bool:
        """Whether the reader is a producer, who gives no orders."""
        return self.owner is not None

    @property
    def snapshot(self) -> LoopSnapshot:
        return self.reading.snapshot

    @cached_property
    def fleet_state(self) -> FleetState:
        fleet, name = self.reading.fleet, self.snapshot.loop.name
        return FleetState(
            slots=self.slots,
            live=len(fleet.live),
            live_of_loop=sum(each.loop == name for each in fleet.live),
            held=any(each.held for each in fleet.live if each.loop == name),
            ending=[
                each.item
                for each in fleet.live
                if each.loop == name and self.state(each.item) != "running"
            ],
            others=[d for d in fleet.demands if d.loop != name and d.candidates and d.room > 0],
            budget=self.reading.budget,
            missing_pools=self.missing_pools,
            up=self.up,
            denied=self._denied,
        )

    @property
    def _denied(self) -> dict[str, Denial]:
        """The loop's items that were denied files and wait for them still."""
        return {
            item: self._shown(denial)
            for item, denial in self.denials.items()
            if self.state(item) in ("ready", "waiting")
        }

    def _shown(self, denial: Denial) -> Denial:
        """Hide the name of another loop, if the reader may not know it."""
        own = denial.holder.startswith(f"{self.snapshot.loop.name}/")
        return denial if own or not self.hides_others else replace(denial, holder=ANOTHER)

    def fleet_state_of(self, item: str) -> FleetState:
        """Return the state of the fleet with what holds an item back that nobody looked at yet."""
        spec, record, fleet = self.snapshot.spec(item), self.snapshot.record(item), self.fleet_state
        if spec is None or item in fleet.denied or self.state(item) not in ("ready", "waiting"):
            return fleet
        files, space = self.snapshot.files(spec), self.snapshot.loop.space
        found = find_conflict(space, files, self.reading.fleet.locks, job_id=record.job_id)
        if found is None:
            return fleet
        denial = self._shown(Denial(holder=found.lock.name, files=str(found)))
        return replace(fleet, denied={**fleet.denied, item: denial})

    def files_held_by(self, item: str) -> str:
        """Return who has files that an item waits for; empty if nobody has."""
        denial = self.fleet_state_of(item).denied.get(item)
        return denial.holder if denial is not None else ""

    @cached_property
    def summary(self) -> LoopSummary:
        live = {each.job_id: each for each in self.reading.fleet.live}
        return LoopSummary(loop=self.snapshot.loop, items=self.snapshot.items, live=live)

    def state(self, item: str) -> ShownState:
        """Return an item's state as people see it."""
        return shown_state(self.snapshot.record(item), self.summary.live)

    @property
    def holders(self) -> list[LiveItem]:
        """Who works on its items now. It replaces the process id of a loop that is one process."""
        name, record = self.snapshot.loop.name, self.snapshot.record
        return [
            each
            for each in self.reading.fleet.live
            if each.loop == name and each.renewed_at and record(each.item).job_id == each.job_id
        ]

    @property
    def last_heartbeat(self) -> float | None:
        """The newest sign of life: of what runs, or of the planner if nothing does."""
        return self.summary.last_heartbeat


def view_loop(
    context: LoopContext, name: str, *, tenant: str | None = None, owner: str | None = None
) -> LoopView:
    """Read a loop. Raises NoSuchLoop.

    ``tenant``, ``owner``: whose loops the caller sees, without the names of others; None for all.
    """
    reading = context.ledger.read_loop(name)
    if reading is None or not reading.snapshot.loop.is_of(tenant, owner):
        raise no_such_loop(context, name, tenant, owner)
    prefix, fleet = f"{name}/", reading.fleet
    denied = {key: why for key, why in fleet.denied.items() if key.startswith(prefix)}
    denials = standing_denials(context, denied, fleet.locks)
    if tenant is not None or owner is not None:
        reading = _without_others(reading)
    slots = context.slots() if reading.fleet.slots is None else reading.fleet.slots
    return LoopView(
        reading=reading,
        slots=slots,
        missing_pools=context.missing_pools(),
        up=context.up(),
        tenant=tenant,
        owner=owner,
        denials={key.removeprefix(prefix): each for key, each in denials.items()},
    )


def _without_others(reading: LoopReading) -> LoopReading:
    """Hide the names of the other loops: they may be another tenant's or producer's."""
    own = reading.snapshot.loop.name
    demands = [
        each if each.loop == own else replace(each, loop=ANOTHER) for each in reading.fleet.demands
    ]
    return replace(reading, fleet=replace(reading.fleet, demands=demands))


@dataclass(frozen=True, kw_only=True)
class ItemView:
    """One item: its spec, its state, the job of its last run and why it does not run."""

    spec: ItemSpec
    record: ItemRecord
    state: ShownState
    job: JobView | None
    why: Reason
    #: What is to be done about it instead of the usual rules.
    orders: ItemOrders = NO_ORDERS
    #: Files that it was seen to change beside those that it declares.
    seen_files: Collection[str] = ()
    #: Who has its files, as `loop/item`; empty if nobody keeps them from it.
    files_held_by: str = ""


class NoSuchItem(BadInput):
    """The loop has no item of this id."""


def no_such_item(loop: str, item: str) -> NoSuchItem:
    return NoSuchItem.at("item", f"the loop {loop!r} has no item {item!r}", "unknown_name")


def view_item(
    context: LoopContext,
    name: str,
    item: str,
    *,
    tenant: str | None = None,
    owner: str | None = None,
) -> ItemView:
    """Read an item of a loop with its job. Raises NoSuchLoop or NoSuchItem."""
    view = view_loop(context, name, tenant=tenant, owner=owner)
    spec, record = view.snapshot.spec(item), view.snapshot.record(item)
    if spec is None:
        raise no_such_item(name, item)
    return ItemView(
        spec=spec,
        record=record,
        state=view.state(item),
        job=_job(context, view, item),
        why=follow_waits(context, view, _why_item(context, view, item)),
        orders=view.snapshot.orders_of(item),
        seen_files=view.snapshot.seen_files.get(item, ()),
        files_held_by=view.files_held_by(item),
    )


def why_item_of(view: LoopView, item: str, now: float) -> Reason:
    """Say why an item of a loop that was read does not run, as far as the loop itself tells.

    What changes a wait for others lies with them: see follow_waits.
    """
    root = root_of(view.snapshot, item)
    reason = why_item(view.snapshot, item, view.fleet_state_of(root), _slot_says(view, root), now)
    return _allowed(view, replace(reason, remedy=None) if reason.wait else reason)


def _why_item(context: LoopContext, view: LoopView, item: str) -> Reason:
    """Say why an item does not run, with what its job says."""
    root = root_of(view.snapshot, item)
    fleet = view.fleet_state_of(root)
    if view.snapshot.record(root).state == "ready":
        root = waiting_item(view) or root  # what it waits for may hold the others back
    waits = _waits(context, view, root, _job(context, view, root))
    return _allowed(view, why_item(view.snapshot, item, fleet, waits, context.ledger.now()))


def _slot_says(view: LoopView, item: str) -> JobWaits:
    """Return what is known of an item's job without reading it."""
    record = view.snapshot.record(item)
    if record.state != "running" or view.summary.is_held(record):
        return JobWaits()
    words = "a worker" if record.job_id in view.summary.live else "something else than a slot"
    return JobWaits(waiting_for="worker", words=words)


#: What affects all tenants, so that no token of one may do it.
_OF_FLEET = frozenset({"set_loop_slots", "resume_queue", "start_worker", "start_all_workers"})


def _allowed(view: LoopView, reason: Reason) -> Reason:
    """Leave out a remedy that the reader may not do."""
    if view.of_tenant and reason.remedy and reason.remedy.action in _OF_FLEET:
        return replace(reason, remedy=None)
    if view.of_producer and reason.remedy and reason.remedy.action == "order_item":
        return replace(reason, remedy=None)
    return reason


def why(
    context: LoopContext,
    name: str,
    item: str | None = None,
    *,
    tenant: str | None = None,
    owner: str | None = None,
) -> Reason:
    """Say why a loop or an item does not run, and what changes it."""
    if item is not None:
        return view_item(context, name, item, tenant=tenant, owner=owner).why
    return why_of(context, view_loop(context, name, tenant=tenant, owner=owner))


def waiting_item(view: LoopView) -> str | None:
    """Return the first item that has begun and lost its slot."""
    return next((s.id for s in view.snapshot.specs if view.state(s.id) == "waiting"), None)


def why_of(context: LoopContext, view: LoopView) -> Reason:
    """Say why a loop that was read does not run."""
    running = waiting_item(view) or running_item(view.snapshot) or ""
    if view.snapshot.loop.state == "blocked" and (stuck := stuck_items(view.snapshot)):
        running = root_of(view.snapshot, stuck[0])
    waits = _waits(context, view, running, _job(context, view, running))
    reason = why_loop(view.snapshot, view.fleet_state, waits, context.ledger.now())
    return follow_waits(context, view, _allowed(view, reason))


def _job(context: LoopContext, view: LoopView, item: str) -> JobView | None:
    job_id = view.snapshot.record(item).job_id
    return context.ledger.job(job_id) if job_id else None


#: For so long after its next try, an attempt that was held up is thought to be held up still.
_HELD_UP_FOR = 3.0


def _waits(context: LoopContext, view: LoopView, item: str, job: JobView | None) -> JobWaits:
    if job is not None and job.finished_at is not None:
        return JobWaits(detail=one_line(job.detail or ""))
    last = job.attempts[-1] if job and job.attempts and job.finished_at is None else None
    if last and last.held_up and context.ledger.now() < last.held_until + _HELD_UP_FOR:
        words = "its repository" + ("" if view.of_tenant else f": {last.held_up}")
        return JobWaits(waiting_for="repository", words=words)
    if job is not None and job.state == "queued":
        return JobWaits(waiting_for="worker", words="a worker")
    if job is None or job.state != "waiting":
        worker = next((each.worker for each in view.holders if each.item == item), "")
        return JobWaits(worker=worker)
    waits = JobWaits(
        waiting_for=job.waiting_for or "worker",
        behind=job.waiting_behind or "",
        words=job.waits_for or "a worker",
        closed=job.waiting_for in ("pause", "breaker"),
    )
    kind, _, name = waits.behind.partition(":")
    if kind != "provider" or waits.waiting_for == "pause" or view.of_tenant:
        return waits
    if (provider := context.provider(name)) is None:
        return waits
    now = context.ledger.now()
    words = waiting_words(waits.waiting_for, waits.behind, provider=provider, now=now)
    return replace(waits, words=words, closed=provider.until > now)


# -- what is waited for in other loops -------------------------------------------------------------

#: Loops that are read to follow what an item waits for.
_MOST_FOLLOWED = 10


def follow_waits(context: LoopContext, view: LoopView, reason: Reason) -> Reason:
    """Follow what an item waits for in other loops, and name the item at the end of the chain.

    What changes that one changes this one, too. The chain ends where the reader sees no more.
    """
    known: dict[str, LoopView | None] = {view.snapshot.loop.name: view}
    path, last, of = list[str](), reason, view
    while last.wait:
        found = _ender(context, of, last.wait, known)
        if found is None:
            break
        of, item = found
        name = f"{of.snapshot.loop.name}/{item}"
        if name in path:
            cycle = " → ".join((*path[path.index(name) :], name))
            return replace(reason, text=f"{reason.text}, in a cycle of waits: {cycle}")
        path.append(name)
        last = _why_item(context, of, item)
    if path:
        text = reason.text.removesuffix(f" ({view.snapshot.outer.get(reason.wait, '')})")
        if reason.wait.startswith(EVENT):
            text = f"{text} of {path[0]}"
        is_cut = bool(last.wait) and len(known) > _MOST_FOLLOWED
        if len(path) > 1:
            text = f"{text}, and {'further on' if is_cut else 'in the end'} for {path[-1]}"
        state = last.text.removeprefix(path[-1].partition("/")[2]).lstrip()
        remedy = None if is_cut else last.remedy
        return replace(reason, text=f"{text}, which {state}", remedy=remedy, detail=last.detail)
    if reason.wait.startswith(EVENT) and not _emitters(context, view, reason.wait):
        return replace(reason, text=f"{reason.text}, which no item gives off")
    return reason


def _emitters(context: LoopContext, view: LoopView, wait: str) -> Sequence[str]:
    """Return the loops whose items give an event off."""
    event = wait.removeprefix(EVENT)
    return context.ledger.event_sources(view.snapshot.loop.tenant, event).get(event, ())


def _ender(
    context: LoopContext, view: LoopView, wait: str, known: dict[str, LoopView | None]
) -> tuple[LoopView, str] | None:
    """Return the item that ends a wait, with its loop; None if the reader sees none.

    Of several that give an event off, one that did not give up.
    """
    if not wait.startswith(EVENT):
        loop, _, item = wait.partition("/")
        other = _other_view(context, view, loop, known)
        is_there = other is not None and other.snapshot.spec(item)
        return (other, other.snapshot.last_part(item)) if other is not None and is_there else None
    event = wait.removeprefix(EVENT)
    found = [
        (other, other.snapshot.last_part(spec.id))
        for loop in _emitters(context, view, wait)
        if (other := _other_view(context, view, loop, known)) is not None
        for spec in other.snapshot.specs
        if event in spec.emits
    ]
    return min(found, key=lambda each: each[0].state(each[1]) in _GAVE_UP, default=None)


def _other_view(
    context: LoopContext, view: LoopView, name: str, known: dict[str, LoopView | None]
) -> LoopView | None:
    """Return a loop of the same tenant, if the reader sees it and not too many were read."""
    if name not in known and len(known) <= _MOST_FOLLOWED:
        try:
            found = view_loop(context, name, tenant=view.tenant, owner=view.owner)
            is_known = found.snapshot.loop.tenant == view.snapshot.loop.tenant
            known[name] = found if is_known else None
        except NoSuchLoop:
            known[name] = None
    return known.get(name)
