"""The story of a job as plain text."""

from __future__ import annotations

from collections.abc import Iterator

from mulligan.console.reports.words import failure_in_words, number, technique
from mulligan.tasks.ports.ledger import AttemptView, JobView

_MARKS = {"pass": "✓", "fail": "✗", "warn": "!", "skipped": "–"}
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
    score = f"score {number(verdict.get('score'))}" if verdict else attempt.state
    failure = verdict.get("failure")
    said = f"  {failure_in_words(failure)}" if failure else ""
    yield f"attempt {plan.number}  {plan.mode.replace('_', ' ')}  {score}{said}"
    if plan.technique:
        yield f"  changed: {technique(view, attempt)}"
    if attempt.last_fault:
        yield f"  {attempt.faults} transport faults, the last: {attempt.last_fault}"
    if attempt.output is not None:
        text = " ".join(attempt.output.text.split())
        yield f"  answered: {text if len(text) <= _ANSWER else text[:_ANSWER] + '…'}"
    for result in verdict.get("results", []):
        mark = _MARKS.get(str(result["status"]), "?")
        yield f"  {mark} {result['verifier_id']}  {result.get('summary', '')}".rstrip()
        errors = result.get("errors") or []
        for error in errors[:_MOST_ERRORS] if len(errors) > 1 else ():
            place = f"{error['path']}: " if error.get("path") else ""
            yield f"      {place}{error['message']}"
    decision = verdict.get("decision") or {}
    if decision.get("reason"):
        mode = str(decision.get("mode") or decision.get("action")).replace("_", " ")
        yield f"  then: {mode}: {decision['reason']}"
