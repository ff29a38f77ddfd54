"""A job as a JSON-ready document, as `--json` prints it."""

from __future__ import annotations

from typing import Any

from mulligan.policies.jobs.job import Job
from mulligan.policies.repair.verdict import Verdict, verdict_to_dict
from mulligan.tasks.jobs.job_story import prompt_of
from mulligan.tasks.ports.ledger import AttemptView, JobView
from mulligan.workers.repositories.git_command import redact
from mulligan.workers.repositories.mirror import shown_address


def shown_repository(name: str) -> str:
    """Return the address of a repository without credentials."""
    try:
        return shown_address(name)
    except ValueError:  # it is no address
        return redact(name)


def shown_job(job: Job) -> Job:
    """Return a job without the credentials of its repository."""
    space = job.workspace
    if space is None or space.git is None:
        return job
    shown = space.model_copy(update={"git": shown_repository(space.git)})
    return job.model_copy(update={"workspace": shown})


def job_summary(view: JobView) -> dict[str, Any]:
    """Return a job without its attempts."""
    return {
        "id": view.id,
        "task_type": view.job.task_type,
        "name": view.job.label,
        "state": view.state,
        "waiting_for": view.waiting_for,
        "waiting_behind": view.waiting_behind,
        "reason": view.reason,
        "detail": view.detail,
        "best_attempt": view.best_attempt,
        "tokens": view.tokens,
        "seconds": round(view.seconds, 3),
        "labels": dict(view.job.labels),
        "idempotency_key": view.job.idempotency_key,
        "created_at": view.created_at,
        "finished_at": view.finished_at,
    }


def job_document(view: JobView) -> dict[str, Any]:
    """Return a job with its attempts and cycles."""
    best = view.best
    return {
        **job_summary(view),
        "answer": best.output.text if best and best.output else None,
        "attempts": [_attempt(view, attempt) for attempt in view.attempts],
        "cycles": [cycle.model_dump(mode="json") for cycle in view.cycles],
        "needs_schema": view.needs_schema,
        "needs_release": view.needs_release,
        "unreadable": view.unreadable,
    }


def _verdict(verdict: Verdict | None) -> dict[str, Any]:
    """Return the fields of the verdict; null or empty until there is one."""
    if verdict is None:
        return {**verdict_to_dict(Verdict()), "success": None, "decision": None}
    return verdict_to_dict(verdict)


def _attempt(view: JobView, attempt: AttemptView) -> dict[str, Any]:
    output = attempt.output
    return {
        "number": attempt.plan.number,
        "mode": attempt.plan.mode,
        "state": attempt.state,
        **_verdict(attempt.verdict),
        "technique": attempt.plan.technique,
        "decoding": attempt.plan.decoding.model_dump(mode="json", exclude_defaults=True),
        "usage": output.usage.model_dump(mode="json") if output else None,
        "model": output.model if output else None,
        "finish_reason": output.finish_reason if output else None,
        "prompt": prompt_of(view, attempt),
        "answer": output.text if output else None,
        "ended": output.ended if output else None,
        "queued_at": attempt.queued_at,
        "started_at": attempt.started_at,
        "settled_at": attempt.settled_at,
        "worker": attempt.worker,
        "faults": attempt.faults,
        "last_fault": attempt.last_fault,
        "unreadable": attempt.unreadable,
    }
