"""A user's prefork worker: Celery's time limits, and the sweep beside its processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs import failure_of
from support.user_tasks import UserProject, user_project
from support.waiting import wait_for

CODE = """
import os
import time

from celery import Celery

from mulligan import RepairingTask, install

app = Celery("mine", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
app.conf.worker_send_task_events = True
install(app, sweep_interval=0.3, lease=60)


@app.task
def hold(folder, number):
    open(f"{folder}/{number}", "w").close()
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.05)


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


def test_the_sweep_needs_neither_a_slot_nor_a_message(project: UserProject, tmp_path: Path) -> None:
    """Given a worker whose three processes are all busy, then it goes on sweeping, and neither its
    queue nor its log has a trace of that."""
    results = [project.send("hold", str(tmp_path), number) for number in range(3)]
    wait_for(lambda: len(list(tmp_path.iterdir())) == 3, "every process to be busy")
    with project.server.client() as client:
        swept: set[str | None] = set()

        def has_swept() -> bool:
            swept.add(client.get("mulligan:{p00}:swept_at"))
            return len(swept) > 3

        wait_for(has_swept, "three sweeps")
        assert client.llen("celery") == client.llen("celery.repair") == 0
    (tmp_path / "go").touch()
    for result in results:
        result.get(timeout=50)
    assert "mulligan.sweep[" not in (project.stack.home / "logs" / "worker.log").read_text()
