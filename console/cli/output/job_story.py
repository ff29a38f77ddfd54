"""The story of a job on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.console.cli.output import screen
from mulligan.console.cli.output.prompt_diff import print_diff
from mulligan.policies.failures.failure import VerificationStatus
from mulligan.policies.figures.format import duration, number, score, timestamp, words
from mulligan.policies.jobs.breaker import Breaker
from mulligan.tasks.jobs.job_story import AttemptStory, CheckStory, JobStory, tell_story
from mulligan.tasks.ports.ledger import JobView

_MARKS = {
    VerificationStatus.PASS: ("✓", "green"),
    VerificationStatus.FAIL: ("✗", "red"),
    VerificationStatus.WARN: ("!", "yellow"),
    VerificationStatus.SKIPPED: ("–", "dim"),
}
STATE_STYLES = {
    "succeeded": "green",
    "escalated": "yellow",
    "cancelled": "dim",
    "running": "cyan",
    "waiting": "cyan",
}
#: Lines of an answer to show, unless one attempt is shown in full.
_ANSWER_LINES = 12


def print_story(
    view: JobView,
    *,
    diff: bool,
    attempt: int | None,
    provider: Breaker | None = None,
    now: float = 0.0,
) -> None:
    """Print a job's story; with ``attempt``, only that one, in full."""
    story = tell_story(view, provider=provider, now=now)
    _print_head(view, story)
    for each in story.attempts:
        if attempt in (None, each.number):
            _print_attempt(each, diff=diff, whole=attempt is not None)
    if attempt is not None:
        return
    if story.cycles:
        screen.say()
        for line in story.cycles:
            screen.say(line)
    if story.answer is not None:
        screen.say()
        screen.say(f"{story.answer_title}:", style="bold")
        screen.say(story.answer)


def _print_head(view: JobView, story: JobStory) -> None:
    console = screen.out()
    console.print(f"{view.job.label}  ", style="bold", end="")
    console.print(f"{story.status}  ", style=STATE_STYLES.get(view.state), end="")
    console.print(view.id, style="dim")
    runner = view.job.runner.profile or view.job.runner.kind
    facts = [f"{view.job.task_type} by {runner}", timestamp(view.created_at, None)]
    facts += [f"took {duration(view.finished_at - view.created_at)}"] if view.finished_at else []
    facts += [f"{number(view.tokens)} tokens"] if view.tokens is not None else []
    screen.say(" · ".join(facts), style="dim")
    if view.detail:
        screen.say(view.detail)
    if view.unreadable:
        screen.say(f"this release cannot read all of this job: {view.unreadable}", style="yellow")


def _print_attempt(attempt: AttemptStory, *, diff: bool, whole: bool) -> None:
    screen.say()
    screen.out().print(f"attempt {attempt.number}", style="bold", end="")
    failure = f"  {attempt.failure}" if attempt.failure else ""
    screen.say(f"  {words(attempt.mode)}  {attempt.outcome}{failure}")
    if attempt.technique:
        screen.say(f"  changed: {attempt.technique}")
    if attempt.faults:
        screen.say(f"  {attempt.faults}")
    if attempt.ended:
        screen.say(f"  its session broke off: {attempt.ended}")
    if whole:
        _print_block("asked", attempt.prompt or "")
    if diff:
        print_diff(attempt.prompt_diff(), indent="  ")
    if attempt.answer is not None and (whole or not attempt.success):
        _print_block("answered", attempt.answer, most=None if whole else _ANSWER_LINES)
    print_checks(attempt.checks)
    if attempt.coercions:
        screen.say(f"  free repairs: {', '.join(attempt.coercions)}")
    if attempt.instruction and not attempt.escalated:
        screen.say(f"  instruction: {attempt.instruction}")
    if attempt.decision:
        screen.say(f"  then: {attempt.decision}", style="yellow" if attempt.escalated else None)


def _print_block(title: str, text: str, most: int | None = None) -> None:
    lines = text.splitlines() or ["(nothing)"]
    screen.say(f"  {title}:")
    for line in lines[:most]:
        screen.say(f"    {line}", style="dim")
    if most is not None and len(lines) > most:
        screen.say(f"    … {len(lines) - most} more lines", style="dim")


def print_checks(checks: Sequence[CheckStory]) -> None:
    """Print one line per check, with its errors below."""
    console = screen.out()
    for check in checks:
        mark, style = _MARKS[check.status]
        console.print(f"  {mark} ", style=style, end="")
        points = f"  ({score(check.score)}/100)" if check.score is not None else ""
        screen.out().print(f"{check.verifier}  {check.summary}{points}", end="", soft_wrap=True)
        reservations = ", ".join(check.reservations)
        style = "yellow" if check.not_confined else "dim"
        screen.say(f"  {reservations}" if reservations else "", style=style)
        for error in check.errors:
            screen.say(f"      {error}")
        if check.more:
            screen.say(f"      … {check.more} more")
        for warning in check.warnings:
            screen.say(f"      warning: {warning}", style="yellow")
