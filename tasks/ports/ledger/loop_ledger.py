"""The part of the ledger for loops. One script reads a loop, one writes it by compare-and-swap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from mulligan.policies.coordination.critical_path import WaitingLoop
from mulligan.policies.coordination.decision import Decision
from mulligan.policies.coordination.locks import FileLock
from mulligan.policies.jobs.job import Job
from mulligan.policies.loops.admission import Admission, Admitted, Demand, WaitingItem
from mulligan.policies.loops.budget import BudgetState, Resource, SharedScope
from mulligan.policies.loops.loop import ItemRecord, LoopChange, LoopRecord, LoopSnapshot
from mulligan.policies.loops.progress import AgentProgress
from mulligan.policies.loops.spec import ItemSpec, LoopConfig, LoopDocument
from mulligan.tasks.ports.ledger.entries import Entry, Publication


@dataclass(frozen=True, kw_only=True)
class LiveItem:
    """An item that has a slot."""

    loop: str
    item: str
    job_id: str
    attempt: int = 1
    #: Who claimed its attempt last, and when.
    worker: str = ""
    claimed_at: float | None = None
    #: When its lease was last renewed; None if nobody holds it.
    renewed_at: float | None = None
    #: Whether a worker runs or verifies it.
    held: bool = False
    #: What its worker says about it; None if nobody runs an agent for it.
    progress: AgentProgress | None = None

    @property
    def is_verified(self) -> bool:
        """Whether a worker verifies or merges its work: then nobody holds the attempt itself."""
        return self.held and self.renewed_at is None


@dataclass(frozen=True, kw_only=True)
class LoopFleet:
    """What all loops ask for, and the slots that they share."""

    #: The slots in the fleet that a person set; None: those of the settings.
    slots: int | None = None
    live: Sequence[LiveItem] = ()
    demands: Sequence[Demand] = ()
    #: Where the line of each priority begins: see admission.py.
    lines: Mapping[int, float] = field(default_factory=dict)
    #: Raised by every admission.
    epoch: str = "0"
    #: The version of each loop that asks for something.
    versions: Mapping[str, int] = field(default_factory=dict)
    #: The files that running items have alone.
    locks: Sequence[FileLock] = ()
    #: The loops that wait for others.
    waiting: Sequence[WaitingLoop] = ()
    #: Items that were denied files, as `loop/item` → why.
    denied: Mapping[str, str] = field(default_factory=dict)
    #: Loops whose items an earlier release wrote: their files must be noted before they get slots.
    undeclared: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class LoopReading:
    """A loop and the fleet around it, read in one step."""

    snapshot: LoopSnapshot
    fleet: LoopFleet
    budget: BudgetState = field(default_factory=BudgetState)
    #: Attempts whose usage is unknown, by resource.
    unknown: Mapping[Resource, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ItemRun:
    """The job of an admitted item, to be stored with its slot."""

    #: The item as it was read.
    record: ItemRecord
    job_id: str
    job: Job
    #: The producer that created the loop.
    owner: str | None = None
    #: Merges of other groups do not wait for its merge; see merge_groups.
    merge_group: str = ""


@dataclass(frozen=True, kw_only=True)
class MergeQueue:
    """The merges of one group of a loop's items."""

    #: Empty if all items of the loop are one group.
    group: str
    #: How many merges may be made at once.
    window: int
    #: The others that have begun and that nobody makes, the one that waits longest first. A merge
    #: that has lost a worker is made alone: it has no others, and is none.
    waiting: tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True)
class Requester:
    """Who changes a loop, and the idempotency key of the change."""

    by: str
    key: str | None = None
    #: Of the whole request: the same key with another request is refused.
    digest: str = ""


@dataclass(frozen=True, kw_only=True)
class LoopWrite:
    """What to write about a loop, if nothing that it was made from has changed."""

    reading: LoopReading
    change: LoopChange
    #: What was decided about items of this and other loops.
    decisions: Sequence[Decision] = ()
    #: Why items were denied files, as `loop/item` → why.
    denied: Mapping[str, str] = field(default_factory=dict)
    #: The items that are ready, as they are sorted; how urgent items are that others wait for, also
    #: those that have begun; and what their order comes from.
    ready: Mapping[str, WaitingItem] = field(default_factory=dict)
    urgent: Mapping[str, int] = field(default_factory=dict)
    scored: str = ""
    #: What the loop waits for outside of it → with which priority. None: as before.
    asks: Mapping[str, int] | None = None
    #: Loops that must be planned before, because too few of their items were looked at.
    overlooked: Sequence[str] = ()
    #: The items that get a slot, with the jobs of those that have none yet.
    admission: Admission = field(default_factory=Admission)
    runs: Mapping[Admitted, ItemRun] = field(default_factory=dict)
    #: For the planner: the count of changes that it has seen, and when to plan again.
    planned: int | None = None
    wake_at: float | None = None
    caller: Requester = field(default_factory=lambda: Requester(by="planner"))
    #: Seconds for which an item keeps its files without a slot.
    lock_ttl: float = 600.0
    #: Where the loop's files are, if those of its items were not noted: an earlier release made it.
    space: str = ""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A write took effect. ``seen``: an earlier one with the same idempotency key did."""

    status: Literal["written", "seen"] = "written"
    publish: Sequence[Publication] = ()


#: ``stale``: something changed meanwhile, so read and decide again. ``conflict``: the idempotency
#: key was used for another change.
WriteRefused = Literal["stale", "gone", "conflict"]


@dataclass(frozen=True, kw_only=True)
class LoopNote:
    """One line of a loop's log."""

    at: float
    note: str
    by: str


@dataclass(frozen=True, kw_only=True)
class LoopExport:
    """A loop with all its records, to be imported into another ledger."""

    reading: LoopReading
    #: What still runs, in words: such a loop cannot move.
    busy: Sequence[str]
    #: The records as JSON. Only the ledger reads them: `read_arrival`.
    records: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ArrivingJob:
    """The job of an item's run, which comes with its loop."""

    id: str
    item: str
    #: As it was there, or as it will be here.
    job: Job
    owner: str | None = None


@dataclass(frozen=True, kw_only=True)
class LoopArrival:
    """A loop that comes from another ledger. Its records are well-formed, and nothing else."""

    config: LoopConfig
    specs: Sequence[ItemSpec]
    jobs: Sequence[ArrivingJob]
    exported_at: float
    records: Mapping[str, Any]
    #: Where its files are here: see coordination/locks.py.
    space: str = ""


#: ``elsewhere``: this ledger has the loop under another name. ``held``: a worker still runs a job
#: that it left here before. ``late``: importing took too long. ``events``: its tenant has too many.
ImportRefused = Literal["conflict", "full", "elsewhere", "held", "late", "events"]


class LoopLedger(Protocol):
    """Registering, reading and changing loops."""

    def create_loop(
        self,
        document: LoopDocument,
        *,
        caps: Mapping[Resource, float],
        tenant: str,
        by: str,
        owner: str = "",
        draft: str = "",
        space: str = "",
    ) -> Written | Literal["conflict", "full"]:
        """Register a loop. ``caps``: the most that one of its attempts may use; ``draft``: the job
        that drafted it; ``space``: where its files are.

        ``seen``: the same one is registered already; ``conflict``: another one.
        """

    def read_loop(self, name: str) -> LoopReading | None:
        """Read a loop and the fleet around it, in one step."""

    def write_loop(self, write: LoopWrite) -> Written | WriteRefused:
        """Write a plan, an admission or a person's change in one step."""

    def change_made(self, name: str, caller: Requester) -> Literal["seen", "conflict"] | None:
        """Return whether a change with this idempotency key was made, or another one."""

    def delete_loop(
        self, name: str, caller: Requester, *, cancel: Sequence[str] = ()
    ) -> Literal["deleted", "gone", "held"]:
        """Forget a loop and cancel these jobs of it. ``held``: it is running or paused."""

    def export_loop(self, name: str) -> LoopExport | None:
        """Read all records of a loop, as they are between two changes."""

    def read_arrival(self, records: Any) -> LoopArrival:
        """Read the records of `export_loop`. Raises BadInput if they are not well-formed."""

    def import_loop(
        self,
        arrival: LoopArrival,
        *,
        caps: Mapping[Resource, float],
        tenant: str,
        by: str,
        owner: str,
    ) -> Written | ImportRefused:
        """Write a loop with its jobs, all or nothing. ``seen``: it is here already.

        Times from which something counts are moved by the time that passed since the export.
        """

    def item_job_id(self, loop: LoopRecord, item: str, run: int) -> str:
        """Return the id of the job of an item's run, the same each time."""

    def has_loops(self) -> bool:
        """Return whether there is a loop."""

    def loops(self) -> list[LoopRecord]:
        """Return every loop, the newest first."""

    def loop_items(self, names: Sequence[str]) -> list[Mapping[str, ItemRecord]]:
        """Return the states of the items of several loops, without their specs."""

    def loops_used(
        self, names: Sequence[str]
    ) -> list[Mapping[tuple[SharedScope, Resource], float]]:
        """Return what several loops have used, in all and today."""

    def live_items(self) -> list[LiveItem]:
        """Return the items that have a slot."""

    def reconcile_loops(self, names: Sequence[str]) -> tuple[list[str], list[Publication]]:
        """Queue again what loops list as running although nothing is left that would run it.

        An item whose records are gone ends. Return what was done, in words, and what to publish.
        """

    def read_merges(self, entry: Entry) -> MergeQueue:
        """Return what else could be merged with a merge that is claimed."""

    def set_merge_window(self, loop: str, *, old: int, new: int) -> None:
        """Set how many merges of a loop may be made at once, unless it is not ``old`` any more."""

    def loop_slots(self) -> int | None:
        """Return the slots of all loops that a person set; None: those of the settings."""

    def loop_log(self, name: str, *, limit: int = 100) -> list[LoopNote]:
        """Return the loop's log, the newest line first."""

    def set_loop_slots(self, slots: int | None) -> list[Publication]:
        """Set the slots that all loops share; None: those of the settings.

        Return what to publish.
        """
