"""Digests that are the same in every process and release.

Sets are sorted, because each process orders them differently. Fields with their default value are
left out, because the next release may add fields or change defaults.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from mulligan.policies.jobs.job import Job
from mulligan.workers.contract_models import CONTRACT

#: Says how a stored digest was made. One made in another way cannot be compared.
VERSION = "v2:"
#: The fields of a job that decide what a model is asked and how its answer is checked.
_INPUTS = frozenset({"prompt", "system", "messages", "runner", "verifiers", "workspace"})


def job_digest(job: Job) -> str:
    """Return a digest that is equal for equal jobs, to compare those with one idempotency key."""
    return VERSION + digest(_portable(job.model_dump(exclude_defaults=True)))


def input_digest(job: Job) -> str:
    """Return a digest that is equal for jobs with the same prompt, contract and runner."""
    return VERSION + digest(_portable(job.model_dump(include=set(_INPUTS), exclude_defaults=True)))


def _portable(job_fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out the keys of models, which only the submitting process knows."""
    specs = [
        {name: value for name, value in spec.items() if name != "taught"}
        if spec["id"] == CONTRACT
        else spec
        for spec in job_fields["verifiers"]
    ]
    return {**job_fields, "verifiers": specs}


def digest(fields: Mapping[str, Any]) -> str:
    text = json.dumps(
        fields, default=_plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _plain(value: Any) -> Any:
    return sorted(value, key=str) if isinstance(value, set | frozenset) else str(value)
