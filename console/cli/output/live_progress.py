"""Live progress: a bar and one line per running job on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from mulligan.console.cli.follow_jobs import FollowedJob, FollowedJobs, waiting_text
from mulligan.console.cli.output import screen
from mulligan.policies.figures.format import score as format_score
from mulligan.policies.figures.format import words
from mulligan.tasks.ports.ledger import Event

Show = Callable[[FollowedJob, Event], None]
#: More lines than this would push the bar off the screen.
_MOST_LINES = 12
_STYLES = {"succeeded": "green", "escalated": "yellow", "cancelled": "dim"}


@contextmanager
def progress(following: FollowedJobs, *, quiet: bool = False) -> Iterator[Show]:
    """Yield a function that shows an event. ``quiet``: stdout is for data; use only a terminal."""
    if quiet and not sys.stderr.isatty():
        yield lambda *_: None
    elif (sys.stderr if quiet else sys.stdout).isatty():
        with _live(following, quiet=quiet) as show:
            yield show
    else:
        width = max((len(job.label) for job in following.jobs.values()), default=0)
        yield lambda job, event: _line(job, event, width)


@contextmanager
def _live(following: FollowedJobs, *, quiet: bool) -> Iterator[Show]:
    console = screen.err() if quiet else screen.out()
    with Live(console=console, get_renderable=lambda: _picture(following), transient=True) as live:

        def show(job: FollowedJob, event: Event) -> None:
            if event.type == "job" and job.ended:
                live.refresh()
                # A style passed to print would colour the live part, too.
                live.console.print(
                    Text(describe_event(job, event), style=_STYLES.get(job.state, ""))
                )

        yield show


def _picture(following: FollowedJobs) -> RenderableType:
    total, ended = len(following.jobs), len(following.ended)
    head = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=total, completed=ended, width=30)
    head.add_row(bar, Text(f"{ended}/{total} jobs"), Spinner("dots"))
    lines = Table.grid(padding=(0, 2))
    running = [job for job in following.unfinished if job.attempt]
    for job in running[:_MOST_LINES]:
        scores = " → ".join(format_score(score) for score in job.scores)
        doing = "delayed verification" if job.ended else job.doing
        lines.add_row(
            Text(f"  {job.label}"),
            Text(f"attempt {job.attempt}", style="dim"),
            Text(scores),
            Text(doing[:60], style="dim"),
        )
    if len(running) > _MOST_LINES:
        lines.add_row(Text(f"  and {len(running) - _MOST_LINES} more", style="dim"))
    if not running and not ended:
        lines.add_row(Text("  waiting for a worker", style="dim"))
    return Group(head, lines)


def _line(job: FollowedJob, event: Event, width: int) -> None:
    if line := describe_event(job, event, width):
        screen.say(line)


def describe_event(job: FollowedJob, event: Event, width: int = 0) -> str:
    """Return one line about an event that matters to people, or an empty text."""
    name = job.label.ljust(width)
    data = event.data
    match event.type, data.get("state") or data.get("status"):
        case "attempt", "settled":
            score = data.get("score")
            kind = f"  {data['kind']}" if data.get("kind") else ""
            then = f" → {words(data['next'])}" if data.get("next") else ""
            shown = f"score {format_score(score)}" if isinstance(score, int | float) else "no score"
            return f"{name}  attempt {job.attempt}  {shown}{kind}{then}"
        case "attempt", "waiting":
            return f"{name}  attempt {job.attempt}  {waiting_text(data)}"
        case "attempt", "lease_expired":
            return f"{name}  attempt {job.attempt}  its worker stopped responding; running it again"
        case "job", state if job.ended:
            return f"{name}  {state}{f': {job.reason}' if job.reason else ''}"
        case "cycle", ("completed" | "escalated" | "cancelled") as status if job.ended:
            return f"{name}  cycle {status}"
    return ""
