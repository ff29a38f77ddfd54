"""Celery's time limits of a user's task, which processes of a prefork pool have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.jobs import failure_of
from support.user_tasks import UserProject, user_project

CODE = """
import os
import time

from celery import Celery

from mulligan import RepairingTask, install

app = Celery("mine", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
app.conf.worker_send_task_events = True
install(app, sweep_interval=0.3, lease=60)


def slow_at_first(self):
    if self.repair is None:
        time.sleep(60)
    return self.repair.prompt_suffix


@app.task(base=RepairingTask, time_limit=3)
def hard(self):
    return slow_at_first(self)


@app.task(base=RepairingTask, soft_time_limit=3)
def soft(self):
    return slow_at_first(self)


@app.task(base=RepairingTask, time_limit=3, policy={"max_attempts": 2})
def never(self):
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserProject]:
    folder = tmp_path_factory.mktemp("p")
    with user_project(folder, CODE, "-P", "prefork", "-c", "3") as project:
        project.start_worker()
        yield project


@pytest.mark.parametrize("limit", ["hard", "soft"])
def test_the_caller_waits_for_the_attempt_after_a_time_limit(
    project: UserProject, limit: str
) -> None:
    result = project.send(limit)
    # A timeout says nothing about an answer, so the prompt does not blame one.
    assert result.get(timeout=50) == "Do the task exactly as it is written."
    view = project.wait_until_ended(result.id)
    failure = failure_of(view.attempts[0])
    assert (failure.kind, failure.cause) == ("tool_error", "timeout")
    assert failure.message == "the task did not finish within its time limit of 3 s"
    assert (view.state, len(view.attempts)) == ("succeeded", 2)


def test_a_task_that_never_ends_in_time_is_escalated(project: UserProject) -> None:
    result = project.send("never")
    with pytest.raises(Exception, match="max_attempts: tool_error"):
        result.get(timeout=50)
    view = project.wait_until_ended(result.id)
    assert (view.state, len(view.attempts)) == ("escalated", 2)
