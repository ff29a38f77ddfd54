"""Admit items to the slots that all loops share: priority, then fair shares, and nobody starves.

Stride scheduling: each loop has a place on the line of its priority, the one that is furthest
behind goes next, and going moves it by 1/weight. A loop that was idle starts where the others are:
it may not catch up on what it did not ask for.

A loop of priority p that has waited for p times `ageing` is overdue: overdue loops go first, the
one that is overdue for the longest time first of all. An admission begins a loop's wait anew, so
that each of the others goes at most once before it.
"""

from __future__ import annotations

import heapq
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from mulligan.policies.coordination.file_index import ComparedFiles, FileIndex
from mulligan.policies.coordination.locks import FileLock
from mulligan.policies.coordination.order import OrderWord

#: The priority that is the least urgent.
LEAST_URGENT = 9
#: Items of a loop that are looked at beyond those that may begin, because files of the first may be
#: locked: when another loop is planned, and when the loop itself is.
SPARE, SPARE_OF_OWN = 20, 5000
#: Comparisons of patterns that are new, in one admission: the same number for each loop that wants
#: files, and at least the other one, so that no loop has to wait for those of others. Who could not
#: be compared with all others is not looked at: the next admission goes on from there.
MOST_COMPARED, LEAST_COMPARED = 100_000, 200
#: Loops whose further items are looked at before others get slots.
_MOST_OVERLOOKED = 3


@dataclass(frozen=True, kw_only=True)
class WaitingItem:
    """An item that waits for a slot."""

    item: str
    priority: int = 5
    since: float = 0.0
    #: The job that it has begun: it lost its slot while it waited for something else.
    job_id: str = ""
    #: Seconds that it counts as having waited longer, because others wait for it.
    head_start: float = 0.0
    #: The priority of the most urgent loop that waits for it.
    urgency: int = LEAST_URGENT
    #: The files that it must have alone.
    files: tuple[str, ...] = ()
    #: What people say about it.
    orders: tuple[OrderWord, ...] = ()

    @property
    def rank(self) -> tuple[bool, int, bool, int, float, str]:
        since = self.since - self.head_start
        first, begun = "first" in self.orders, bool(self.job_id)
        return (not first, self.urgency, not begun, self.priority, since, self.item)


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What one loop asks for."""

    loop: str
    priority: int = 5
    weight: float = 1.0
    #: The loop's place on the line of its priority.
    share: float = 0.0
    #: How many more of its items may run, and how many of those that have no job may begin.
    room: int = 1
    fresh: int = sys.maxsize
    candidates: Sequence[WaitingItem] = ()
    #: Where its files are: see coordination/locks.py.
    space: str = ""
    #: When one of its items got a slot last.
    admitted_at: float = 0.0
    #: Since when it goes on: time in which it was paused or stopped is no wait for a slot.
    goes_on_since: float = 0.0
    #: Items that are ready beside the candidates.
    more: int = 0

    def overdue_at(self, ageing: float) -> float:
        """Return when it has waited for too long. ``ageing``: seconds; 0 for never."""
        if not ageing:
            return float("inf")
        since = min((each.since for each in self.candidates), default=0.0)
        return max(since, self.admitted_at, self.goes_on_since) + self.priority * ageing

    def has_waited(self, item: WaitingItem, now: float) -> float:
        """Return for how many seconds an item has waited while its loop went on."""
        return now - max(item.since, self.goes_on_since)


def most_begun(concurrency: int) -> int:
    """Return how many items of a loop may have begun.

    Those that wait for a provider or a pause have no slot, so that others can go on. But a loop
    must not begin all its items while nothing can be done: each has its deadline from then on.
    """
    return 2 * concurrency


def demand_of(
    loop: str,
    *,
    priority: int,
    weight: float,
    share: float,
    concurrency: int,
    live: Collection[str],
    begun: int,
    affordable: int | None,
    waiting: Sequence[WaitingItem],
    ready: Sequence[WaitingItem],
    space: str = "",
    admitted_at: float = 0.0,
    goes_on_since: float = 0.0,
    spare: int = SPARE,
    more: int = 0,
) -> Demand:
    """Return what a loop asks for.

    ``live``: its items that have a slot, also those that were stopped and have not ended: none of
    them runs twice at once; ``begun``: how many have a job that has not ended;
    ``affordable``: how many more its budget allows; ``waiting``: what has begun and lost its slot.
    """
    room = concurrency - len(live)
    idle = [each for each in ready if each.item not in live and "hold" not in each.orders]
    fresh = max(0, most_begun(concurrency) - begun)
    first = sorted(idle, key=lambda each: each.rank)[: fresh + spare] if fresh else []
    return Demand(
        loop=loop,
        priority=priority,
        weight=weight,
        share=share,
        room=room if affordable is None else min(room, affordable),
        fresh=fresh,
        candidates=[*(each for each in waiting if "hold" not in each.orders), *first],
        space=space,
        admitted_at=admitted_at,
        goes_on_since=goes_on_since,
        more=more,
    )


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """One item that gets a slot, and why it was its turn."""

    loop: str
    candidate: WaitingItem
    #: Why, with `{other}` for the loop that would have been next.
    reason: str
    #: Who would have been next otherwise: `loop/item`.
    over: str = ""

    @property
    def because(self) -> str:
        return self.reason.replace("{other}", self.over.partition("/")[0])

    @property
    def name(self) -> str:
        return f"{self.loop}/{self.candidate.item}"


@dataclass(frozen=True, kw_only=True)
class Denied:
    """An item that gets no slot because of its files."""

    loop: str
    candidate: WaitingItem
    #: Who has the files, or waits for them longer: `loop/item`.
    holder: str
    #: The files, or how patterns of them meet.
    files: str
    #: Whether the other one only waits, too.
    reserved: bool = False

    @property
    def name(self) -> str:
        return f"{self.loop}/{self.candidate.item}"


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Who goes next, and the new places of their loops."""

    admitted: tuple[Admitted, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    #: Where the line of each priority begins now.
    lines: Mapping[int, float] = field(default_factory=dict)
    #: Who was looked at and did not get its files.
    denied: tuple[Denied, ...] = ()
    #: Whether the files of some could not be compared yet.
    is_cut: bool = False
    #: Loop → where its files are.
    spaces: Mapping[str, str] = field(default_factory=dict)

    def lock_of(self, admitted: Admitted, job_id: str, *, now: float) -> FileLock | None:
        """Return the lock that an admitted item gets; None if it declares no files."""
        candidate = admitted.candidate
        if not candidate.files:
            return None
        return FileLock(
            job_id=candidate.job_id or job_id,
            loop=admitted.loop,
            item=candidate.item,
            space=self.spaces[admitted.loop],
            files=candidate.files,
            since=now,
        )


def admit(
    demands: Sequence[Demand],
    free_slots: int,
    lines: Mapping[int, float] | None = None,
    *,
    locks: Sequence[FileLock] = (),
    now: float = 0.0,
    ageing: float = 0.0,
    compared: ComparedFiles | None = None,
) -> Admission:
    """Give the free slots, and with them files, to the loops' items.

    ``lines``: where each priority's line begins; ``locks``: the files that running items have;
    ``ageing``: see above; ``compared``: what earlier admissions have found out.
    """
    starts = dict(lines or {})
    waiting = {
        each.loop: replace(
            each,
            share=max(each.share, starts.get(each.priority, 0.0)),
            candidates=sorted(each.candidates, key=lambda candidate: candidate.rank),
        )
        for each in demands
        if each.candidates and each.room > 0
    }
    files = _Files(demands, locks, now, ageing, compared or ComparedFiles())
    admitted: list[Admitted] = []
    shares: dict[str, float] = {}
    turns = [(_turn(each, now, ageing), each.loop) for each in waiting.values()]
    heapq.heapify(turns)
    while turns and len(admitted) < free_slots:
        turn, loop = heapq.heappop(turns)
        first = waiting.pop(loop)
        left = replace(first, candidates=first.candidates[1:])
        if files.take(first):
            others = (waiting[loop] for _, loop in sorted(turns))
            other = next((each for each in others if files.are_free(each)), None)
            alone = files.nobody_else if turns else "no other loop waits"
            admitted.append(_admitted(first, other, turn, now, ageing, alone=alone))
            if turn[0] == _BY_SHARE:
                starts[first.priority] = first.share
            left = _after(first, now)
            shares[loop] = left.share
        if left.room > 0 and left.candidates:
            waiting[loop] = left
            heapq.heappush(turns, (_turn(left, now, ageing), loop))
    return Admission(
        admitted=tuple(admitted),
        shares=shares,
        lines=starts,
        denied=tuple(files.denied),
        is_cut=files.is_cut,
        spaces={each.loop: each.space for each in demands},
    )


def overlooked(demands: Sequence[Demand], admission: Admission, ageing: float) -> list[str]:
    """Return loops of which only items were looked at that cannot begin, though they have others.

    Their own plans look at all. Those that have waited longest come first.
    """
    denied = Counter(each.loop for each in admission.denied)
    served = {each.loop for each in admission.admitted}
    found = [
        each
        for each in demands
        if each.more
        and each.room > 0
        and each.fresh > 0
        and each.loop not in served
        and denied[each.loop] == len(each.candidates)
    ]
    found.sort(key=lambda each: (each.overdue_at(ageing), each.loop))
    return [each.loop for each in found[:_MOST_OVERLOOKED]]


def _after(demand: Demand, now: float) -> Demand:
    """Return what a loop asks for after its first candidate got a slot."""
    fresh = demand.fresh - (not demand.candidates[0].job_id)
    return replace(
        demand,
        share=demand.share + 1 / demand.weight,
        room=demand.room - 1,
        fresh=fresh,
        candidates=[each for each in demand.candidates[1:] if each.job_id or fresh > 0],
        admitted_at=now,
    )


class _Files:
    """Who has which files, while slots are given away."""

    def __init__(
        self,
        demands: Collection[Demand],
        locks: Sequence[FileLock],
        now: float,
        ageing: float,
        compared: ComparedFiles,
    ) -> None:
        self.denied: list[Denied] = []
        self.is_cut = False
        self._jobs = {each.job_id for each in locks}
        wanting = [each.loop for each in demands if any(item.files for item in each.candidates)]
        share = max(LEAST_COMPARED, MOST_COMPARED // max(1, len(wanting)))
        #: How many pairs may still be compared for each loop.
        self._left = dict.fromkeys(wanting, share)
        self._held = {each.space: FileIndex(compared) for each in demands}
        for lock in locks:
            if lock.space in self._held:
                self._held[lock.space].add(lock)
        #: Those who have waited for files for too long: nobody takes these before them. Of a loop,
        #: those that could run if they had them.
        reserved = [
            (each.since, _lock_of(demand, each))
            for demand in demands
            for each in sorted(demand.candidates, key=lambda each: each.rank)[: max(0, demand.room)]
            if ageing and each.files and demand.has_waited(each, now) >= demand.priority * ageing
        ]
        self._reserved = {space: FileIndex(compared) for space in self._held}
        self._since: dict[str, list[float]] = {space: [] for space in self._held}
        for since, lock in sorted(reserved, key=lambda each: (each[0], each[1].name)):
            self._reserved[lock.space].add(lock)
            self._since[lock.space].append(since)

    def are_free(self, demand: Demand) -> bool:
        """Whether a loop's first candidate could have its files."""
        return self._find(demand, demand.candidates[0]) is None

    def take(self, demand: Demand) -> bool:
        """Lock the files of a loop's first candidate: all of them, or none."""
        first = demand.candidates[0]
        match self._find(demand, first):
            case None:
                if first.files:
                    self._held[demand.space].add(_lock_of(demand, first))
                return True
            case Denied() as denied:
                self.denied.append(denied)
        return False

    @property
    def nobody_else(self) -> str:
        """Say why none of the others that wait could go instead."""
        more = ", or were not compared with all others yet" if self.is_cut else ""
        return f"all others wait for files{more}"

    def _find(self, demand: Demand, item: WaitingItem) -> Denied | Literal["unknown"] | None:
        """Return why an item cannot have its files now; None if it can."""
        if not item.files or "ignore_locks" in item.orders:
            return None
        own, left, space = _lock_of(demand, item), self._left[demand.loop], demand.space
        held = self._held[space]
        found, count = held.find(own, first=len(held), most=left)
        # Who has files keeps them while others wait for these.
        is_reserved = found == "free" and not (item.job_id and item.job_id in self._jobs)
        if is_reserved:
            earlier = bisect_left(self._since[space], item.since)
            found, more = self._reserved[space].find(own, first=earlier, most=left - count)
            count += more
        self._left[demand.loop] -= count
        if found == "free":
            return None
        if found == "unknown":
            self.is_cut = True
            return "unknown"
        return Denied(
            loop=demand.loop,
            candidate=item,
            holder=found.lock.name,
            files=str(found),
            reserved=is_reserved,
        )


def _lock_of(demand: Demand, item: WaitingItem) -> FileLock:
    return FileLock(
        job_id=item.job_id,
        loop=demand.loop,
        item=item.item,
        space=demand.space,
        files=item.files,
    )


#: What decides a turn: an order of a person, a wait that is too long, or priorities and shares.
_BY_ORDER, _OVERDUE, _BY_SHARE = range(3)


def _turn(demand: Demand, now: float, ageing: float) -> tuple[int, float, float]:
    first, overdue_at = demand.candidates[0], demand.overdue_at(ageing)
    if "first" in first.orders:
        return (_BY_ORDER, 0.0, demand.share)
    if overdue_at <= now:
        return (_OVERDUE, overdue_at, demand.share)
    return (_BY_SHARE, min(demand.priority, first.urgency), demand.share)


def _admitted(
    first: Demand,
    other: Demand | None,
    turn: tuple[int, float, float],
    now: float,
    ageing: float,
    *,
    alone: str,
) -> Admitted:
    over = f"{other.loop}/{other.candidates[0].item}" if other is not None else ""
    if turn[0] == _BY_ORDER:
        because = "a person lets it go first"
    elif turn[0] == _OVERDUE and other is not None:
        waited = (now - first.overdue_at(ageing) + first.priority * ageing) / 60
        because = (
            f"it has waited for {waited:.0f} min, which is too long for priority {first.priority}"
        )
    else:
        because = _because(first, other, alone=alone)
    return Admitted(loop=first.loop, candidate=first.candidates[0], reason=because, over=over)


def _because(first: Demand, other: Demand | None, *, alone: str) -> str:
    if other is None:
        return alone
    mine, theirs = (min(each.priority, each.candidates[0].urgency) for each in (first, other))
    if mine != theirs:
        inherited = " of the loop that waits for it" if mine < first.priority else ""
        return f"priority {mine}{inherited} before {{other}} with {theirs}"
    if first.share == other.share:
        return f"share {first.share:.4g}, the same as {{other}}: in the order of their names"
    return (
        f"share {first.share:.4g} (weight {first.weight:g})"
        f" before {{other}} with {other.share:.4g} (weight {other.weight:g})"
    )
