"""`mulligan jobs`: list, show, follow and cancel jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from mulligan.console.cli.exit_codes import ExitCode
from mulligan.console.cli.find_job import find_job
from mulligan.console.cli.follow_jobs import FollowedJobs
from mulligan.console.cli.open_ledgers import open_located_ledger
from mulligan.console.cli.options import Json
from mulligan.console.cli.output import screen
from mulligan.console.cli.output.job_story import STATE_STYLES, print_story
from mulligan.console.cli.output.live_progress import describe_event
from mulligan.console.reports.job_document import job_document, job_summary
from mulligan.console.reports.providers import awaited_provider
from mulligan.policies.figures.format import number, timestamp
from mulligan.policies.jobs.job import TERMINAL, JobState
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import Event, JobView, LedgerReader
from mulligan.workers.backends.follow import LedgerFeed, read_feed
from mulligan.workers.settings.model import load_settings

Ref = Annotated[
    str,
    typer.Argument(metavar="REF", help="Id or its beginning, idempotency key, name or task type."),
]


def list_jobs(
    state: Annotated[JobState | None, typer.Option(help="Only jobs in this state.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum rows.", min=1, max=10_000)] = 50,
    json: Json = False,
) -> None:
    """List the newest jobs."""
    with open_located_ledger(load_settings()) as ledger:
        views = ledger.jobs(state=state, limit=limit)
    if json:
        screen.emit({"jobs": [job_summary(view) for view in views]})
    elif views:
        _print_table(views)
    else:
        screen.say(f"no jobs{f' are {state}' if state else ''}")


def _print_table(views: Sequence[JobView]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("id", "job", "state", "reason", "tokens", "created"):
        table.add_column(name, no_wrap=True, justify="right" if name == "tokens" else "left")
    for view in views:
        table.add_row(
            view.id,
            view.job.label,
            Text(view.state, style=STATE_STYLES.get(view.state, "")),
            view.reason or view.waits_for or ("unreadable" if view.unreadable else ""),
            number(view.tokens),
            timestamp(view.created_at, None),
        )
    screen.out().print(table)


def show(
    ref: Ref,
    diff: Annotated[
        bool, typer.Option("--diff", help="Show how each prompt differs from the one before.")
    ] = False,
    attempt: Annotated[int | None, typer.Option(help="Only this attempt, in full.", min=1)] = None,
    json: Json = False,
) -> None:
    """Show what happened to a job."""
    settings = load_settings()
    with open_located_ledger(settings) as ledger:
        view = find_job(ledger, ref)
        provider, now = awaited_provider(ledger, view), ledger.now()
    if attempt is not None and attempt > len(view.attempts):
        raise BadInput.at("--attempt", f"the job has {len(view.attempts)} attempts")
    if json:
        screen.emit(job_document(view))
    else:
        print_story(view, diff=diff, attempt=attempt, provider=provider, now=now)


def watch(
    ref: Annotated[str | None, typer.Argument(metavar="REF", help="Only this job.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Follow events until Ctrl-C, or until the job has ended."""
    settings = load_settings()
    with open_located_ledger(settings) as ledger:
        view = find_job(ledger, ref) if ref else None
        if view is not None and view.state in TERMINAL:
            screen.note(f"{view.job.label} has ended: {view.state}")
            return
        _follow(ledger, only=view.id if view else None, json=json)


def _follow(ledger: LedgerReader, *, only: str | None, json: bool) -> None:
    seen = FollowedJobs({})
    for reading in read_feed(
        LedgerFeed(ledger).take, follows=lambda job_id: only in (None, job_id)
    ):
        for event in reading.events:
            job = seen.note_any(event, lambda job_id: _label(ledger, job_id))
            if json:
                _print_event(event)
            elif line := describe_event(job, event):
                screen.say(line)
            if only and job.ended:
                return


def _label(ledger: LedgerReader, job_id: str) -> str:
    view = ledger.job(job_id)
    return view.job.label if view else job_id


def _print_event(event: Event) -> None:
    screen.emit({"id": event.id, "job_id": event.job_id, **event.data}, indent=None)


def cancel(ref: Ref, json: Json = False) -> None:
    """Cancel a job that has not ended."""
    settings = load_settings()
    with open_located_ledger(settings) as ledger:
        view = find_job(ledger, ref)
        state = ledger.cancel(view.id, detail="from the command line")
    if json:
        screen.emit({"id": view.id, "state": state})
    elif state == "cancelled":
        screen.say(f"{view.job.label} ({view.id}) cancelled")
    else:
        screen.complain(f"{view.job.label} ({view.id}) has already ended: {state}")
    raise typer.Exit(int(ExitCode.OK if state == "cancelled" else ExitCode.SOME_FAILED))
