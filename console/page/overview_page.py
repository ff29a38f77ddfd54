"""The overview: are we healthy, what runs, what fails and why, what needs me."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from mulligan.console.http.access import Caller, needs
from mulligan.console.http.context import ConsoleContext
from mulligan.console.page import live_list as live
from mulligan.console.page.render import FRAGMENT_HEADER, address, only, page
from mulligan.console.reports import charts
from mulligan.console.reports.overview import WINDOWS, Overview, Why, overview
from mulligan.workers.celery.queues import JOB_QUEUES

Reader = Annotated[Caller, Depends(needs("producer", "ops"))]
Window = Annotated[str, Query(max_length=10)]
Tenant = Annotated[str, Query(max_length=200)]
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
        request: Request, caller: Reader, window: Window = "1h", tenant: Tenant = ""
    ) -> HTMLResponse:
        whose = only(caller, tenant)
        figures = overview(
            context.services,
            context.app,
            window=window,
            tenant=whose,
            bound=caller.tenant is not None,
        )
        # The script keeps the list itself: only the whole page begins with one.
        begins = FRAGMENT_HEADER not in request.headers
        rows, after = live.newest(context, tenant=whose) if begins else ((), "")
        return page(
            request,
            "overview.html",
            caller=caller,
            o=figures,
            chosen=whose if caller.tenant is None else None,
            live=rows,
            live_after=after,
            live_of=_jobs_of(context, whose) if caller.tenant is None else "/jobs",
            live_seen=live.LOOKED_AT,
            **shown_of(figures),
        )


def _jobs_of(context: ConsoleContext, tenant: str | None) -> str:
    """Where the jobs of a tenant are listed."""
    return address("/jobs", label=f"{context.settings.tenant_label}:{tenant}" if tenant else None)


def shown_of(figures: Overview) -> dict[str, Any]:
    """What the template needs beside the figures themselves."""
    word, sign, tone = _HEALTH[figures.health.state]
    nothing = not (
        figures.success.ended or figures.running or any(lane.waiting for lane in figures.queues)
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
        "no_jobs": nothing,
        "now": figures.at,
        "pausable": JOB_QUEUES,
        "series": _SERIES,
        "why_place": why_place,
        "no_money": _NO_MONEY,
        "windows": WINDOWS,
    }


def outcomes_chart(figures: Overview) -> Markup:
    columns = [
        charts.Column(
            title=_at(step.at),
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


def _at(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%m-%d %H:%M UTC")


def why_place(why: Why) -> str:
    """What is known beyond the kind: the cause and the place, each once."""
    parts = dict.fromkeys((why.cause, why.place))
    return " ".join(part for part in parts if part and part != why.kind)
