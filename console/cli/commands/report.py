"""`mulligan report`: figures over the ledger, as text, JSON, Markdown or an HTML page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from mulligan.console.cli.open_ledgers import open_located_ledger
from mulligan.console.cli.options import Json
from mulligan.console.cli.output import screen
from mulligan.console.reports.cost_report import cost_report
from mulligan.console.reports.failure_report import failures_report
from mulligan.console.reports.html_report import html
from mulligan.console.reports.markdown_report import markdown, plain
from mulligan.console.reports.report_view import (
    Day,
    ReportView,
    budget_view,
    cost_view,
    delayed_verification_view,
    failures_view,
    immediate_loop_view,
)
from mulligan.policies.cycles.report import (
    CycleRow,
    budget_report,
    delayed_verification_report,
    exhausted,
    immediate_loop_report,
    verified,
)
from mulligan.policies.figures.failure_ranking import RankingFilter
from mulligan.workers.figures.fold import Fold
from mulligan.workers.figures.windows import FigureReader
from mulligan.workers.ledger.cycle_rows import CycleRows
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.settings.model import Settings, load_settings

WindowDays = Annotated[int, typer.Option(help="Days to look back.", min=1, max=365)]
Limit = Annotated[int, typer.Option(help="Maximum cycles, newest first.", min=10, max=50_000)]
Output = Annotated[
    Path | None, typer.Option(help="Write the report to this file, as JSON or Markdown.")
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown.")]
Html = Annotated[Path | None, typer.Option(help="Write an HTML page with charts to this file.")]
Window = Annotated[str, typer.Option(help="Time to look back: 1h, 24h, 7d…")]


@dataclass(frozen=True, kw_only=True)
class Form:
    """How somebody wants to have a report."""

    json: bool
    markdown: bool
    output: Path | None
    html: Path | None


# -- over cycles -----------------------------------------------------------------------------------


def immediate_loop(
    window_days: WindowDays = 30,
    limit: Limit = 5000,
    output: Output = None,
    json: Json = False,
    markdown: Markdown = False,
    html: Html = None,
) -> None:
    """How low scores were retried, and how soon."""
    form = Form(json=json, markdown=markdown, output=output, html=html)
    _over_cycles(
        immediate_loop_report,
        immediate_loop_view,
        lambda row: row.retried,
        form,
        window_days,
        limit,
    )


def delayed_verification(
    window_days: WindowDays = 30,
    limit: Limit = 5000,
    output: Output = None,
    json: Json = False,
    markdown: Markdown = False,
    html: Html = None,
) -> None:
    """Which delayed verifications counted, and why not."""
    form = Form(json=json, markdown=markdown, output=output, html=html)
    _over_cycles(
        delayed_verification_report, delayed_verification_view, verified, form, window_days, limit
    )


def budget(
    window_days: WindowDays = 30,
    limit: Limit = 5000,
    output: Output = None,
    json: Json = False,
    markdown: Markdown = False,
    html: Html = None,
) -> None:
    """How often a budget or guardrail prevented a retry."""
    form = Form(json=json, markdown=markdown, output=output, html=html)
    _over_cycles(budget_report, budget_view, exhausted, form, window_days, limit)


def _over_cycles(
    report: Callable[..., dict[str, Any]],
    view: Callable[[Mapping[str, Any], Sequence[Day]], ReportView],
    chosen: Callable[[CycleRow], bool],
    form: Form,
    window_days: int,
    limit: int,
) -> None:
    with _opened() as (settings, ledger):
        now = ledger.now()
        since = now - window_days * 86400
        rows = CycleRows(ledger.calls, settings).since(since, limit=limit)
    made = report(rows, now=now, window_days=window_days, limit=limit)
    _tell(made, view(made, _by_day(rows, since, now, chosen)), form)


def _by_day(
    rows: Sequence[CycleRow], since: float, now: float, chosen: Callable[[CycleRow], bool]
) -> list[Day]:
    """Cycles by the day they were created: those that are chosen, and the others."""
    first, last = int(since // 86400), int(now // 86400)
    days = {day: [0.0, 0.0] for day in range(first, last + 1)}
    for row in rows:
        day = min(last, max(first, int(row.created_at // 86400)))
        days[day][0 if chosen(row) else 1] += 1
    return [
        (datetime.fromtimestamp(day * 86400, UTC).strftime("%Y-%m-%d"), (yes, no))
        for day, (yes, no) in days.items()
    ]


# -- over events -----------------------------------------------------------------------------------


def failures(
    window: Window = "24h",
    kind: Annotated[str | None, typer.Option(help="Only this kind of failure.")] = None,
    task_type: Annotated[str | None, typer.Option(help="Only this task type.")] = None,
    model: Annotated[str | None, typer.Option(help="Only this model.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum signatures.", min=1, max=500)] = 50,
    output: Output = None,
    json: Json = False,
    markdown: Markdown = False,
    html: Html = None,
) -> None:
    """The most frequent failures and their repairs."""
    choice = RankingFilter(kind=kind, task_type=task_type, model=model, tenant=tenant)
    with _opened() as (settings, ledger):
        figures = _folded(ledger, settings)
        now = ledger.now()
        report = failures_report(figures, window=window, now=now, choice=choice, limit=limit)
    form = Form(json=json, markdown=markdown, output=output, html=html)
    _tell(report, failures_view(report), form)


def cost(
    by: Annotated[
        str,
        typer.Option(
            help="Groups, separated by commas: task_type, runner, model, tenant, label, label:NAME."
        ),
    ] = "task_type,model",
    window: Window = "7d",
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    output: Output = None,
    json: Json = False,
    markdown: Markdown = False,
    html: Html = None,
) -> None:
    """Tokens and money spent, by task type and model."""
    with _opened() as (settings, ledger):
        figures = _folded(ledger, settings)
        now = ledger.now()
        report = cost_report(figures, settings, by=by, window=window, now=now, tenant=tenant)
    form = Form(json=json, markdown=markdown, output=output, html=html)
    _tell(report, cost_view(report), form)


def _folded(ledger: RedisLedger, settings: Settings) -> FigureReader:
    """Figures up to now: a ledger whose workers are gone has nobody else to add them up."""
    fold = Fold(ledger.calls, settings)
    while fold.run():
        pass
    return FigureReader(ledger.calls, settings)


# -- telling ---------------------------------------------------------------------------------------


@contextmanager
def _opened() -> Iterator[tuple[Settings, RedisLedger]]:
    settings = load_settings()
    with open_located_ledger(settings) as ledger:
        yield settings, ledger


def _tell(report: Mapping[str, Any], view: ReportView, form: Form) -> None:
    """Files first. Nothing is printed beside them unless somebody asked for it."""
    if form.html is not None:
        _write(form.html, html(view))
    if form.output is not None:
        as_json = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        _write(form.output, markdown(view) if form.markdown else as_json)
    if form.json:
        screen.emit(report)
    elif form.markdown and form.output is None:
        screen.say(markdown(view).rstrip())
    elif form.output is None and form.html is None:
        screen.say(plain(view))


def _write(path: Path, text: str) -> None:
    """Whole or not at all: a reader never sees half a report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
    screen.note(f"wrote {path}")
