"""The end of an attempt whose repository is away: its work is saved when the repository is back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.git_repositories import UserRepository, files_of

from mulligan.policies.jobs.job import Message, Output, Workspace
from mulligan.tasks.ports.cancellation import Cancellation, cancelled_by
from mulligan.tasks.ports.errors import RepositoryUnavailable
from mulligan.tasks.ports.runners import Request
from mulligan.workers.loops import attempt_work
from mulligan.workers.loops.attempt_work import AttemptWork
from mulligan.workers.loops.workspace_trees import WorkspaceTrees
from mulligan.workers.repositories.checkouts import Checkouts
from mulligan.workers.repositories.repositories import GitRepositories
from mulligan.workers.repositories.setup_cache import SetupCache
from mulligan.workers.sandbox.limits import Limits

REF = "refs/mulligan/attempts/loop/item/1-t"


@dataclass
class CutOff:
    """An agent whose host loses the repository and the lease while it works."""

    remote: Path
    lease: Cancellation
    provider: str = "agent"

    def answer(self, _request: Request) -> Output:
        raise AssertionError("it works in a directory")

    def work_in(self, request: Request, directory: Path, read: Sequence[Path]) -> Output:
        (directory / "new.txt").write_text("an hour of work\n")
        self.remote.rename(self.remote.with_name("away"))
        self.lease.cancel()
        return Output(text="done")


@pytest.mark.parametrize("url", ["{}", "file://{}"])
def test_work_is_saved_although_the_repository_and_the_lease_are_gone(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_work, "_PAUSE", 0.05)
    user = UserRepository.make(tmp_path / "user")
    trees = WorkspaceTrees(
        repositories=GitRepositories(cache=tmp_path / "cache", profiles={}),
        checkouts=Checkouts(tmp_path / "private"),
        setups=SetupCache(tmp_path / "cache", max_bytes=1 << 30),
        limits=Limits(),
    )
    work = AttemptWork(trees=trees, save_interval=60)
    lease = Cancellation()
    request = Request(
        messages=(Message(role="user", content="Do it."),),
        workspace=Workspace(git=url.format(user.path), ref="main", branch="mulligan/loop"),
        job_id="job",
        loop="loop",
        item="item",
        token="t",
    )
    with pytest.raises(RepositoryUnavailable), cancelled_by(lease):
        work.answer(CutOff(user.path, lease), request)
    assert list((tmp_path / "private").iterdir()), "the only copy of the work"
    user.path.with_name("away").rename(user.path)
    until = time.monotonic() + 60
    while any((tmp_path / "private").iterdir()) and time.monotonic() < until:
        time.sleep(0.02)
    assert files_of(user.path, REF)["new.txt"][1] == b"an hour of work\n"
    assert not any((tmp_path / "private").iterdir())
