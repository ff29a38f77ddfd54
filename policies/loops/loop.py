"""A loop and its items as values: their states, the legal moves, and what the ledger keeps."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

from mulligan.policies.coordination.decision import Decision
from mulligan.policies.coordination.order import NO_ORDERS, ItemOrders
from mulligan.policies.loops.budget import Resource, SharedScope
from mulligan.policies.loops.heal_record import HealRecord
from mulligan.policies.loops.incident import Alarm, Incident
from mulligan.policies.loops.merge_batches import START_WINDOW
from mulligan.policies.loops.spec import MOST_FILES, ItemSpec, LoopConfig
from mulligan.policies.path_patterns import pattern_problem
from mulligan.policies.regressions.record import RegressionLog

#: ``waiting``: for other loops, for events, or for the end of an order. ``blocked``: nothing can go
#: on without a person, but for what waits for others. See `running_state` in plan.py.
#: ``completed``: every item passed or was skipped.
LoopState = Literal["created", "running", "waiting", "paused", "blocked", "completed", "stopped"]
#: ``quarantined``: its workers were lost, one after the other. ``blocked``: an item that it depends
#: on failed, is quarantined or does not exist.
ItemState = Literal[
    "pending", "ready", "running", "passed", "failed", "quarantined", "blocked", "skipped"
]
#: As people see it. ``waiting``: it has begun, but gave its slot back while its job waits.
ShownState = Literal[ItemState, "waiting"]
LOOP_STATES: tuple[LoopState, ...] = get_args(LoopState)
ITEM_STATES: tuple[ItemState, ...] = get_args(ItemState)
SHOWN_STATES: tuple[ShownState, ...] = get_args(ShownState)
_ITEM_STATES: dict[str, ItemState] = {state: state for state in ITEM_STATES}
#: The states in which the planner decides what follows.
PLANNED: frozenset[LoopState] = frozenset({"running", "waiting", "blocked", "completed"})
DONE: frozenset[ItemState] = frozenset({"passed", "skipped"})
GAVE_UP: frozenset[ItemState] = frozenset({"failed", "quarantined"})
#: The states in which an item may be ordered about: it waits, and has no slot.
ORDERABLE: frozenset[ShownState] = frozenset({"pending", "ready", "blocked", "waiting"})
#: Who paused a loop. ``monitor``: an incident that nobody ended: see response.py.
PausedBy = Literal["", "person", "budget", "monitor"]

#: What the reason of a loop begins with that goes on in another installation.
MOVED = "moved to "
#: Bytes of a reason in an item's record, which has at most 200: the longest id and what it did.
_LONGEST_REASON = 100


def short_reason(reason: str) -> str:
    """Return a reason as an item's record keeps it."""
    return reason.encode()[:_LONGEST_REASON].decode(errors="ignore")


@dataclass(frozen=True, kw_only=True)
class ItemRecord:
    """The mutable state of an item."""

    state: ItemState = "pending"
    #: When it got this state.
    since: float = 0.0
    #: How many jobs were made for it.
    runs: int = 0
    #: The job of its last run; empty before the first one and after a reset.
    job_id: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.state}|{self.since * 1000:.0f}|{self.runs}|{self.job_id}|{self.reason}"

    @classmethod
    def parse(cls, text: str) -> ItemRecord:
        """Read a record. Raises ValueError if it is damaged."""
        name, since, runs, job_id, reason = text.split("|", 4)
        state = _ITEM_STATES.get(name)
        if state is None:
            raise ValueError(f"{name!r} is not a state of an item")
        return cls(
            state=state, since=float(since) / 1000, runs=int(runs), job_id=job_id, reason=reason
        )

    def started(self, job_id: str, *, now: float) -> ItemRecord:
        """Return the record of the item's next run."""
        return ItemRecord(state="running", since=now, runs=self.runs + 1, job_id=job_id)

    def moved(self, state: ItemState, *, now: float, reason: str = "") -> ItemRecord:
        return replace(self, state=state, since=now, reason=short_reason(reason))


#: Of an item that the ledger does not know yet.
_NEW = ItemRecord()


def shown_state(record: ItemRecord, live: Container[str]) -> ShownState:
    """Return an item's state as people see it. ``live``: the jobs that have a slot."""
    if record.state == "running" and record.job_id not in live:
        return "waiting"
    return record.state


@dataclass(frozen=True, kw_only=True)
class LoopRecord:
    """The mutable state of a loop."""

    name: str
    config: LoopConfig
    state: LoopState = "created"
    #: When it got this state, and why.
    since: float = 0.0
    reason: str = ""
    paused_by: PausedBy = ""
    tenant: str = ""
    #: The producer that created it; empty if nobody's token did.
    owner: str = ""
    #: The job of the draft that it was created from; empty if a person wrote it.
    draft: str = ""
    #: Distinguishes it from earlier loops of its name.
    uid: str = ""
    #: The content address of its items.
    spec: str = ""
    #: Raised by every change of the loop's own record.
    version: int = 0
    #: Raised by everything that the planner must look at; `planned` is the value that it has seen.
    dirty: int = 0
    planned: int = 0
    created_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    planned_at: float | None = None
    #: The loop's place in the shares of its priority (stride scheduling).
    share: float = 0.0
    #: When one of its items got a slot last.
    admitted_at: float = 0.0
    #: Where its files are: see coordination/locks.py.
    space: str = ""
    #: The address of the items whose files the ledger has noted.
    declared: str = ""
    #: What the order of its ready items came from when they were sorted.
    scored: str = ""
    #: What it waits for outside of it → with which priority.
    asks: Mapping[str, int] = field(default_factory=dict)
    #: A rollback that is not finished, as JSON; see checkpoints.py.
    rollback: str = ""
    #: The commit of its branch that was delivered last, or why it could not be.
    delivered: str = ""
    delivery_problem: str = ""
    #: Until when a process may run the command that delivers it.
    delivering: float = 0.0
    #: How many merges may be made at once; see merge_batches.
    merge_window: int = START_WINDOW
    #: What should not last, and how far the response to it is.
    incidents: tuple[Incident, ...] = ()
    #: What was verified again, and what was found.
    regressions: RegressionLog = field(default_factory=RegressionLog)

    @property
    def has_moved(self) -> bool:
        """Whether it goes on in another installation, perhaps with the same repository."""
        return self.state == "stopped" and self.reason.startswith(MOVED)

    def is_of(self, tenant: str | None, owner: str | None = None) -> bool:
        """Whether it belongs to a tenant and to a producer; None stands for all of them."""
        return tenant in (None, self.tenant) and owner in (None, self.owner)


@dataclass(frozen=True, kw_only=True)
class LoopSnapshot:
    """A loop as one script read it."""

    loop: LoopRecord
    #: In the order of the specs.
    specs: Sequence[ItemSpec]
    items: Mapping[str, ItemRecord]
    #: What was used, by scope and resource.
    used: Mapping[tuple[SharedScope, Resource], float] = field(default_factory=dict)
    #: What was done to heal it, the oldest first.
    heals: Sequence[HealRecord] = ()
    #: What its items wait for outside the loop → the state of that item, or `emitted`; empty if
    #: there is none.
    outer: Mapping[str, str] = field(default_factory=dict)
    #: Items → the run whose events were given off.
    emitted: Mapping[str, int] = field(default_factory=dict)
    #: Items that were split → the last of their parts.
    split: Mapping[str, str] = field(default_factory=dict)
    #: Items → what is to be done about them instead of the usual rules.
    orders: Mapping[str, ItemOrders] = field(default_factory=dict)
    #: Items → files that they were seen to change beside those that they declare.
    seen_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def config(self) -> LoopConfig:
        return self.loop.config

    @cached_property
    def _by_id(self) -> Mapping[str, ItemSpec]:
        return {spec.id: spec for spec in self.specs}

    def spec(self, item: str) -> ItemSpec | None:
        return self._by_id.get(item)

    def record(self, item: str) -> ItemRecord:
        return self.items.get(item, _NEW)

    def is_split(self, item: str) -> bool:
        """Whether an item is done by its parts. One that was reset is not any more."""
        return item in self.split and self.record(item).state == "skipped"

    def last_part(self, item: str) -> str:
        """Return the item with whose end an item is done: another one if it was split."""
        return self.split[item] if self.is_split(item) else item

    def orders_of(self, item: str) -> ItemOrders:
        return self.orders.get(item, NO_ORDERS)

    def held_by(self, item: str) -> str:
        """Return who keeps an item from getting a slot; empty if nobody does."""
        said = self.orders_of(item).said
        return next((each.by for each in said if each.word == "hold"), "")

    def files(self, spec: ItemSpec) -> tuple[str, ...]:
        """Return the files that an item must have alone."""
        declared = (each for each in spec.touches if not pattern_problem(each))
        return (*declared, *self.seen_files.get(spec.id, ()))[:MOST_FILES]

    def count(self, *states: ItemState) -> int:
        return sum(self.record(spec.id).state in states for spec in self.specs)


@dataclass(frozen=True, kw_only=True)
class LoopChange:
    """What a plan or a person changes about a loop. None and nothing: it stays as it is."""

    state: LoopState | None = None
    reason: str = ""
    paused_by: PausedBy = ""
    config: LoopConfig | None = None
    #: With a new configuration or new items: the most that one attempt may use now.
    caps: Mapping[Resource, float] | None = None
    #: All specs, if some were added.
    specs: Sequence[ItemSpec] | None = None
    #: The new records of the items that change.
    items: Mapping[str, ItemRecord] = field(default_factory=dict)
    #: Jobs to cancel, and items whose failures are forgotten: a new context.
    cancel: Sequence[str] = ()
    forget: Sequence[str] = ()
    #: A rollback to make, as JSON; empty: it was made.
    rollback: str | None = None
    #: The commit that was delivered, and why that failed.
    delivered: str | None = None
    delivery_problem: str | None = None
    delivering: float | None = None
    #: Healings that are new, or that have ended.
    heals: Sequence[HealRecord] = ()
    #: All incidents, if one has changed, and the steps of the response that are taken.
    incidents: tuple[Incident, ...] | None = None
    alarms: tuple[Alarm, ...] = ()
    #: Items that are split → the last of their parts.
    split: Mapping[str, str] = field(default_factory=dict)
    #: Items whose events are given off, with their runs.
    emit: Mapping[str, int] = field(default_factory=dict)
    #: Items → all their orders, if these have changed.
    orders: Mapping[str, ItemOrders] = field(default_factory=dict)
    #: Items → all files that they were seen to change, if that has changed.
    seen_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Decisions about the loop's items.
    decisions: Sequence[Decision] = ()
    #: The identity of a decision that this change overrules.
    overrules: str = ""
    #: What was verified again, and what was found, if that has changed.
    regressions: RegressionLog | None = None
    #: A sentence for the loop's log.
    note: str = ""

    @property
    def empty(self) -> bool:
        return self == LoopChange()
