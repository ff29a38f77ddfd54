"""The story of a job as plain text."""

from __future__ import annotations

from collections.abc import Iterator

from mulligan.console.reports.words import (
    errors_beyond_summary,
    failure_in_words,
    next_step,
    number,
    technique,
)
from mulligan.policies.failures.failure import VerificationStatus
from mulligan.policies.repair.verdict import Verdict
from mulligan.tasks.ports.ledger import AttemptView, JobView

_MARKS = {
    VerificationStatus.PASS: "✓",
    VerificationStatus.FAIL: "✗",
    VerificationStatus.WARN: "!",
    VerificationStatus.SKIPPED: "–",
}
_ANSWER = 300
_MOST_ERRORS = 10


def tell(view: JobView) -> str:
    """Every attempt with its answer, its checks and what was decided."""
    return "\n".join(_lines(view))


def _lines(view: JobView) -> Iterator[str]:
    reason = f": {view.reason}" if view.reason else ""
    yield f"{view.job.label}  {view.state}{reason}  {view.id}"
    if view.detail:
        yield view.detail
    for attempt in view.attempts:
        yield from _attempt(view, attempt)
    for cycle in view.cycles:
        status = cycle.status.value.replace("_", " ")
        yield f"cycle {cycle.loop_index} after attempt {cycle.source_attempt}: {status}"


def _attempt(view: JobView, attempt: AttemptView) -> Iterator[str]:
    verdict, plan = attempt.verdict, attempt.plan
    score = f"score {number(verdict.score)}" if verdict else attempt.state
    said = f"  {failure_in_words(verdict.failure)}" if verdict and verdict.failure else ""
    yield f"attempt {plan.number}  {plan.mode.replace('_', ' ')}  {score}{said}"
    if plan.technique:
        yield f"  changed: {technique(view, attempt)}"
    if attempt.last_fault:
        yield f"  {attempt.faults} transport faults, the last: {attempt.last_fault}"
    if attempt.output is not None:
        text = " ".join(attempt.output.text.split())
        yield f"  answered: {text if len(text) <= _ANSWER else text[:_ANSWER] + '…'}"
    if verdict is not None:
        yield from _verdict(verdict)


def _verdict(verdict: Verdict) -> Iterator[str]:
    for result in verdict.results:
        yield f"  {_MARKS[result.status]} {result.verifier_id}  {result.summary}".rstrip()
        for error in errors_beyond_summary(result)[:_MOST_ERRORS]:
            place = f"{error.path}: " if error.path else ""
            yield f"      {place}{error.message}"
    if then := next_step(verdict.decision):
        yield f"  then: {then}"
