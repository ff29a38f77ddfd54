"""Revoking a repairing task by the id that the caller knows or by that of a retry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery.exceptions import Reject, TaskRevokedError
from support.user_tasks import UserProject, user_project
from support.waiting import wait_for

CODE = """
import os
import time

from celery import Celery
from celery.exceptions import Reject

from mulligan import Repair, RepairingTask, install

app = Celery("mine", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
install(app, sweep_interval=0.3, lease=2, outbox_grace=0.3)


@app.task(base=RepairingTask)
def held(self, folder, attempt):
    open(f"{folder}/{self.request.id}", "w").close()
    if (attempt == 1) == (self.repair is None):
        while not os.path.exists(f"{folder}/go"):
            time.sleep(0.05)
    if self.repair is None:
        raise Repair("say please", score=40)
    return "please"


@app.task(base=RepairingTask)
def rejecting(self):
    if self.repair is None:
        raise Repair("say please", score=40)
    raise Reject("no", requeue=False)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserProject]:
    folder = tmp_path_factory.mktemp("v")
    with user_project(folder, CODE, "-P", "prefork", "-c", "2") as project:
        project.start_worker()
        yield project
        # A result that is deleted later would wait for the server, to unsubscribe.
        project.app.backend.result_consumer.subscribed_to.clear()


@pytest.mark.parametrize("suffix", ["", "-2"])
def test_a_revoked_retry_does_not_start(
    project: UserProject, tmp_path_factory: pytest.TempPathFactory, suffix: str
) -> None:
    """Given the first attempt runs, then the id of the task or of the retry stops the retry."""
    folder = tmp_path_factory.mktemp("n")
    result = project.send("held", str(folder), 1)
    wait_for(lambda: (folder / result.id).exists(), "the first attempt")
    project.app.control.revoke(f"{result.id}{suffix}", reply=True, timeout=5)
    (folder / "go").touch()
    with pytest.raises(TaskRevokedError, match="revoked"):
        result.get(timeout=60)
    _assert_cancelled(project, result.id)
    assert not (folder / f"{result.id}-2").exists()


def test_a_terminated_retry_ends_the_task(
    project: UserProject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("n")
    result = project.send("held", str(folder), 2)
    wait_for(lambda: (folder / f"{result.id}-2").exists(), "the retry")
    project.app.control.revoke(f"{result.id}-2", terminate=True, reply=True, timeout=5)
    with pytest.raises(TaskRevokedError, match="terminated"):
        result.get(timeout=60)
    _assert_cancelled(project, result.id)


def test_the_caller_hears_of_a_rejected_retry(project: UserProject) -> None:
    result = project.send("rejecting")
    with pytest.raises(Reject, match="no"):
        result.get(timeout=60)
    _assert_cancelled(project, result.id)


def _assert_cancelled(project: UserProject, message_id: str) -> None:
    view = project.wait_until_ended(message_id)
    assert (view.state, view.reason) == ("cancelled", "signalled")
