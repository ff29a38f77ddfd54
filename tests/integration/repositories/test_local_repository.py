"""Repositories on this host: what is the user's stays as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from support.git_repositories import UserRepository, add_hook, git, open_repository, write
from support.waiting import wait_for

from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
from mulligan.workers.repositories.checkouts import Checkouts
from mulligan.workers.repositories.git_command import Git
from mulligan.workers.repositories.git_repository import GitRepository
from mulligan.workers.repositories.local_repository import LocalRepository

BRANCH = "mulligan/loop"
HOOKS = (
    "reference-transaction", "pre-commit", "post-commit", "post-checkout", "pre-receive", "update",
    "post-receive", "post-update", "pre-auto-gc", "post-rewrite", "post-index-change",
    "fsmonitor-watchman", "push-to-checkout", "commit-msg", "prepare-commit-msg",
)  # fmt: skip


@pytest.fixture
def user(tmp_path: Path) -> UserRepository:
    return UserRepository.make(tmp_path / "user")


@pytest.fixture
def repository(user: UserRepository, tmp_path: Path) -> GitRepository:
    return open_repository(tmp_path / "cache", user.path)


def work_once(repository: GitRepository, branch: str = BRANCH) -> str:
    """Do all that a loop does: begin, work, save, merge, land and forget."""
    with Checkouts().attempt(
        repository, branch=branch, start="main", loop="loop", item="i", attempt=1, token="t"
    ) as checkout:
        write(checkout.directory, {"new.txt": "new\n"})
        saved = checkout.save({"events.jsonl": b"{}\n"})
        assert saved is not None
    fence = repository.take_fence("loop")
    merged = repository.merge(checkout.base, saved)
    commit = repository.commit(merged.tree, [checkout.base, saved], "merged\n")
    assert repository.land(branch, old=checkout.base, new=commit, fence=fence)
    repository.forget([each.ref for each in repository.saved("loop")])
    return commit


def test_a_dirty_working_tree_and_index_stay_byte_for_byte(
    user: UserRepository, tmp_path: Path, repository: GitRepository
) -> None:
    write(user.path, {"a.txt": "changed\n", "staged.txt": "staged\n", "untracked.txt": "u\n"})
    user.git("add", "staged.txt")
    user.git("config", "core.logAllRefUpdates", "true")
    marker = tmp_path / "marker"
    for name in HOOKS:
        add_hook(user.path / ".git", name, f"echo {name} >> {marker}")
    before = user.state()
    work_once(repository)
    assert not marker.exists()
    assert user.state() == before


def test_the_configuration_of_a_repository_runs_nothing(
    user: UserRepository, tmp_path: Path, repository: GitRepository
) -> None:
    marker = tmp_path / "marker"
    run = f"sh -c 'touch {marker}'"
    for name in (
        "core.fsmonitor", "filter.x.clean", "filter.x.smudge", "filter.x.process", "diff.x.command",
        "diff.x.textconv", "merge.x.driver", "diff.external", "core.sshCommand", "core.pager",
        "core.editor", "gpg.program", "core.alternateRefsCommand", "uploadpack.packObjectsHook",
    ):  # fmt: skip
        user.git("config", name, run)
    user.git("config", "core.hooksPath", str(tmp_path / "hooks"))
    add_hook(tmp_path, "reference-transaction", f"touch {marker}")
    user.git("config", "commit.gpgSign", "true")
    write(user.path / ".git" / "info", {"attributes": "* filter=x diff=x merge=x\n"})
    commit = work_once(repository)
    repository.diff(commit, repository.resolve("main") or "", max_bytes=1000)
    assert not marker.exists()


def test_a_branch_that_is_checked_out_is_refused(
    user: UserRepository, repository: GitRepository, tmp_path: Path
) -> None:
    first = repository.resolve("main") or ""
    assert repository.checked_out("main") == str(user.path)
    assert repository.checked_out(BRANCH) is None
    for branch in ("main", "linked"):
        if branch == "linked":
            user.git("worktree", "add", "-q", "-b", "linked", str(tmp_path / "linked tree"))
            assert repository.checked_out(branch) == str(tmp_path / "linked tree")
        with pytest.raises(RepositoryUnavailable, match=r"is checked out in .*: check out"):
            repository.begin_branch(branch, first)
        fence = repository.take_fence("loop")
        with pytest.raises(RepositoryUnavailable, match="is checked out in"):
            repository.land(branch, old=first, new=first, fence=fence)
    user.git("switch", "-q", "--orphan", "unborn")
    with pytest.raises(RepositoryUnavailable, match="is checked out in"):
        repository.begin_branch("unborn", first)


def test_a_branch_that_is_being_rebased_is_checked_out(
    user: UserRepository, repository: GitRepository, tmp_path: Path
) -> None:
    linked = tmp_path / "linked"
    user.git("worktree", "add", "-q", "-b", "topic", str(linked))
    UserRepository(linked).commit({"a.txt": "theirs\n"})
    user.commit({"a.txt": "ours\n"})
    with pytest.raises(AssertionError):
        git(linked, "rebase", "main")
    assert repository.checked_out("topic") == str(linked)
    git(linked, "rebase", "--abort")
    git(linked, "switch", "-q", "--detach")
    assert repository.checked_out("topic") is None
    git(linked, "bisect", "start")
    assert repository.checked_out("topic") is None


@pytest.mark.parametrize("kind", ["top", "inside", "git", "linked", "bare", "separate", "link"])
def test_every_way_to_name_a_repository(user: UserRepository, tmp_path: Path, kind: str) -> None:
    linked = tmp_path / "linked"
    if kind == "linked":
        user.git("worktree", "add", "-q", "-b", "topic", str(linked))
        UserRepository(linked).commit({"more.txt": "more\n"})
    if kind == "separate":
        separate = f"--separate-git-dir={tmp_path / 'elsewhere'}"
        user = UserRepository.make(tmp_path / "other", {"a.txt": "a\n"}, separate)
    if kind == "link":
        linked.symlink_to(user.path)
    paths = {
        "inside": user.path / "src",
        "git": user.path / ".git",
        "linked": linked,
        "link": linked,
    }
    path = user.bare(tmp_path / "bare") if kind == "bare" else paths.get(kind, user.path)
    repository = open_repository(tmp_path / "cache", path)
    # The HEAD of a worktree is its own.
    assert repository.resolve("HEAD") == git(path, "rev-parse", "HEAD")
    if kind != "bare":
        place = user.path if kind != "separate" else tmp_path / "elsewhere"
        assert repository.checked_out("main") == str(place)
    first = repository.resolve("main") or ""
    assert repository.begin_branch(BRANCH, first) == first
    assert git(path, "rev-parse", BRANCH) == first


def test_a_repository_with_a_short_history(user: UserRepository, tmp_path: Path) -> None:
    user.commit({"c.txt": "c\n"})
    user.commit({"d.txt": "d\n"})
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth=2", f"file://{user.path}", str(shallow))
    git(shallow, "switch", "-q", "--detach")
    repository = open_repository(tmp_path / "cache", shallow)
    work_once(repository)
    assert len(repository.history(BRANCH)) == 3


def test_objects_with_long_ids(tmp_path: Path) -> None:
    user = UserRepository.make(tmp_path / "user", {"a.txt": "a\n"}, "--object-format=sha256")
    repository = open_repository(tmp_path / "cache", user.path)
    assert len(work_once(repository)) == 64


def test_a_partial_clone_is_refused(user: UserRepository, tmp_path: Path) -> None:
    user.git("config", "uploadpack.allowFilter", "true")
    partial = tmp_path / "partial"
    git(tmp_path, "clone", "-q", "--filter=blob:none", f"file://{user.path}", str(partial))
    with pytest.raises(BadInput, match="is a partial clone"):
        open_repository(tmp_path / "cache", partial)


def test_a_lock_that_a_killed_git_left_is_removed_after_a_while(
    user: UserRepository, repository: GitRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = repository.resolve("main") or ""
    repository.begin_branch(BRANCH, first)
    monkeypatch.setattr(
        "mulligan.workers.repositories.git_command._CONFIG", ("core.filesRefLockTimeout=0",)
    )
    fence = repository.take_fence("loop")
    lock = user.path / ".git/refs/heads" / f"{BRANCH}.lock"
    lock.touch()
    new = repository.commit(repository.tree_of(first), [first], "new\n")
    with pytest.raises(RepositoryUnavailable, match="File exists"):
        repository.land(BRANCH, old=first, new=new, fence=fence)
    long_ago = time.time() - 3600
    os.utime(lock, (long_ago, long_ago))
    assert repository.land(BRANCH, old=first, new=new, fence=fence)


def test_the_workers_own_variables_do_not_matter(
    user: UserRepository, tmp_path: Path, repository: GitRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = UserRepository.make(tmp_path / "other")
    marker = tmp_path / "marker"
    (tmp_path / "run").write_text(f"#!/bin/sh\ntouch {marker}\n")
    (tmp_path / "run").chmod(0o755)
    monkeypatch.setenv("GIT_DIR", str(other.path / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other.path))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(tmp_path / "run"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(tmp_path / "run"))
    monkeypatch.chdir(other.path)
    work_once(repository)
    monkeypatch.undo()
    assert user.git("rev-parse", BRANCH)
    assert other.git("for-each-ref", "refs/mulligan", f"refs/heads/{BRANCH}") == ""
    assert not marker.exists()


def test_a_missing_git_is_reported(
    repository: GitRepository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RepositoryUnavailable, match="no program `git`"):
        repository.resolve("main")


def test_git_that_takes_too_long_is_ended(
    user: UserRepository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "bin" / "git"
    write(script.parent, {"git": "#!/bin/sh\nsleep 100 & echo $! > $0.pid; wait\n"})
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    git = Git(name="here", directory=user.path / ".git", timeout=1)
    with pytest.raises(RepositoryUnavailable, match=r"here: git log took longer than 1 s"):
        git.run("log")
    pid = int((script.parent / "git.pid").read_text())
    wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")


# -- as root, in the repository of somebody else ---------------------------------------------------


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_no_file_of_root_appears_in_the_repository_of_a_user(tmp_path: Path) -> None:
    uid = 61_234
    folder = Path("/tmp") / f"of-a-user-{os.getpid()}"
    user = UserRepository.make(folder)
    try:
        subprocess.run(["chown", "-R", f"{uid}:{uid}", str(folder)], check=True)
        repository = open_repository(tmp_path / "cache", folder)
        assert isinstance(repository, LocalRepository)
        neutral = repository.objects.directory
        commit = work_once(repository)
        owners = {path: path.lstat().st_uid for path in (user.path, *user.path.rglob("*"))}
        assert {path for path, owner in owners.items() if owner != uid} == set()
        assert (folder / ".git/refs/heads" / BRANCH).read_text().strip() == commit
        assert neutral.parent.stat().st_uid == 0
        del repository
        assert not neutral.exists()
    finally:
        shutil.rmtree(folder)
