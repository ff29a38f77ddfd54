"""Monitor: look at every loop now and then, say what is wrong with it, and respond step by step.

It runs in one control worker at a time, and two at once do no harm: what is written is a
compare-and-swap of the loop's record.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mulligan.policies.loops.health import (
    HEALTHY,
    Condition,
    HealthCheck,
    ItemHealth,
    ItemSigns,
    check_loop,
    find_conditions,
    item_health,
)
from mulligan.policies.loops.loop import ItemRecord, LoopChange, LoopRecord, LoopSnapshot, LoopState
from mulligan.policies.loops.response import LoopResponse, respond
from mulligan.policies.loops.why import ITEM_WORKERS
from mulligan.tasks.coordination.deadlocks import run_coordination
from mulligan.tasks.loops.change import NoSuchLoop, change_loop
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.report import generate_report
from mulligan.tasks.loops.view import LoopView, view_loop, why_of
from mulligan.tasks.ports.ledger import LiveItem, Requester

__all__ = ["alert", "check_all", "check_health", "detect_stuck", "generate_report", "run_monitor"]
log = logging.getLogger(__name__)

_MONITOR = Requester(by="monitor")
#: The states in which items may have begun.
_BEGUN: frozenset[LoopState] = frozenset({"running", "waiting", "paused", "blocked"})
#: The causes of a standstill that nobody has declared.
_UNDECLARED = frozenset({"worker", "planning"})


@dataclass(frozen=True, kw_only=True)
class LoopStatus:
    """A loop, the states of its items, and its health."""

    loop: LoopRecord
    records: Mapping[str, ItemRecord]
    check: HealthCheck


def run_monitor(context: LoopContext) -> int:
    """Reconcile and check every loop, and respond. Return how much was done."""
    if not context.ledger.has_loops():
        return 0
    done = reconcile(context) + run_coordination(context)
    now = context.ledger.now()
    for status in check_all(context):
        done += alert(context, status.loop, detect_stuck(context, status, now), now)
    return done


def reconcile(context: LoopContext) -> int:
    """Let no loop say that an item runs when nothing is left that would run it."""
    begun = [each.name for each in context.ledger.loops() if each.state in _BEGUN]
    done, publish = context.ledger.reconcile_loops(begun)
    for line in done:
        log.warning("Reconciled %s", line)
    if publish:
        context.publish(publish)
    return len(done)


def check_all(
    context: LoopContext, *, tenant: str | None = None, owner: str | None = None
) -> list[LoopStatus]:
    """Return the health of every loop, the newest first. It reads no specs, so that it is cheap.

    ``tenant``, ``owner``: whose loops the caller sees; None for all.
    """
    loops = [each for each in context.ledger.loops() if each.is_of(tenant, owner)]
    running = [each.name for each in loops if each.state == "running"]
    items = dict(zip(running, context.ledger.loop_items(running), strict=True))
    live, missing = context.ledger.live_items(), context.missing_pools()
    set_slots = context.ledger.loop_slots()
    has_free_slots = len(live) < (context.slots() if set_slots is None else set_slots)
    found, now = [], context.ledger.now()
    for loop in loops:
        records = items.get(loop.name, {})
        own = [each for each in live if each.loop == loop.name]
        since = None
        if not own and has_free_slots and _stands_still(loop, records, now):
            try:
                since = _unserved_since(context, view_loop(context, loop.name))
            except NoSuchLoop:
                continue  # it was deleted meanwhile
        served = ITEM_WORKERS not in missing
        checked = _check_items(context, own, records, now, served=served)
        check = check_loop(loop, checked, now, unserved_since=since)
        found.append(LoopStatus(loop=loop, records=records, check=check))
    return found


def check_health(context: LoopContext, view: LoopView) -> HealthCheck:
    """Return the health of a loop that was read."""
    loop, records, now = view.snapshot.loop, view.snapshot.items, context.ledger.now()
    own = [each for each in view.reading.fleet.live if each.loop == loop.name]
    still = not own and _stands_still(loop, records, now)
    since = _unserved_since(context, view) if still else None
    served = ITEM_WORKERS not in view.missing_pools
    items = _check_items(context, own, records, now, served=served)
    return check_loop(loop, items, now, unserved_since=since)


def _check_items(
    context: LoopContext,
    live: Sequence[LiveItem],
    records: Mapping[str, ItemRecord],
    now: float,
    *,
    served: bool,
) -> list[ItemHealth]:
    return [
        item_health(_signs(context, each, records, served=served), now, served=served)
        for each in live
    ]


def _signs(
    context: LoopContext, live: LiveItem, records: Mapping[str, ItemRecord], *, served: bool
) -> ItemSigns:
    record = records.get(live.item, ItemRecord())
    since = live.claimed_at or record.since
    if not live.held and not served:
        since = _queued_since(context, live) or since
    return ItemSigns(
        item=live.item,
        job_id=live.job_id,
        attempt=live.attempt,
        worker=live.worker,
        since=since,
        renewed_at=live.renewed_at,
        held=live.held,
        progress=live.progress,
    )


def _queued_since(context: LoopContext, live: LiveItem) -> float | None:
    job = context.ledger.job(live.job_id)
    return job.attempts[-1].queued_at if job and job.attempts else None


def _stands_still(loop: LoopRecord, records: Mapping[str, ItemRecord], now: float) -> bool:
    return loop.state == "running" and now - _changed_at(loop, records) >= HEALTHY


def _changed_at(loop: LoopRecord, records: Mapping[str, ItemRecord]) -> float:
    return max((each.since for each in records.values()), default=loop.since)


def _unserved_since(context: LoopContext, view: LoopView) -> float | None:
    """Return since when nothing runs for lack of workers; None if something else holds it back."""
    if why_of(context, view).cause not in _UNDECLARED:
        return None
    return _changed_at(view.snapshot.loop, view.snapshot.items)


# -- the response ----------------------------------------------------------------------------------


def detect_stuck(context: LoopContext, status: LoopStatus, now: float) -> list[Condition]:
    """Return what about a loop should not last."""
    rules = context.stuck_rules()
    return find_conditions(status.loop, status.records, status.check, now, rules)


def alert(
    context: LoopContext, loop: LoopRecord, conditions: Sequence[Condition], now: float
) -> int:
    """Take the steps that are due for these conditions, each once. Return whether one was."""
    if not _response(loop, conditions, now).alarms:
        return 0

    def decide(found: LoopSnapshot, now: float) -> LoopChange:
        # Another control worker may have taken the step meanwhile.
        return _change(_response(found.loop, conditions, now))

    try:
        change_loop(context, loop.name, _MONITOR, decide)
    except NoSuchLoop:
        return 0
    return 1


def _response(loop: LoopRecord, conditions: Sequence[Condition], now: float) -> LoopResponse:
    if loop.state == "paused" and loop.paused_by == "monitor":
        return LoopResponse(incidents=loop.incidents)  # it ends when a person has resumed the loop
    may_halt = loop.state == "running" and "escalate" in loop.config.heals
    return respond(loop.incidents, conditions, may_halt=may_halt, now=now)


def _change(response: LoopResponse) -> LoopChange:
    if not response.alarms:
        return LoopChange()
    change = LoopChange(incidents=response.incidents, alarms=response.alarms)
    if not response.halts:
        return change
    return replace(change, state="paused", paused_by="monitor", reason=response.halts)
