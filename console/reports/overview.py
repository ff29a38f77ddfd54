"""The overview of a window: one value, read in a constant number of round trips."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mulligan.console.reports.overview_figures import (
    condensed,
    cost_of,
    outcomes_of,
    speed_of,
    success_of,
    tenants_of,
    top_failures,
)
from mulligan.console.reports.overview_now import (
    count_running,
    health_of,
    needing_attention,
    queue_statuses,
    read_current_state,
)
from mulligan.console.reports.overview_values import Overview, Technique
from mulligan.policies.figures import failure_ranking as ranking
from mulligan.policies.figures import trend
from mulligan.workers.figures.windows import parse_window

if TYPE_CHECKING:
    from celery import Celery

    from mulligan.workers.services import Services


def overview(
    services: Services,
    app: Celery,
    *,
    window: str = "1h",
    tenant: str | None = None,
    bound: bool = False,
    owner: str | None = None,
    max_failures: int = 8,
) -> Overview:
    """Return the figures of a window, for one tenant or for all; raise BadInput for a bad window.

    ``bound``: the reader may know only this tenant, so the result shows nothing about others.
    ``owner``: the reader is a producer, and sees only its own jobs as examples.
    """
    seconds = parse_window(window)
    settings = services.live.current()
    figures = services.figures
    now = read_current_state(services, app, tenant=tenant, bound=bound)
    found = figures.window(seconds, now=now.at)
    buckets = condensed(found.buckets)
    rows = [bucket.rows for bucket in buckets]
    failures, more = top_failures(figures, found, tenant=tenant, limit=max_failures)
    owned = services.ledger.owned([each.example for each in failures if each.example], owner)
    failures = tuple(
        each if each.example in owned else replace(each, example="") for each in failures
    )
    return Overview(
        at=now.at,
        window=window,
        step=buckets[1].start - buckets[0].start if len(buckets) > 1 else found.seconds,
        tenant=tenant,
        health=health_of(now),
        needs_attention=needing_attention(now, tenant=tenant),
        success=success_of(rows, tenant=tenant),
        speed=speed_of(buckets, now=now.at, oldest=now.oldest_seconds, tenant=tenant),
        cost=cost_of(buckets, settings, now=now.at, spent=now.spent, tenant=tenant),
        outcomes=outcomes_of(buckets, tenant=tenant),
        queues=queue_statuses(now),
        running=count_running(now),
        task_types=tuple(sorted(trend.task_types(rows, tenant=tenant))),
        failures=failures,
        more_failures=more,
        heat=ranking.heat(rows, tenant=tenant),
        techniques=tuple(
            Technique(name=name, tried=each.tried, repaired=each.repaired)
            for name, each in ranking.techniques(rows, tenant=tenant).items()
        ),
        paused=now.paused,
        parked=now.parked,
        changes=services.ledger.config_changes.changes(since=now.at - seconds),
        tenants=tenants_of(rows, tenant=tenant),
    )
