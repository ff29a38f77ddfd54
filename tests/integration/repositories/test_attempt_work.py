"""The work of an agent is saved: while it works, however it ends, and if its repository is away."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.git_repositories import UserRepository, files_of, write

from mulligan.policies.jobs.job import Message, Output, Workspace
from mulligan.policies.loops.stuck import changed_rules
from mulligan.tasks.ports.cancellation import Cancellation, cancelled_by
from mulligan.tasks.ports.errors import (
    CallCancelled,
    OutOfCredits,
    RepositoryUnavailable,
    RunnerError,
    TransportFault,
)
from mulligan.tasks.ports.runners import Request
from mulligan.tasks.ports.sessions import SessionEvent
from mulligan.workers.loops import attempt_work
from mulligan.workers.loops.attempt_work import AttemptWork
from mulligan.workers.loops.workspace_trees import WorkspaceTrees
from mulligan.workers.repositories.checkouts import Checkouts
from mulligan.workers.repositories.repositories import GitRepositories
from mulligan.workers.repositories.setup_cache import SetupCache
from mulligan.workers.runners.command import CommandRunner
from mulligan.workers.sandbox.limits import Limits

REF = "refs/mulligan/attempts/loop/item/1-t"
TRANSCRIPT = REF.replace("attempts", "transcripts")


@dataclass
class Agent:
    """An agent that works for an hour, says so, and then does something else."""

    then: Callable[[Path], None]
    provider: str = "agent"

    def answer(self, _request: Request) -> Output:
        raise AssertionError("it works in a directory")

    def work_in(self, request: Request, directory: Path, read: Sequence[Path]) -> Output:
        write(directory, {"new.txt": "an hour of work\n"})
        request.session.emit(SessionEvent(kind="text", text="An hour has passed."))
        self.then(directory)
        return Output(text="done")


@pytest.fixture
def user(tmp_path: Path) -> UserRepository:
    return UserRepository.make(tmp_path / "user")


def make_work(tmp_path: Path, save_interval: float = 60) -> AttemptWork:
    trees = WorkspaceTrees(
        repositories=GitRepositories(cache=tmp_path / "cache", profiles={}),
        checkouts=Checkouts(tmp_path / "private"),
        setups=SetupCache(tmp_path / "cache", max_bytes=1 << 30),
        limits=Limits(),
    )
    return AttemptWork(trees=trees, save_interval=save_interval)


def make_request(name: str) -> Request:
    return Request(
        messages=(Message(role="user", content="Do it."),),
        workspace=Workspace(git=name, ref="main", branch="mulligan/loop"),
        job_id="job",
        loop="loop",
        item="item",
        token="t",
    )


def is_saved(user: UserRepository) -> bool:
    """Whether the work and the transcript of the agent are in the repository."""
    found = user.git("for-each-ref", "--format=%(refname)", REF, TRANSCRIPT).splitlines()
    if found != [REF, TRANSCRIPT]:
        return False
    said = b"".join(content for _, content in files_of(user.path, TRANSCRIPT).values())
    work = files_of(user.path, REF).get("new.txt")
    return work == ("100644", b"an hour of work\n") and b"An hour has passed." in said


@pytest.mark.parametrize(
    "error",
    [
        CallCancelled("a person cancelled the job, or the lease is lost"),
        OutOfCredits("nothing is left", "agent"),
        TransportFault("the connection is lost", "agent"),
        RunnerError("the key is refused", final=True),
        ValueError("nobody knows why"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_work_and_transcript_are_saved_whatever_ends_the_agent(
    error: Exception, user: UserRepository, tmp_path: Path
) -> None:
    def fail(_directory: Path) -> None:
        raise error

    with pytest.raises(type(error)):
        make_work(tmp_path).answer(Agent(fail), make_request(str(user.path)))
    assert is_saved(user)


def test_a_transcript_is_saved_with_the_work_of_an_agent_that_succeeds(
    user: UserRepository, tmp_path: Path
) -> None:
    output = make_work(tmp_path).answer(Agent(lambda _: None), make_request(str(user.path)))
    assert output.commit == user.git("rev-parse", REF)
    assert is_saved(user)


def test_work_and_transcript_are_saved_while_the_agent_works(
    user: UserRepository, tmp_path: Path
) -> None:
    """Given an agent that takes its work back when it is saved, then it was saved before."""

    def wait(directory: Path) -> None:
        until = time.monotonic() + 30
        while not is_saved(user) and time.monotonic() < until:
            time.sleep(0.02)
        (directory / "new.txt").unlink()

    work = make_work(tmp_path, save_interval=0.05)
    output = work.answer(Agent(wait), make_request(str(user.path)))
    assert output.commit == output.base, "nothing is left at the end"
    assert is_saved(user)


@pytest.mark.parametrize("url", ["{}", "file://{}"])
def test_work_is_saved_although_the_repository_and_the_lease_are_gone(
    url: str, user: UserRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_work, "_PAUSE", 0.05)
    lease = Cancellation()

    def lose(_directory: Path) -> None:
        user.path.rename(user.path.with_name("away"))
        lease.cancel()

    with pytest.raises(RepositoryUnavailable), cancelled_by(lease):
        make_work(tmp_path).answer(Agent(lose), make_request(url.format(user.path)))
    assert list((tmp_path / "private").iterdir()), "the only copy of the work"
    user.path.with_name("away").rename(user.path)
    until = time.monotonic() + 60
    while any((tmp_path / "private").iterdir()) and time.monotonic() < until:
        time.sleep(0.02)
    assert is_saved(user)
    assert not any((tmp_path / "private").iterdir())


@pytest.mark.parametrize("changes", [True, False])
def test_a_stuck_agent_is_ended_and_its_work_is_kept(
    changes: bool, user: UserRepository, tmp_path: Path
) -> None:
    """Given an agent that hangs: what it changed is verified, and without changes it has failed."""
    write_it = "open('new.txt', 'w').write('an hour of work\\n'); " if changes else ""
    code = f"{write_it}print('An hour has passed.', flush=True); import time; time.sleep(600)"
    runner = CommandRunner.from_options(
        {"argv": [sys.executable, "-c", code]}, stuck=changed_rules({"silent": 1}, {})
    )
    work, request = make_work(tmp_path), make_request(str(user.path))
    if not changes:
        with pytest.raises(RunnerError, match="was ended as stuck: it did nothing for") as caught:
            work.answer(runner, request)
        assert caught.value.evidence["class"] == "stuck.silent"
        assert not caught.value.final
        return
    output = work.answer(runner, request)
    assert output.commit == user.git("rev-parse", REF)
    assert is_saved(user)
    assert "was ended as stuck" in (output.ended or "")
    assert (output.stuck or "").startswith("did nothing for 1")
    assert not output.start_over
