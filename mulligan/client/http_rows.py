"""Reading the ledger's job views from the console's JSON."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import fields
from typing import Any

from pydantic import ValidationError

from mulligan.policies.cycles.cycle import SelfRepairCycle
from mulligan.policies.jobs.job import AttemptPlan, Job, Output
from mulligan.policies.repair.verdict import verdict_from_dict
from mulligan.tasks.ports.ledger import AttemptView, JobView


def _names(kind: type[JobView | AttemptView], *, but: set[str]) -> set[str]:
    return {field.name for field in fields(kind)} - but


#: Fields with the same name in the console's JSON and in our values.
_JOB = _names(JobView, but={"job", "attempts", "cycles"})
_ATTEMPT = _names(AttemptView, but={"plan", "output", "verdict"})
_PLAN = AttemptPlan.model_fields.keys() - {"prompt"}
_OUTPUT = Output.model_fields.keys() - {"text"}


def view_of(document: Mapping[str, Any]) -> JobView:
    """Return the job with its attempts and cycles."""
    try:
        job = Job.model_validate(document["job"])
    except ValidationError:  # another release wrote it, and perhaps the console could not read it
        job = Job.unreadable(task_type=document["task_type"], name=document["name"])
    return JobView(
        job=job,
        attempts=tuple(_attempt(job, found) for found in document["attempts"]),
        cycles=tuple(
            SelfRepairCycle.model_validate({**cycle, "job_id": document["id"]})
            for cycle in document["cycles"]
        ),
        **_taken(document, _JOB),
    )


def _attempt(job: Job, found: Mapping[str, Any]) -> AttemptView:
    asked = found["prompt"] if found["prompt"] != job.task_text else None
    output = None
    if found["answer"] is not None:
        output = Output(text=found["answer"], **_taken(found, _OUTPUT))
    return AttemptView(
        plan=AttemptPlan(prompt=asked, **_taken(found, _PLAN)),
        output=output,
        # There is a verdict as soon as ``success`` is known.
        verdict=verdict_from_dict(found) if found["success"] is not None else None,
        **_taken(found, _ATTEMPT),
    )


def _taken(found: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    return {name: found[name] for name in names if name in found}
