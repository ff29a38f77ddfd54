"""StateTask: the base of every task, and the one place where an outcome becomes a Celery state.

Flower shows an attempt that will be corrected as RETRY with the reason, an escalated one as FAILURE
with kind, place and count, and only a success as SUCCESS. Nothing here publishes: retries are
outbox entries.
"""

from __future__ import annotations

from typing import Any, Literal

from celery import Task
from celery.exceptions import Ignore, Retry

from mulligan.policies.failures.failure import FailureRecord, VerificationResult, VerificationStatus
from mulligan.policies.failures.redaction import redacted_place
from mulligan.policies.repair.retry import score_in_full
from mulligan.tasks.jobs.outcome import (
    Outcome,
    Rechecked,
    Requeued,
    VerificationPending,
    VerificationStored,
)
from mulligan.tasks.jobs.settle import Settled
from mulligan.tasks.ports.ledger import ClaimRefused, Entry, Finish, NextAttempt
from mulligan.workers.celery.broker.celery_broker import task_id

#: Celery's event for the end of a task.
Event = Literal["task-succeeded", "task-retried", "task-failed"]


class Escalated(Exception):
    """A person must look at the job. Flower's FAILURE list consists of these."""


class Corrected(Exception):
    """The attempt failed its checks; a corrected one follows."""


class StateTask(Task):  # type: ignore[misc] # celery is untyped
    """A task that Celery never retries, because only RetryPolicy decides on retries."""

    abstract = True
    max_retries = 0
    acks_late = True
    reject_on_worker_lost = True
    ignore_result = True
    throws: tuple[type[Exception], ...] = (Escalated,)

    def report(self, entry: Entry, outcome: Outcome) -> str:
        """Return the result of a success; raise Celery's exception for any other outcome."""
        match outcome:
            case Settled(then=NextAttempt() as then, verdict=verdict):
                reason = f"{_describe(verdict.failure)} → {then.plan.mode} {then.plan.number}"
                text = f"score {score_in_full(verdict.score)}: {reason}"
                return self._settled(entry, outcome, "task-retried", text)
            case Settled(then=Finish(state="escalated", reason=reason), verdict=verdict):
                text = f"{reason}: {_describe(verdict.failure)}{_times(outcome.seen)}"
                return self._settled(entry, outcome, "task-failed", text)
            case Settled(verdict=verdict):
                text = f"score {score_in_full(verdict.score)}"
                return self._settled(entry, outcome, "task-succeeded", text)
            case Requeued(delay=delay, reason=reason):
                raise Retry(f"{reason}; again in {delay:.1f} s", exc=Corrected(reason), when=delay)
            case ClaimRefused(reason="escalated", detail=detail) if entry.kind == "verification":
                self._report_attempt(entry, "task-failed", detail)
                raise Retry(detail, exc=Corrected(detail))
            case ClaimRefused(reason="escalated", detail=detail):
                raise Escalated(detail)
            case VerificationStored(result=result) if result.status is VerificationStatus.FAIL:
                raise Retry(_checked(result), exc=Corrected(_checked(result)))
            case Rechecked(status="escalated", score=score):
                raise Escalated(f"delayed verification scored {score_in_full(score)}")
            case VerificationPending() | ClaimRefused():
                # The task that settles the attempt reports it under the attempt's id.
                raise Ignore
            case VerificationStored(result=result):
                return _checked(result)
            case Rechecked(score=score):
                return f"delayed verification scored {score_in_full(score)}"

    def _settled(self, entry: Entry, outcome: Settled, event: Event, text: str) -> str:
        """Report a settled attempt. If a verification settled it, that task also reports for the
        attempt, and is not itself a second failure: an escalation is one row."""
        message = f"{outcome.task_type} attempt {outcome.attempt}: {text}"
        if entry.kind != "attempt":
            self._report_attempt(entry, event, message)
            event = _verification_event(entry, outcome, event)
        match event:
            case "task-retried":
                raise Retry(message, exc=Corrected(message))
            case "task-failed":
                raise Escalated(message)
            case "task-succeeded":
                return message

    def _report_attempt(self, entry: Entry, event: Event, text: str) -> None:
        """Send the event of a verified attempt under the attempt's id."""
        if not self.app.conf.worker_send_task_events:
            return
        attempt = task_id(Entry("attempt", entry.job_id, entry.attempt))
        fields: dict[str, Any] = {"exception": text}
        if event == "task-succeeded":
            fields = {"result": text, "runtime": 0.0}
        with self.app.events.default_dispatcher(hostname=self.request.hostname) as dispatcher:
            dispatcher.send(event, uuid=attempt, retry=False, **fields)


def _verification_event(entry: Entry, outcome: Settled, event: Event) -> Event:
    """Return the event of the verification itself, whatever the other verifications found."""
    result = outcome.verdict.results[entry.index or 0 :][:1]
    passed = bool(result) and result[0].status is not VerificationStatus.FAIL
    return "task-succeeded" if passed or event == "task-succeeded" else "task-retried"


def _checked(result: VerificationResult) -> str:
    """Describe a result without its summary, which may quote the answer."""
    score = "" if result.score is None else f", score {score_in_full(result.score)}"
    return f"{result.verifier_id}: {result.status.value}{score}"


def _times(seen: int) -> str:
    if seen == 0:
        return ""
    return ", seen once" if seen == 1 else f", seen {seen} times"


def _describe(failure: FailureRecord | None) -> str:
    """Describe a failure by kind, cause and place, without quoting a prompt or an answer."""
    if failure is None:
        return "not verified"
    places = (
        redacted_place(
            found.path,
            verifier_id=failure.verifier_id,
            code=found.code,
            schema_path=found.schema_path,
        )
        for found in failure.findings
    )
    place = next(filter(None, places), "")
    cause = f" ({failure.cause})" if failure.cause else ""
    return f"{failure.kind.value}{cause} {place}".strip()
