"""Digests that every process and every release computes alike."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from support.jobs import make_job

from mulligan.policies.jobs.job import Job
from mulligan.workers.ledger.stored.digests import input_digest, job_digest
from mulligan.workers.ledger.stores.config_changes import config_digest
from mulligan.workers.settings.model import Settings

_PROGRAM = """
from mulligan.policies.jobs.job import Job
from mulligan.workers.ledger.stored.digests import input_digest, job_digest
from mulligan.workers.ledger.stores.config_changes import config_digest
from mulligan.workers.settings.model import Settings
job = Job.model_validate({
    "task_type": "t", "prompt": "p", "verifiers": [{"id": "text.match", "words": set("uvwxyz")}],
    "runner": {"kind": "scripted", "answers": set("abcdef")},
    "policy": {"escalate_on": ["test_failed", "tool_error", "json_invalid", "unknown"]},
})
print(job_digest(job), input_digest(job), job.policy.model_dump_json())
print(config_digest(Settings(exempt_task_types=list("abcdef"))))
"""


def test_processes_that_order_sets_differently_compute_the_same() -> None:
    """Given three seeds of Python's hash, then digests and the stored policy are the same."""
    printed = {
        subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(printed) == 1


class LaterJob(Job):
    """A job of the next release, which has one more optional field."""

    region: str | None = None


def later(job: Job, **more: Any) -> Job:
    return LaterJob.model_validate({**job.model_dump(exclude_defaults=True), **more})


def test_a_field_of_the_next_release_changes_a_digest_only_if_it_is_used() -> None:
    job = make_job(labels={"a": "b"}, policy={"max_attempts": 3})
    assert job_digest(later(job)) == job_digest(job)
    assert input_digest(later(job)) == input_digest(job)
    assert job_digest(later(job, region="eu")) != job_digest(job)


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "Another."},
        {"labels": {"a": "c"}},
        {"policy": {"escalate_on": ["tool_error"]}},
        {"verifiers": ["json.object", "json.object"]},
        {"priority": 4},
    ],
)
def test_any_other_difference_changes_the_digest(change: dict[str, Any]) -> None:
    assert job_digest(make_job(**change)) != job_digest(make_job())


def test_a_value_equal_to_its_default_is_no_difference() -> None:
    assert job_digest(make_job(priority=5, policy={"max_attempts": 4})) == job_digest(make_job())


class LaterSettings(Settings):
    """The settings of the next release: the runners' timeout has another default."""

    runner_timeout: float = Settings.model_fields["runner_timeout"].default + 1


def test_settings_of_the_next_release_are_no_change_of_the_configuration() -> None:
    assert config_digest(LaterSettings()) == config_digest(Settings())
    assert config_digest(Settings(runner_timeout=5)) != config_digest(Settings())
