"""The route in the job of a user's task: how its retries are sent, and its mode."""

from __future__ import annotations

import pytest
from support.jobs import make_job

from mulligan.policies.jobs.job import Job
from mulligan.tasks.user_tasks.task_route import TaskMode, TaskRoute, task_mode

ROUTE = {"task": "app.ask", "queue": "celery", "root": "abc", "args": [1], "kwargs": {"x": [2]}}


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_a_route_is_read_back_from_its_job(mode: TaskMode) -> None:
    route = TaskRoute(**ROUTE, mode=mode)
    job = Job.model_validate_json(make_job(runner=route.runner).model_dump_json())
    assert TaskRoute.of(job) == route
    assert task_mode(job) == mode


def test_an_enforced_task_is_stored_without_its_mode() -> None:
    assert TaskRoute(**ROUTE).runner.options == ROUTE


@pytest.mark.parametrize(("label", "mode"), [("observe", "observe"), ("enforce", "enforce")])
def test_an_older_job_has_its_mode_in_a_label(label: str, mode: TaskMode) -> None:
    job = make_job(runner={"kind": "celery", **ROUTE}, labels={"mode": label})
    assert (task_mode(job), TaskRoute.of(job).mode) == (mode, mode)


def test_the_label_of_another_job_is_ignored() -> None:
    assert task_mode(make_job(labels={"mode": "observe"})) is None
