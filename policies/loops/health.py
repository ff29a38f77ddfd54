"""Whether a loop and its running items are alive, and what about them needs somebody.

Two signals count for an item that runs: its lease, which a thread renews that does not do the work,
and its progress, from evidence. The times here are what people see; what is done about a silent
agent has its own clocks (stuck.py), and so has what is done about a loop (response.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mulligan.policies.figures.format import duration
from mulligan.policies.loops.loop import GAVE_UP, ItemRecord, LoopRecord
from mulligan.policies.loops.progress import AgentProgress
from mulligan.policies.loops.stuck import (
    RULES,
    Rule,
    RuleName,
    consecutive_failures,
    finding_of,
    no_pass,
)

#: ``idle``: nothing is expected of it, because it was not started, is paused or has ended.
LoopHealth = Literal["healthy", "degraded", "dead", "idle"]
#: What is missing of an item or a loop. ``worker``: nobody serves its pool.
MissingSignal = Literal["", "lease", "progress", "worker", "planner"]
#: What a running item waits for. Waiting for it is no sign of trouble.
ItemWaits = Literal["", "model", "tool", "verifier", "worker"]
#: Seconds without a signal.
HEALTHY = 60.0
DEGRADED = 300.0
#: Seconds for which an agent may wait for its model or a tool before it counts as dead.
WAITING = 600.0
#: Seconds within which a running loop is planned again if nothing changes.
PLANNED_EVERY = 60.0
_BY_SEVERITY: dict[LoopHealth, int] = {"idle": 0, "healthy": 0, "degraded": 1, "dead": 2}


@dataclass(frozen=True, kw_only=True)
class ItemSigns:
    """The signs of life of an item that has a slot."""

    item: str
    job_id: str = ""
    attempt: int = 1
    worker: str = ""
    #: Since when it runs, or waits for a worker.
    since: float
    #: When its worker renewed its lease; None if a verifier or nobody has it.
    renewed_at: float | None = None
    #: Whether a worker runs or verifies it.
    held: bool = False
    progress: AgentProgress | None = None


@dataclass(frozen=True, kw_only=True)
class ItemHealth:
    """The health of an item that has a slot."""

    item: str
    job_id: str
    attempt: int
    worker: str
    status: LoopHealth
    #: The signal that is missing, and when it was last seen.
    missing: MissingSignal = ""
    since: float | None = None
    waits_on: ItemWaits = ""
    #: The newest evidence of progress; None if nothing is known.
    last_progress: float | None = None
    #: Whether its processes are stopped (state letter T).
    stopped: bool = False
    #: What a stuck rule has found, in words.
    finding: str = ""


def item_health(signs: ItemSigns, now: float, *, served: bool = True) -> ItemHealth:
    """Return the health of an item by the worse of its two signals.

    ``served``: whether workers serve its pool. Then it may wait for one as long as they are busy.
    """
    progress, waits = signs.progress or AgentProgress(), _waits_on(signs)
    status: LoopHealth = "healthy"
    missing: MissingSignal = ""
    since: float | None = None
    stopped = signs.held and progress.state == "T"
    last = progress.last[1] if signs.held and progress.last else None
    if waits == "worker" and not served:
        # Since when nobody serves it is not known: only how long it has waited at most.
        status = "healthy" if now - signs.since < HEALTHY else "degraded"
        missing = "worker"
    elif signs.renewed_at is not None:
        status, missing, since = by_silence(now - signs.renewed_at), "lease", signs.renewed_at
        shown = _by_progress(last, waits, now, stopped=stopped)
        if _BY_SEVERITY[shown] > _BY_SEVERITY[status]:
            status, missing, since = shown, "progress", last
    lacks = status != "healthy"
    return ItemHealth(
        item=signs.item,
        job_id=signs.job_id,
        attempt=signs.attempt,
        worker=signs.worker,
        status=status,
        missing=missing if lacks else "",
        since=since if lacks else None,
        waits_on=waits,
        last_progress=last,
        stopped=stopped,
        finding=progress.finding if signs.held else "",
    )


def _waits_on(signs: ItemSigns) -> ItemWaits:
    if not signs.held:
        return "worker"
    if signs.renewed_at is None:
        return "verifier"
    return signs.progress.waits_on if signs.progress else ""


def _by_progress(last: float | None, waits: ItemWaits, now: float, *, stopped: bool) -> LoopHealth:
    """Return what the evidence says. Without any, nothing is known."""
    if last is None:
        return "degraded" if stopped else "healthy"
    status = by_silence(now - last)
    if status == "dead" and waits and not stopped and now - last < WAITING:
        return "degraded"
    return "degraded" if stopped and status == "healthy" else status


def by_silence(seconds: float) -> LoopHealth:
    """Return the health of what has been silent for so long."""
    if seconds < HEALTHY:
        return "healthy"
    return "degraded" if seconds < DEGRADED else "dead"


@dataclass(frozen=True, kw_only=True)
class HealthCheck:
    """The health of a loop: that of its worst item, or of its planner if nothing runs."""

    status: LoopHealth
    missing: MissingSignal = ""
    since: float | None = None
    #: The item that decides; empty if none does.
    item: str = ""
    items: Sequence[ItemHealth] = ()


def check_loop(
    loop: LoopRecord,
    items: Sequence[ItemHealth],
    now: float,
    *,
    unserved_since: float | None = None,
) -> HealthCheck:
    """Return the health of a loop. One that was just started has as long as any other.

    ``items``: those that have a slot. ``unserved_since``: since when it waits for workers that are
    not there, if nothing else holds it back.
    """
    if loop.state != "running":
        return HealthCheck(status="idle", items=items)
    if items:
        worst = max(items, key=lambda each: _BY_SEVERITY[each.status])
        return HealthCheck(
            status=worst.status,
            missing=worst.missing,
            since=worst.since,
            item=worst.item if worst.missing else "",
            items=items,
        )
    planned = max(loop.since, loop.planned_at or 0.0)
    found = [
        HealthCheck(
            status=by_silence(now - planned - PLANNED_EVERY), missing="planner", since=planned
        )
    ]
    if unserved_since is not None:
        silent = now - max(unserved_since, loop.since)
        found.append(HealthCheck(status=by_silence(silent), missing="worker", since=unserved_since))
    worse = max(found, key=lambda each: _BY_SEVERITY[each.status])
    return HealthCheck(status="healthy") if worse.status == "healthy" else worse


# -- what needs somebody ---------------------------------------------------------------------------

#: ``stuck``: what a rule has found in a session. ``no_pass``, ``failures``: of the whole loop.
Trouble = Literal[
    "lease", "progress", "worker", "planner", "stuck", "no_pass", "failures", "blocked"
]


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Something about a loop that should not last."""

    signal: Trouble
    #: Empty: the whole loop.
    item: str = ""
    since: float
    text: str

    @property
    def key(self) -> str:
        return f"{self.signal}:{self.item}"


def find_conditions(
    loop: LoopRecord,
    records: Mapping[str, ItemRecord],
    check: HealthCheck,
    now: float,
    rules: Mapping[RuleName, Rule] = RULES,
) -> list[Condition]:
    """Return what needs somebody, if it lasts."""
    if loop.state == "blocked":
        return [Condition(signal="blocked", since=loop.since, text=f"blocked: {loop.reason}")]
    if loop.state != "running":
        return []
    running = [each.item for each in check.items if each.waits_on != "worker"]
    found = [_no_pass(loop, records, running, now, rules), _failures(records, rules)]
    return [*_of_signals(check, now), *(each for each in found if each is not None)]


_WORDS: dict[MissingSignal, str] = {
    "": "",
    "lease": "its worker has not renewed its lease",
    "progress": "there is no sign of progress",
    "worker": "no worker serves its pool",
    "planner": "nobody has planned it",
}


def missing_words(missing: MissingSignal, since: float | None, now: float) -> str:
    """Say which signal is missing, and since when."""
    return _WORDS[missing] + ("" if since is None else f" for {duration(now - since)}")


def _of_signals(check: HealthCheck, now: float) -> Iterator[Condition]:
    """Yield the missing signals. Silence of an agent alone is common, until it counts as dead."""
    for each in check.items:
        words = missing_words(each.missing, each.since, now)
        since = now if each.since is None else each.since
        if each.finding:
            # What it has found may quote what the agent did, which is not for everybody.
            text = f"{each.item}: its agent repeats itself"
            yield Condition(signal="stuck", item=each.item, since=now, text=text)
        elif each.missing and (each.missing != "progress" or each.status == "dead"):
            text = f"{each.item}: {words}"
            yield Condition(signal=each.missing, item=each.item, since=since, text=text)
    if not check.items and check.missing:
        text = missing_words(check.missing, check.since, now)
        yield Condition(signal=check.missing, since=check.since or now, text=text)


def _no_pass(
    loop: LoopRecord,
    records: Mapping[str, ItemRecord],
    running: Iterable[str],
    now: float,
    rules: Mapping[RuleName, Rule],
) -> Condition | None:
    """Find that no item has passed for long, although one runs all the time.

    ``running``: the items that workers run or verify.
    """
    begun = [records[item].since for item in running if item in records]
    passed = (each.since for each in records.values() if each.state == "passed")
    if not begun:
        return None
    since = max(loop.since, min(begun), max(passed, default=0.0))
    found = finding_of("no_pass", no_pass(now, since), rules)
    return None if found is None else Condition(signal="no_pass", since=since, text=found.said)


def _failures(
    records: Mapping[str, ItemRecord], rules: Mapping[RuleName, Rule]
) -> Condition | None:
    """Find that the last items that ended have failed, one after the other."""
    ended = sorted(
        (record.since, item, record.state == "passed")
        for item, record in records.items()
        if record.state in GAVE_UP or record.state == "passed"
    )
    times = consecutive_failures([passed for _, _, passed in ended])
    found = finding_of("consecutive_failures", times, rules)
    if found is None:
        return None
    failed = list(reversed(ended))[: int(rules["consecutive_failures"].threshold)]
    names = ", ".join(item for _, item, _ in failed)
    return Condition(signal="failures", since=failed[-1][0], text=f"{found.said}: {names}")
