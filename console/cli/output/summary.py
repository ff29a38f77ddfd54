"""The end of a run: the table, the figures and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table

from mulligan.console.cli.output import screen
from mulligan.console.cli.output.prompt_diff import print_repair
from mulligan.console.reports.run_figures import RunFigures, tokens_of
from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.figures.format import duration, number
from mulligan.tasks.jobs.job_story import failed_with, first_try, repaired_by, score_path
from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.verifiers.pytest.pytest_subprocess import LANDLOCK_WARNING

_STATUS_WORDS = {
    "completed": "completed",
    "escalated": "escalated",
    "cancelled": "cancelled",
    "pending_delayed_verification": "awaiting delayed verification",
    "pending_immediate_retry": "awaiting their retry",
}
_MOST_ROWS = 60
_STYLES = {"succeeded": None, "escalated": "yellow"}


def print_summary(
    views: Sequence[JobView],
    *,
    accepted: int,
    show_repair: bool = False,
    suggest_up: bool = False,
    home: Path | None = None,
) -> None:
    """Print the end of a run; ``home`` is named if the next command would not find it."""
    if show_repair:
        print_repair(views)
    shown = choose_rows(views)
    screen.out().print(jobs_table(shown))
    if len(shown) < len(views):
        screen.say(f"… and {len(views) - len(shown):,} more; see `mulligan jobs list`")
    for line in summary_lines(RunFigures.of(views, accepted=accepted)):
        screen.say(line)
    if any(LANDLOCK_WARNING in result.warnings for result in _results(views)):
        screen.note(f"warning: {LANDLOCK_WARNING}", style="yellow")
    if views:
        screen.say(next_line(views, home, suggest_up=suggest_up), style="dim")


def _results(views: Sequence[JobView]) -> Iterator[VerificationResult]:
    verdicts = (attempt.verdict for view in views for attempt in view.attempts)
    return (result for verdict in verdicts if verdict for result in verdict.results)


def choose_rows(views: Sequence[JobView]) -> list[JobView]:
    """Return all jobs if there are few; otherwise first those that did not succeed at once."""
    if len(views) <= _MOST_ROWS:
        return list(views)
    return sorted(views, key=first_try)[:_MOST_ROWS]


def jobs_table(views: Sequence[JobView]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("job", no_wrap=True, overflow="ellipsis", max_width=28)
    table.add_column("tries", justify="right")
    table.add_column("score", no_wrap=True)
    table.add_column("failed with", no_wrap=True, overflow="ellipsis", max_width=34)
    table.add_column("repaired by", no_wrap=True, overflow="ellipsis", max_width=40)
    table.add_column("tokens", justify="right")
    for view in views:
        tokens = tokens_of(view)
        table.add_row(
            view.job.label,
            str(len(view.attempts)),
            score_path(view),
            failed_with(view),
            repaired_by(view),
            number(tokens),
            style=_STYLES.get(view.state, "red"),
        )
    return table


def summary_lines(figures: RunFigures) -> list[str]:
    first = [
        f"first try {figures.first_try}/{figures.jobs}"
        f" → after repair {figures.succeeded}/{figures.jobs}"
    ]
    if figures.retry_p50_ms is not None:
        first.append(f"retry p50 {duration(figures.retry_p50_ms / 1000)}")
    if figures.tokens is not None:
        first.append(f"{number(figures.tokens)} tokens, {number(figures.repair_tokens)} on repairs")
    second = [_cycles(figures.cycles), f"lost {figures.lost}"]
    if figures.unfinished:
        second.append(f"unfinished {figures.unfinished}")
    return [" · ".join(first), " · ".join(second)]


def _cycles(counts: dict[str, int]) -> str:
    if not counts:
        return "cycles 0"
    parts = [f"{counts[name]} {text}" for name, text in _STATUS_WORDS.items() if counts.get(name)]
    return f"cycles {sum(counts.values())}: {', '.join(parts)}"


def next_line(views: Sequence[JobView], home: Path | None, *, suggest_up: bool) -> str:
    """Name the job to look at: an escalated one, else one that needed repair."""
    escalated = [view for view in views if view.state == "escalated"]
    repaired = [view for view in views if len(view.attempts) > 1]
    shown = (escalated or repaired or views)[0]
    names = [view.job.label for view in views]
    ref = shown.job.label if names.count(shown.job.label) == 1 else shown.id
    ref = f"'{ref}'" if " " in ref else ref
    diff = " --diff" if len(shown.attempts) > 1 else ""
    program = screen.program_name()
    show = f"{program} jobs show {ref}{diff}"
    if home:
        return f"next: MULLIGAN_HOME={home} {show}"
    return f"next: {show} · {program} up" if suggest_up else f"next: {show}"
