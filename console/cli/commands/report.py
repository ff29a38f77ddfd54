"""`mulligan report`: reports over the ledger, as text, JSON, Markdown or an HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from mulligan.console.cli.open_ledgers import open_located_ledger
from mulligan.console.cli.options import Json
from mulligan.console.cli.output.report_output import ReportForm, deliver
from mulligan.console.reports.cost_report import cost_report, cost_view
from mulligan.console.reports.cycle_reports import (
    Day,
    budget_view,
    cycles_by_day,
    delayed_verification_view,
    immediate_loop_view,
)
from mulligan.console.reports.failure_report import failures_report, failures_view
from mulligan.console.reports.observe_report import is_observed, observe_report, observe_view
from mulligan.console.reports.report_view import ReportView
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
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.settings.model import load_settings

WindowDays = Annotated[int, typer.Option(help="Days to look back.", min=1, max=365)]
Limit = Annotated[int, typer.Option(help="Maximum cycles, newest first.", min=10, max=50_000)]
Output = Annotated[
    Path | None, typer.Option(help="Write the report to this file, as JSON or Markdown.")
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown.")]
Html = Annotated[Path | None, typer.Option(help="Write an HTML page with charts to this file.")]
Window = Annotated[str, typer.Option(metavar="DURATION", help="Time to look back: 1h, 24h, 7d…")]


# -- over cycles -----------------------------------------------------------------------------------


def _cycle_report(
    help_text: str,
    report: Callable[..., dict[str, Any]],
    view: Callable[[Mapping[str, Any], Sequence[Day]], ReportView],
    is_good: Callable[[CycleRow], bool],
) -> Callable[..., None]:
    """Return a command that prints a report over cycles."""

    def command(
        window_days: WindowDays = 30,
        limit: Limit = 5000,
        output: Output = None,
        json: Json = False,
        markdown: Markdown = False,
        html: Html = None,
    ) -> None:
        with _opened() as ledger:
            now = ledger.now()
            since = now - window_days * 86400
            rows = ledger.cycle_rows.newest(since=since, limit=limit)
        document = report(rows, now=now, window_days=window_days, limit=limit)
        form = ReportForm(json=json, markdown=markdown, output=output, html=html)
        deliver(view(document, cycles_by_day(rows, since, now, is_good)), form)

    command.__doc__ = help_text
    return command


immediate_loop = _cycle_report(
    "How low scores were retried, and how soon.",
    immediate_loop_report,
    immediate_loop_view,
    lambda row: row.retried,
)
delayed_verification = _cycle_report(
    "Why delayed verifications counted or did not.",
    delayed_verification_report,
    delayed_verification_view,
    verified,
)
budget = _cycle_report(
    "How often a budget or guardrail prevented a retry.", budget_report, budget_view, exhausted
)


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
    with _opened() as ledger:
        figures = _folded(ledger)
        report = failures_report(ledger, figures, window=window, choice=choice, limit=limit)
    form = ReportForm(json=json, markdown=markdown, output=output, html=html)
    deliver(failures_view(report), form)


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
    with _opened() as ledger:
        figures = _folded(ledger)
        now = ledger.now()
        report = cost_report(figures, ledger.settings, by=by, window=window, now=now, tenant=tenant)
    form = ReportForm(json=json, markdown=markdown, output=output, html=html)
    deliver(cost_view(report), form)


def _folded(ledger: RedisLedger) -> FigureReader:
    """Return the figures up to now. Without running workers, only this adds them up."""
    fold = Fold(ledger)
    while fold.run():
        pass
    return FigureReader(ledger)


# -- over jobs -------------------------------------------------------------------------------------


def observe(
    window_days: Annotated[int, typer.Option(help="Days to look back.", min=1, max=365)] = 7,
    limit: Annotated[
        int, typer.Option(help="Maximum jobs to look at, newest first.", min=10, max=50_000)
    ] = 5000,
    json: Json = False,
) -> None:
    """What enforcing would change for observed tasks.

    Observed tasks are those that run with mode="observe".
    """
    with _opened() as ledger:
        since = ledger.now() - window_days * 86400
        newest = ledger.jobs(limit=limit)
        found = (ledger.job(view.id) for view in newest if is_observed(view, since=since))
        report = observe_report([view for view in found if view is not None])
    report = {"window_days": window_days, "limit_reached": len(newest) >= limit, **report}
    deliver(observe_view(report), ReportForm(json=json))


@contextmanager
def _opened() -> Iterator[RedisLedger]:
    with open_located_ledger(load_settings()) as ledger:
        yield ledger
