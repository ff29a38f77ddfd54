"""StateTask: the base of every task, and the one place where an outcome becomes a state.

What Flower shows is true: an attempt that will be corrected is RETRY with the reason, an escalated
one FAILURE with kind, place and count, and only a success is SUCCESS. Nothing here publishes:
retries are outbox entries.
"""

from __future__ import annotations

from typing import Any, NoReturn

from celery import Task
from celery.exceptions import Ignore, Retry

from mulligan.policies.failure import FailureRecord, VerificationStatus
from mulligan.tasks.ledger import Entry, Finish, NextAttempt, Refused
from mulligan.tasks.outcome import Checked, Handed, Outcome, Rechecked, Requeued
from mulligan.tasks.settle import Settled
from mulligan.workers.publisher import task_id


class Escalated(Exception):
    """A person must look. Flower's FAILURE list is the list of these."""


class Corrected(Exception):
    """The attempt failed its checks; a corrected one follows."""


class StateTask(Task):  # type: ignore[misc] # celery is untyped
    """Never retried by Celery itself: RetryPolicy is the only authority."""

    abstract = True
    max_retries = 0
    acks_late = True
    reject_on_worker_lost = True
    ignore_result = True
    throws = (Escalated,)

    def report(self, entry: Entry, outcome: Outcome) -> str:
        """Turn an outcome into what Celery, its events and Flower understand."""
        match outcome:
            case Settled(then=NextAttempt() as then, verdict=verdict):
                reason = f"{_describe(verdict.failure)} → {then.plan.mode} {then.plan.number}"
                self._retried(entry, outcome, f"score {_score(verdict.score)}: {reason}")
            case Settled(then=Finish(state="escalated", reason=reason), verdict=verdict):
                told = f"{reason}: {_describe(verdict.failure)}{_times(outcome.seen)}"
                self._failed(entry, outcome, told)
            case Settled(verdict=verdict):
                return self._succeeded(entry, outcome, f"score {_score(verdict.score)}")
            case Requeued(delay=delay, reason=reason):
                raise Retry(f"{reason}; again in {delay:.1f} s", exc=Corrected(reason), when=delay)
            case Refused(reason="escalated", detail=detail):
                raise Escalated(detail)
            case Checked(result=result) if result.status is VerificationStatus.FAIL:
                raise Retry(result.summary, exc=Corrected(result.summary))
            case Rechecked(status="escalated", score=score):
                raise Escalated(f"delayed verification scored {_score(score)}")
            case Handed() | Refused():
                # Whoever ends the attempt reports it under the attempt's own id.
                raise Ignore
            case Checked(result=result):
                return result.summary
            case Rechecked(score=score):
                return f"delayed verification scored {_score(score)}"

    def _succeeded(self, entry: Entry, outcome: Settled, text: str) -> str:
        told = _named(outcome, text)
        self._tell(entry, outcome, "task-succeeded", result=told, runtime=0.0)
        return told

    def _retried(self, entry: Entry, outcome: Settled, text: str) -> NoReturn:
        told = _named(outcome, text)
        self._tell(entry, outcome, "task-retried", exception=told)
        raise Retry(told, exc=Corrected(told))

    def _failed(self, entry: Entry, outcome: Settled, text: str) -> NoReturn:
        told = _named(outcome, text)
        self._tell(entry, outcome, "task-failed", exception=told)
        raise Escalated(told)

    def _tell(self, entry: Entry, outcome: Settled, kind: str, **fields: Any) -> None:
        """A verification that settled its attempt speaks for the attempt too."""
        if entry.kind == "attempt" or not self.app.conf.worker_send_task_events:
            return
        attempt = task_id(Entry("attempt", outcome.job_id, outcome.attempt))
        with self.app.events.default_dispatcher(hostname=self.request.hostname) as dispatcher:
            dispatcher.send(kind, uuid=attempt, retry=False, **fields)


def _named(outcome: Settled, text: str) -> str:
    return f"{outcome.task_type} attempt {outcome.attempt}: {text}"


def _score(score: float | None) -> str:
    return "–" if score is None else f"{score:g}"


def _times(seen: int) -> str:
    if seen == 0:
        return ""
    return ", seen once" if seen == 1 else f", seen {seen} times"


def _describe(failure: FailureRecord | None) -> str:
    """Kind, place and what is wrong; never a prompt or an answer."""
    if failure is None:
        return "not verified"
    place = next((finding.path for finding in failure.findings if finding.path), "")
    cause = f" ({failure.cause})" if failure.cause else ""
    return f"{failure.kind.value}{cause} {place}".strip()
