"""A job as the ledger has it, from what the console tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mulligan.policies.cycles.cycle import SelfRepairCycle
from mulligan.policies.jobs.job import AttemptPlan, Job, Output
from mulligan.policies.repair.verdict import verdict_from_dict
from mulligan.tasks.ports.ledger import AttemptView, JobView

_SAME = ("id", "state", "waiting_for", "reason", "detail", "best_attempt", "tokens", "seconds",
         "tenant", "created_at", "finished_at")  # fmt: skip
_PLAN = ("number", "mode", "decoding", "technique", "cures", "cycle_id", "since")
_OUTPUT = ("finish_reason", "usage", "model", "elapsed_seconds", "diff")
_ATTEMPT = ("state", "queued_at", "started_at", "settled_at", "worker", "claims", "faults",
            "last_fault")  # fmt: skip


def view_of(document: Mapping[str, Any]) -> JobView:
    """The job with all that happened to it."""
    job = Job.model_validate(document["job"])
    return JobView(
        job=job,
        attempts=tuple(_attempt(job, found) for found in document["attempts"]),
        cycles=tuple(
            SelfRepairCycle.model_validate({**cycle, "job_id": document["id"]})
            for cycle in document["cycles"]
        ),
        **_taken(document, _SAME),
    )


def _attempt(job: Job, found: Mapping[str, Any]) -> AttemptView:
    asked = found["prompt"] if found["prompt"] != job.task_text else None
    output = None
    if found["answer"] is not None:
        output = Output(text=found["answer"], **_taken(found, _OUTPUT))
    return AttemptView(
        plan=AttemptPlan(prompt=asked, **_taken(found, _PLAN)),
        output=output,
        # There is a verdict as soon as it is known whether the attempt was a success.
        verdict=verdict_from_dict(found) if found["success"] is not None else None,
        **_taken(found, _ATTEMPT),
    )


def _taken(found: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: found[name] for name in names}
