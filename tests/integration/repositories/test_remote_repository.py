"""Repositories elsewhere: what is known after a push whose answer was lost, and the mirror."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from support.git_repositories import (
    UserRepository,
    add_hook,
    commit_on,
    git,
    open_repository,
    write,
)

from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
from mulligan.tasks.ports.repositories import Fence
from mulligan.workers.repositories.checkouts import Checkouts
from mulligan.workers.repositories.git_command import redact
from mulligan.workers.repositories.git_repository import GitRepository
from mulligan.workers.repositories.local_repository import LocalRepository
from mulligan.workers.repositories.mirror import mirror_name, shown_address, without_credentials

BRANCH = "mulligan/loop"
#: Ends the other side of a push.
DIE = "kill -9 $PPID"


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    return UserRepository.make(tmp_path / "user").bare(tmp_path / "origin.git")


@pytest.fixture
def repository(origin: Path, tmp_path: Path) -> GitRepository:
    return open_repository(tmp_path / "cache", f"file://{origin}")


def begin(repository: GitRepository) -> tuple[str, str, Fence]:
    """Return the tip of a branch, a commit on top of it, and a fence."""
    first = repository.begin_branch(BRANCH, repository.resolve("main") or "")
    new = repository.commit(repository.tree_of(first), [first], "new\n")
    return first, new, repository.take_fence("loop")


def test_a_push_whose_answer_is_lost_has_landed(repository: GitRepository, origin: Path) -> None:
    first, new, fence = begin(repository)
    add_hook(origin, "post-receive", DIE)
    after = repository.land(BRANCH, old=first, new=new, fence=fence)
    assert after is not None
    assert git(origin, "rev-parse", BRANCH) == new
    assert git(origin, "rev-parse", "refs/mulligan/fence/loop") == after.value
    # So has a fence that is taken, and work that is saved.
    taken = repository.take_fence("loop")
    assert git(origin, "rev-parse", "refs/mulligan/fence/loop") == taken.value
    assert repository.begin_branch("other", first) == first
    with Checkouts().attempt(
        repository, branch=BRANCH, start="main", loop="loop", item="i", attempt=1, token="t"
    ) as checkout:
        write(checkout.directory, {"new.txt": "new\n"})
        assert checkout.save() == repository.saved("loop", "i")[0].commit
    repository.forget(["refs/mulligan/attempts/loop/i/1-t"])
    assert repository.saved("loop") == []


def test_a_push_that_is_cut_off_has_not_landed(repository: GitRepository, origin: Path) -> None:
    first, new, fence = begin(repository)
    add_hook(origin, "pre-receive", DIE)
    with pytest.raises(RepositoryUnavailable, match="git push failed"):
        repository.land(BRANCH, old=first, new=new, fence=fence)
    assert git(origin, "rev-parse", BRANCH) == first
    (origin / "hooks/pre-receive").unlink()
    assert repository.land(BRANCH, old=first, new=new, fence=fence)


def test_a_push_that_is_lost_while_others_go_on(
    repository: GitRepository, origin: Path, tmp_path: Path
) -> None:
    """Given that another worker takes the fence right after a push whose answer is lost."""
    first, new, fence = begin(repository)
    other = git(origin, "rev-parse", "main")
    add_hook(origin, "post-receive", f"git update-ref refs/mulligan/fence/loop {other}\n{DIE}")
    assert repository.land(BRANCH, old=first, new=new, fence=fence) is None
    assert repository.contains(BRANCH, new)


def test_a_push_that_a_hook_refuses_is_reported(repository: GitRepository, origin: Path) -> None:
    first, new, fence = begin(repository)
    add_hook(origin, "pre-receive", "echo protected >&2; exit 1")
    with pytest.raises(RepositoryUnavailable, match="pre-receive hook declined"):
        repository.land(BRANCH, old=first, new=new, fence=fence)
    assert git(origin, "rev-parse", BRANCH) == first


def test_a_branch_that_is_checked_out_at_the_other_side(tmp_path: Path) -> None:
    user = UserRepository.make(tmp_path / "user")
    repository = open_repository(tmp_path / "cache", f"file://{user.path}")
    first = repository.resolve("main") or ""
    new = repository.commit(repository.tree_of(first), [first], "new\n")
    before = user.state()
    with pytest.raises(RepositoryUnavailable, match="checked out"):
        repository.land("main", old=first, new=new, fence=repository.take_fence("loop"))
    assert user.state() == before


def test_only_what_is_asked_for_is_fetched(
    repository: GitRepository, origin: Path, tmp_path: Path
) -> None:
    first = git(origin, "rev-parse", "main")
    for ref in (
        "refs/heads/other",
        "refs/tags/v1",
        "refs/mulligan/attempts/l/i/1-t",
        "refs/pull/1",
    ):
        commit = git(origin, "commit-tree", f"{first}^{{tree}}", "-m", ref)
        git(origin, "update-ref", ref, commit)
    assert repository.resolve("main") == first
    (mirror,) = (tmp_path / "cache" / "mirrors").glob("origin-*[0-9a-f]")
    assert git(mirror, "for-each-ref", "--format=%(refname)").split() == ["refs/heads/main"]
    assert len(repository.saved("l")) == 1
    assert repository.resolve("v1") is not None
    assert "refs/pull/1" not in git(mirror, "for-each-ref")


def test_a_removed_mirror_is_made_again(repository: GitRepository, tmp_path: Path) -> None:
    first = repository.resolve("main") or ""
    (mirror,) = (tmp_path / "cache" / "mirrors").glob("origin-*[0-9a-f]")
    mirror.rename(tmp_path / "gone")
    assert repository.tree_of(first)
    assert repository.contains("main", first)


def test_the_operators_configuration_is_used_for_the_network_only(
    origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given an address that only the operator's configuration can translate."""
    marker = tmp_path / "marker"
    home = tmp_path / "home"
    write(
        home, {".gitconfig": f'[url "file://{origin}"]\n\tinsteadOf = https://example.invalid/x\n'}
    )
    with (home / ".gitconfig").open("a") as file:
        file.write(f"[core]\n\tfsmonitor = touch {marker}\n\thooksPath = {home / 'hooks'}\n")
    # The other side of a push is not ours: it has the hooks that the operator gave it.
    in_mirrors = f'case "$PWD $GIT_DIR" in *mirrors*) touch {marker};; esac'
    add_hook(home, "reference-transaction", in_mirrors)
    add_hook(home, "pre-push", f"touch {marker}")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    repository = open_repository(tmp_path / "cache", "https://user:secret@example.invalid/x")
    first, _, _ = begin(open_repository(tmp_path / "cache", "https://example.invalid/x"))
    assert first == git(origin, "rev-parse", BRANCH)
    assert not marker.exists()
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(RepositoryUnavailable) as raised:
        repository.resolve("main")
    assert "secret" not in str(raised.value)
    assert "example.invalid" in str(raised.value)
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert not any(b"secret" in path.read_bytes() for path in files)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_repository_that_belongs_to_somebody_else_is_read(
    repository: GitRepository, origin: Path
) -> None:
    for path in (origin, *origin.rglob("*")):
        os.chown(path, 61_234, 61_234)
    assert repository.resolve("main")
    assert repository.take_fence("loop")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_root_leaves_no_file_in_the_repository_of_somebody_else(
    origin: Path, tmp_path: Path
) -> None:
    for path in (origin, *origin.rglob("*")):
        os.chown(path, 61_234, 61_234)
    with pytest.raises(BadInput, match="belongs to user 61234, as whom git cannot use it"):
        open_repository(tmp_path / "cache", f"file://{origin}")
    with tempfile.TemporaryDirectory(prefix="of a user-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        moved = Path(shutil.move(origin, folder))
        repository = open_repository(tmp_path / "cache", f"file://{folder}/{moved.name}")
        assert isinstance(repository, LocalRepository)
        assert repository.take_fence("loop")
        assert {path.lstat().st_uid for path in moved.rglob("*")} == {61_234}


def test_a_fetch_that_was_killed_leaves_no_lock(
    repository: GitRepository, origin: Path, tmp_path: Path
) -> None:
    first = repository.resolve("main") or ""
    new = commit_on(origin, first, {"new.txt": "new\n"})
    git(origin, "update-ref", "refs/heads/main", new)
    (mirror,) = (tmp_path / "cache" / "mirrors").glob("origin-*[0-9a-f]")
    (mirror / "refs/heads/main.lock").touch()
    assert repository.resolve("main") == new


def test_addresses_without_credentials() -> None:
    assert without_credentials("https://u:p@h.org:8443/x") == "https://h.org:8443/x"
    assert without_credentials("ssh://git:p@h/x") == "ssh://git@h/x"
    assert without_credentials("git@h:x.git") == "git@h:x.git"
    assert redact("fatal: 'https://u:p@h/x' and ssh://t@h") == "fatal: 'https://h/x' and ssh://h"
    for url in (
        "https://h/x?private_token=SECRET&a=b",
        "http://u:SE/CRET@h/x",
        "http://u:SE'CRET@h/x",
        "ftp://u:SE@CRET@h/x",
        "u:SECRET@h:x",
        "u:SE@CRET@h:x",
    ):
        for text in (redact(f"fatal: '{url}'"), shown_address(url)):
            assert "SE" not in text
            assert "CRET" not in text
            assert "h" in text
    for plain in ("https://h:80/x@v1", "git@h:x.git", "https://h/x?repo=a", "https://h/a@b/c:d"):
        assert redact(f"fatal: {plain}") == f"fatal: {plain}"
        assert shown_address(plain) == plain
    assert shown_address("ssh://git:p@h/x") == "ssh://git@h/x"
    # What only looks like a password is part of another repository's address.
    assert mirror_name("http://evil:/x@h.org/repo") != mirror_name("http://h.org/repo")
    assert mirror_name("evil:x@h.org:repo") != mirror_name("h.org:repo")
    names = {mirror_name(f"https://{who}h.org/team/repo.git") for who in ("", "u:p@", "u@")}
    assert len(names) == 1
    assert names.pop().startswith("repo-")
    assert mirror_name("git@h:../../x") != mirror_name("git@h:x")
    assert "/" not in mirror_name("git@h:../..")
