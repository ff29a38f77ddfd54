"""Report: how far a loop is, what it cost, what failed and healed, and when it may end."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.policies.loops.end_estimate import estimate_end, longest_chain
from mulligan.policies.loops.loop import GAVE_UP, LoopSnapshot, ShownState
from mulligan.policies.loops.loop_report import (
    LastRun,
    LeftItem,
    LoopReport,
    budget_caveat,
    burn_down,
    failure_groups,
    gave_up_groups,
    heal_counts,
    left_items,
    loop_costs,
    newest_heals,
)
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.view import LoopView, view_loop, why_item_of

#: Rows of each list, unless others are asked for.
ROWS = 100
#: Jobs that a report reads. Each takes a call, and a loop may have run thousands.
_MOST_RUNS = 100


def generate_report(
    context: LoopContext,
    name: str,
    *,
    rows: int = ROWS,
    tenant: str | None = None,
    owner: str | None = None,
    texts: bool = True,
) -> LoopReport:
    """Report on a loop. Raises NoSuchLoop.

    ``rows``: the most of each list. ``tenant``, ``owner``: whose loops the caller sees.
    ``texts``: whether to quote messages of failures.
    """
    view = view_loop(context, name, tenant=tenant, owner=owner)
    snapshot, loop, now = view.snapshot, view.snapshot.loop, context.ledger.now()
    ran = [spec.id for spec in snapshot.specs if snapshot.record(spec.id).job_id]
    runs = _last_runs(context, snapshot, ran)
    costs = loop_costs(snapshot, view.reading.budget, view.reading.unknown)
    left = left_items(snapshot, view.summary.live)
    chain = longest_chain(snapshot, {item for item, _ in left})
    return LoopReport(
        id=loop.name,
        status=loop.state,
        reason=loop.reason,
        at=now,
        created_at=loop.created_at,
        started_at=loop.started_at,
        finished_at=loop.finished_at,
        total=len(snapshot.specs),
        counts=view.summary.counts,
        estimate=estimate_end(
            snapshot,
            [run.seconds for run in runs if run.seconds is not None],
            now,
            caveat=budget_caveat(snapshot, costs),
        ),
        burn_down=burn_down(snapshot, now),
        cost=costs,
        gave_up=gave_up_groups(snapshot, rows),
        failures=failure_groups(snapshot, runs, limit=rows, texts=texts),
        runs_read=len(runs),
        runs=len(ran),
        healed=heal_counts(snapshot.heals),
        heals=newest_heals(snapshot.heals, limit=rows, texts=texts),
        left=[_left_item(view, item, state, now) for item, state in left[:rows]],
        left_total=len(left),
        critical_path=chain[:rows],
        critical_path_length=len(chain),
    )


def _left_item(view: LoopView, item: str, state: ShownState, now: float) -> LeftItem:
    spec, why = view.snapshot.spec(item), why_item_of(view, item, now)
    return LeftItem(
        id=item,
        title=spec.title if spec else "",
        state=state,
        since=view.snapshot.record(item).since,
        cause=why.cause,
        why=why.text,
        command=why.command,
    )


def _last_runs(context: LoopContext, snapshot: LoopSnapshot, items: Sequence[str]) -> list[LastRun]:
    """Read the jobs of these items: what gave up first, then the newest."""

    def urgency(item: str) -> tuple[bool, float]:
        record = snapshot.record(item)
        return record.state not in GAVE_UP, -record.since

    chosen = sorted(items, key=urgency)[:_MOST_RUNS]
    return [found for item in chosen if (found := _last_run(context, snapshot, item)) is not None]


def _last_run(context: LoopContext, snapshot: LoopSnapshot, item: str) -> LastRun | None:
    """Return what an item's job says; None if it is no longer kept."""
    record = snapshot.record(item)
    job = context.ledger.job(record.job_id)
    if job is None:
        return None
    ended = job.finished_at if record.state == "passed" else None
    verdicts = [each.verdict for each in job.attempts if each.verdict is not None]
    return LastRun(
        item=item,
        seconds=None if ended is None else max(0.0, ended - job.created_at),
        failures=[each.failure for each in verdicts if each.failure and not each.success],
    )
