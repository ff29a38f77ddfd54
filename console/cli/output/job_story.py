"""The story of one job: what was asked, answered, found wrong, changed and decided."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.console.cli.output import screen
from mulligan.console.cli.output.prompt_diff import print_diff
from mulligan.console.reports import words
from mulligan.console.reports.job_document import asked
from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.figures.format import duration, number, timestamp
from mulligan.policies.figures.format import score as format_score
from mulligan.policies.repair.retry import Escalate
from mulligan.policies.repair.verdict import Verdict
from mulligan.tasks.ports.ledger import AttemptView, JobView

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
#: How much of an answer is shown unless its attempt is asked for.
_ANSWER_LINES = 12
_MOST_ERRORS = 10


def print_story(view: JobView, *, diff: bool, attempt: int | None) -> None:
    _head(view)
    for each in view.attempts:
        if attempt in (None, each.plan.number):
            print_attempt(view, each, diff=diff, whole=attempt is not None)
    if attempt is None:
        _cycles(view)
        _answer(view)


def _head(view: JobView) -> None:
    console = screen.out()
    console.print(f"{view.job.label}  ", style="bold", end="")
    console.print(view.state, style=STATE_STYLES.get(view.state), end="")
    waiting = f" for {view.waiting_for}" if view.waiting_for else ""
    reason = f": {view.reason}" if view.reason else ""
    console.print(f"{waiting}{reason}  ", end="")
    console.print(view.id, style="dim")
    runner = view.job.runner.profile or view.job.runner.kind
    took = f" · took {duration(view.finished_at - view.created_at)}" if view.finished_at else ""
    tokens = "" if view.tokens is None else f" · {number(view.tokens)} tokens"
    screen.say(
        f"{view.job.task_type} by {runner} · {timestamp(view.created_at, None)}{took}{tokens}",
        style="dim",
    )
    if view.detail:
        screen.say(view.detail)


def print_attempt(view: JobView, attempt: AttemptView, *, diff: bool, whole: bool) -> None:
    verdict = attempt.verdict
    failure = verdict.failure if verdict else None
    console = screen.out()
    screen.say()
    score = f"score {format_score(verdict.score)}" if verdict else attempt.state
    console.print(f"attempt {attempt.plan.number}", style="bold", end="")
    said = f"  {words.failure_in_words(failure)}" if failure else ""
    console.print(f"  {attempt.plan.mode.replace('_', ' ')}  {score}{said}")
    if attempt.plan.technique:
        screen.say(f"  changed: {words.technique(view, attempt)}")
    if attempt.last_fault:
        screen.say(f"  {attempt.faults} transport faults, the last: {attempt.last_fault}")
    if whole:
        _block("asked", asked(view, attempt))
    if diff and attempt.plan.number > 1:
        _diff(view, attempt)
    if attempt.output is not None and (whole or not (verdict and verdict.success)):
        _block("answered", attempt.output.text, most=None if whole else _ANSWER_LINES)
    if verdict is not None:
        print_results(verdict.results)
        _decision(verdict)


def _diff(view: JobView, attempt: AttemptView) -> None:
    number = attempt.plan.number
    before = next((a for a in view.attempts if a.plan.number == number - 1), None)
    if before is not None:
        names = (f"attempt {number - 1}", f"attempt {number}")
        print_diff(asked(view, before), asked(view, attempt), names=names, indent="  ")


def _block(title: str, text: str, most: int | None = None) -> None:
    lines = text.splitlines() or ["(nothing)"]
    screen.say(f"  {title}:")
    for line in lines[:most]:
        screen.say(f"    {line}", style="dim")
    if most is not None and len(lines) > most:
        screen.say(f"    … {len(lines) - most} more lines", style="dim")


def print_results(results: Sequence[VerificationResult]) -> None:
    """One line per check, and its errors below it."""
    console = screen.out()
    for result in results:
        mark, style = _MARKS[result.status]
        console.print(f"  {mark} ", style=style, end="")
        points = f"  ({result.score:g}/100)" if result.score is not None else ""
        screen.say(f"{result.verifier_id}  {result.summary}{points}")
        errors = words.errors_beyond_summary(result)
        for error in errors[:_MOST_ERRORS]:
            place = f"{error.path}: " if error.path else ""
            screen.say(f"      {place}{error.message}")
        if len(errors) > _MOST_ERRORS:
            screen.say(f"      … {len(errors) - _MOST_ERRORS} more")


def _decision(verdict: Verdict) -> None:
    escalated = isinstance(verdict.decision, Escalate)
    if verdict.instruction and not escalated:
        screen.say(f"  instruction: {verdict.instruction.prompt_suffix}")
    if then := words.next_step(verdict.decision):
        screen.say(f"  then: {then}", style="yellow" if escalated else None)


def _cycles(view: JobView) -> None:
    if not view.cycles:
        return
    screen.say()
    for cycle in view.cycles:
        reason = f": {cycle.reason}" if cycle.reason else ""
        status = cycle.status.value.replace("_", " ")
        screen.say(
            f"cycle {cycle.loop_index} after attempt {cycle.source_attempt}: {status}{reason}"
        )


def _answer(view: JobView) -> None:
    best = view.best
    if best is None or best.output is None:
        return
    screen.say()
    kind = "the answer" if view.state == "succeeded" else "the best answer, not good enough"
    screen.say(f"{kind} (attempt {best.plan.number}):", style="bold")
    screen.say(best.output.text)
