"""When a loop may end, from its pace so far: a range with its basis, or why none can be given."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mulligan.policies.figures.format import counted, duration, minute, time_of_day
from mulligan.policies.loops.loop import ItemState, LoopSnapshot, LoopState
from mulligan.policies.loops.plan import in_order

#: The items whose pace counts, at least, and how few of them are too few.
_PACE_OF = 10
FEWEST = 3
#: 8 of 10 ends are within so many deviations, which few items understate: found by simulation.
_DEVIATIONS = 1.6
#: Ten intervals say little about how much intervals differ: neither not at all nor without end.
_LEAST_VARIATION, _MOST_VARIATION = 0.3, 1.5
#: What still runs by itself; anything else that is not done waits for a person.
TO_RUN: tuple[ItemState, ...] = ("pending", "ready", "running")
_NOT_RUNNING: dict[LoopState, str] = {"created": "it was not started"}
_DAY = 86400.0


@dataclass(frozen=True, kw_only=True)
class EndEstimate:
    """When a loop may end: 8 of 10 times within the range, if it goes on as it did."""

    #: Null if there is too little data, or if the loop does not run; its end if it has ended.
    earliest: float | None = None
    latest: float | None = None
    #: The items that it still has to run, and those that it cannot: blocked or given up.
    items: int = 0
    not_included: int = 0
    #: The estimate and its basis, or why there is none.
    text: str


@dataclass(frozen=True, kw_only=True)
class _Remaining:
    """How long the rest may take: seconds from and to, and what that is based on."""

    least: float
    most: float
    basis: str


def estimate_end(
    snapshot: LoopSnapshot, seconds: Collection[float], now: float, *, caveat: str = ""
) -> EndEstimate:
    """Estimate when a loop ends. ``seconds``: how long items took that passed.

    ``caveat``: what may come first, such as the end of a budget.
    """
    loop = snapshot.loop
    items, stuck = snapshot.count(*TO_RUN), snapshot.count("blocked", "failed", "quarantined")
    if loop.state == "completed":
        at = loop.finished_at or loop.since
        return EndEstimate(earliest=at, latest=at, text=f"it ended at {_clock(at, now)} UTC")
    if not items:
        text = f"no item is left to run: {_are(stuck)} blocked or failed"
        return EndEstimate(not_included=stuck, text=text)
    remaining = _remaining(snapshot, items, seconds, now)
    runs = loop.state == "running"
    parts = [
        _too_little(snapshot) if remaining is None else _range(remaining, now, runs=runs),
        "" if runs else _NOT_RUNNING.get(loop.state, f"it is {loop.state}"),
        f"{_are(stuck)} blocked or failed and not included" if stuck else "",
        caveat,
    ]
    ends = remaining if runs else None
    return EndEstimate(
        earliest=None if ends is None else now + ends.least,
        latest=None if ends is None else now + ends.most,
        items=items,
        not_included=stuck,
        text="; ".join(filter(None, parts)),
    )


def _too_little(snapshot: LoopSnapshot) -> str:
    passed = len(_ends(snapshot)) or "none"
    total = counted(len(snapshot.specs), "item")
    return f"too little data: {passed} of {total} passed in this loop, an estimate needs {FEWEST}"


def _are(items: int) -> str:
    return f"{counted(items, 'item')} {'is' if items == 1 else 'are'}"


def _range(remaining: _Remaining, now: float, *, runs: bool) -> str:
    least, most = remaining.least, remaining.most
    if not runs:
        low, high = duration(least), duration(most)
        return f"{remaining.basis}: it needs {low if low == high else f'{low} to {high}'} more"
    low, high = _clock(now + least, now), _clock(now + most, now)
    when = f"about {low}" if low == high else f"between {low} and {high}"
    return f"{remaining.basis}: {when} UTC"


def _clock(at: float, now: float) -> str:
    """Return the time of a day, with its date if that is not today."""
    same_day = at // _DAY == now // _DAY
    return time_of_day(at)[:5] if same_day else minute(at)


def _remaining(
    snapshot: LoopSnapshot, items: int, seconds: Collection[float], now: float
) -> _Remaining | None:
    """Return how long the rest takes; None if there is too little data.

    Items that depend on each other run one after the other, however many slots there are: of the
    pace and the longest chain, the slower one counts.
    """
    intervals, idle = pace(snapshot, now)
    if len(intervals) < FEWEST:
        return None
    # Nothing has passed since: the next interval is at least as long.
    mean = (sum(intervals) + idle) / len(intervals)
    basis = f"at the pace of the last {len(intervals)} items"
    if len(seconds) < FEWEST:
        return _spread(mean * items, items, intervals, basis)
    each = statistics.fmean(seconds)
    tail = _tail(each, min(items, round(each / mean)) if mean else 1)
    by_pace = _spread(mean * items + tail, items, intervals, basis)
    ids = {spec.id for spec in snapshot.specs if snapshot.record(spec.id).state in TO_RUN}
    chain = len(longest_chain(snapshot, ids))
    basis = f"the longest chain has {counted(chain, 'item')}, at about {duration(each)} each"
    by_chain = _spread(each * chain, chain, seconds, basis)
    return max(by_pace, by_chain, key=lambda found: found.least + found.most)


def _tail(seconds: float, beside: int) -> float:
    """Return how much longer the last items take that run at once: none follows the first ones."""
    return seconds * sum(1 / n for n in range(2, beside + 1))


def _spread(expected: float, items: int, sample: Collection[float], basis: str) -> _Remaining:
    """Return a range for the sum of ``items`` values of which a sample is known.

    Both the sample's mean and the sum itself are uncertain. The ratio of the two is taken as
    log-normal: an end is never before now, and late ends are further away than early ones.
    """
    average = statistics.fmean(sample)
    variation = statistics.stdev(sample) / average if average else 0.0
    variation = min(max(variation, _LEAST_VARIATION), _MOST_VARIATION)
    factor = math.exp(_DEVIATIONS * variation * math.sqrt(1 / items + 1 / len(sample)))
    return _Remaining(least=expected / factor, most=expected * factor, basis=basis)


def pace(snapshot: LoopSnapshot, now: float) -> tuple[list[float], float]:
    """Return the seconds between the last items that passed, and those since the last one.

    The time before the loop last began to run is left out: nothing was expected of it.
    """
    loop, ends = snapshot.loop, _ends(snapshot)
    runs = loop.state == "running"
    resumed = loop.since if runs else 0.0
    # Items that run at once may also end at once.
    window = max(_PACE_OF, 2 * loop.config.concurrency)
    moments = [min([loop.started_at or loop.created_at, *ends[:1]]), *ends][-window - 1 :]
    intervals = [
        end - (max(before, resumed) if resumed < end else before)
        for before, end in pairwise(moments)
    ]
    idle = (now if runs else loop.since) - max(moments[-1], resumed)
    return intervals, max(0.0, idle)


def _ends(snapshot: LoopSnapshot) -> list[float]:
    """Return when the items passed that the loop ran."""
    records = [snapshot.record(spec.id) for spec in snapshot.specs]
    return sorted(each.since for each in records if each.state == "passed" and each.runs)


def longest_chain(snapshot: LoopSnapshot, chosen: Collection[str]) -> Sequence[str]:
    """Return the longest chain of the chosen items that depend on each other, the first first."""
    length: dict[str, int] = {}
    before: dict[str, str | None] = {}
    for spec in in_order(snapshot.specs):
        if spec.id in chosen:
            found = [each for each in spec.own_dependencies if each in length]
            last = max(found, key=length.__getitem__, default=None)
            before[spec.id] = last
            length[spec.id] = 1 + (length[last] if last is not None else 0)
    chain: list[str] = []
    item = max(length, key=length.__getitem__, default=None)
    while item is not None:
        chain.append(item)
        item = before[item]
    return chain[::-1]
