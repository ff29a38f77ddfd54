"""The overview page: health, what needs attention, figures, queues, failures and live events."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from mulligan.console.http.access import Reader
from mulligan.console.http.context import ConsoleContext
from mulligan.console.page import live_list as live
from mulligan.console.page.render import FRAGMENT_HEADER, ShortText, Text, address, page
from mulligan.console.reports import charts
from mulligan.console.reports.overview import overview
from mulligan.console.reports.overview_values import WINDOWS, Overview, TopFailure
from mulligan.policies.figures.format import minute
from mulligan.workers.celery.broker.queues import JOB_QUEUES

_HEALTH = {
    "ok": ("healthy", "●", "good"),
    "degraded": ("degraded", "◐", "odd"),
    "down": ("down", "○", "bad"),
}
_NO_MONEY = {
    "prices": "no prices set",
    "usage": "usage unknown",
    "price": "no price for these tokens",
}
_SERIES = ("first try", "repaired", "escalated")


def add(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/")
    def home(
        request: Request, caller: Reader, window: ShortText = "1h", tenant: Text = ""
    ) -> HTMLResponse:
        shown = caller.tenant_filter(tenant)
        chosen = shown if caller.tenant is None else None
        bound = caller.tenant is not None
        figures = overview(
            context.services,
            context.app,
            window=window,
            tenant=shown,
            bound=bound,
            owner=caller.owner,
        )
        # The script updates the list itself: only the whole page contains one.
        is_fragment = FRAGMENT_HEADER in request.headers
        rows, after = (
            ((), "") if is_fragment else live.newest(context, tenant=shown, owner=caller.owner)
        )
        label = f"{context.settings.tenant_label}:{chosen}" if chosen else None
        return page(
            request,
            "overview.html",
            caller=caller,
            o=figures,
            chosen=chosen,
            live=rows,
            live_after=after,
            live_jobs=address("/jobs", label=label),
            live_max_events=live.MAX_EVENTS,
            **_template_values(figures),
        )


def _template_values(figures: Overview) -> dict[str, Any]:
    """Return what the template needs besides the figures."""
    word, sign, tone = _HEALTH[figures.health.state]
    any_jobs = (
        figures.success.ended or figures.running or any(queue.waiting for queue in figures.queues)
    )
    return {
        "chart": outcomes_chart(figures),
        "chart_most": max(
            (s.first_try + s.repaired + s.escalated for s in figures.outcomes), default=0
        ),
        "chart_marks": bool(figures.changes),
        "health_mark": sign,
        "health_tone": tone,
        "health_word": word,
        "no_jobs": not any_jobs,
        "now": figures.at,
        "pausable": JOB_QUEUES,
        "series": _SERIES,
        "cause_and_place": cause_and_place,
        "no_money": _NO_MONEY,
        "windows": WINDOWS,
    }


def outcomes_chart(figures: Overview) -> Markup:
    columns = [
        charts.Column(
            title=f"{minute(step.at)} UTC",
            parts=(step.first_try, step.repaired, step.escalated),
            mark="settings changed"
            if any(step.at <= at < step.at + figures.step for at in figures.changes)
            else "",
        )
        for step in figures.outcomes
    ]
    totals = [sum(column.parts[place] for column in columns) for place in range(len(_SERIES))]
    label = "Outcomes: " + ", ".join(
        f"{name} {total:g}" for name, total in zip(_SERIES, totals, strict=True)
    )
    return charts.stacked_bars(columns, label=label, names=_SERIES)


def cause_and_place(failure: TopFailure) -> str:
    """Return the cause and the place, without repeating each other or the kind."""
    parts = dict.fromkeys((failure.cause, failure.place))
    return " ".join(part for part in parts if part and part != failure.kind)
