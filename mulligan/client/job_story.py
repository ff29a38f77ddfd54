"""The story of a job as plain text."""

from __future__ import annotations

from collections.abc import Iterator

from mulligan.policies.failures.failure import VerificationStatus
from mulligan.policies.figures.format import shortened, words
from mulligan.tasks.jobs.job_story import AttemptStory, tell_story
from mulligan.tasks.ports.ledger import JobView

_MARKS = {
    VerificationStatus.PASS: "✓",
    VerificationStatus.FAIL: "✗",
    VerificationStatus.WARN: "!",
    VerificationStatus.SKIPPED: "–",
}
#: Characters of an answer that are shown.
_ANSWER = 300


def tell(view: JobView) -> str:
    """Write every attempt with its answer, its checks and the decision."""
    story = tell_story(view)
    lines = [f"{view.job.label}  {story.status}  {view.id}"]
    lines += [view.detail] if view.detail else []
    lines += [line for attempt in story.attempts for line in _attempt(attempt)]
    return "\n".join([*lines, *story.cycles])


def _attempt(attempt: AttemptStory) -> Iterator[str]:
    failure = f"  {attempt.failure}" if attempt.failure else ""
    yield f"attempt {attempt.number}  {words(attempt.mode)}  {attempt.outcome}{failure}"
    if attempt.technique:
        yield f"  changed: {attempt.technique}"
    if attempt.faults:
        yield f"  {attempt.faults}"
    if attempt.answer is not None:
        yield f"  answered: {shortened(' '.join(attempt.answer.split()), _ANSWER)}"
    for check in attempt.checks:
        said = (check.verifier, check.summary, ", ".join(check.reservations))
        yield f"  {_MARKS[check.status]} {'  '.join(filter(None, said))}"
        yield from (f"      {error}" for error in check.errors)
        yield from (f"      warning: {warning}" for warning in check.warnings)
    if attempt.coercions:
        yield f"  free repairs: {', '.join(attempt.coercions)}"
    if attempt.decision:
        yield f"  then: {attempt.decision}"
