"""Which names of repositories are accepted, and what is said about the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.git_repositories import UserRepository

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.repositories.remote_repository import RemoteRepository
from mulligan.workers.repositories.repositories import GitRepositories


@pytest.fixture
def repositories(tmp_path: Path) -> GitRepositories:
    user = UserRepository.make(tmp_path / "user")
    profiles = {"mine": str(user.path), "theirs": "https://user:pw@example.org/x.git"}
    return GitRepositories(tmp_path / "cache", profiles)


def test_profiles_paths_and_addresses(repositories: GitRepositories, tmp_path: Path) -> None:
    assert repositories.open("mine").resolve("main")
    assert repositories.open(str(tmp_path / "user")).resolve("main")
    assert repositories.open("theirs").name == "https://example.org/x.git"
    for name in (
        "https://example.org/x", "http://u@example.org:80/x", "ssh://git@example.org:22/x.git",
        "git://example.org/x", "git@example.org:team/x.git", "example.org:x", "file:///srv/x.git",
        "https://[::1]/x", "git@example.org:~user/x",
    ):  # fmt: skip
        assert isinstance(repositories.open(name), RemoteRepository), name


REFUSED = [
    "-x", "--upload-pack=touch /tmp/x", "ext::sh -c touch% /tmp/x", "fd::17", "https::x",
    "ftp://example.org/x", "file://host/x", "ssh://-oProxyCommand=x/y", "ssh://-o@host/y",
    "https://", "", "x\0y", "https://example.org/x\n", "relative/path", "main", ".", "../x",
    "-o@host:x", "host:-x", "host::x", "git+ssh://example.org/x", "user@-host:x", "https://h:x/y",
    "\x1b[2J",
]  # fmt: skip


def test_everything_else_is_refused(repositories: GitRepositories) -> None:
    for name in REFUSED:
        with pytest.raises(BadInput):
            repositories.open(name)


def test_messages_name_the_fix(repositories: GitRepositories, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "broken" / ".git").mkdir(parents=True)
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / ".git").write_text("gitdir: /nowhere\n")
    for name in ("empty", "file", "broken", "lost"):
        with pytest.raises(BadInput, match=r"is not a git repository.*: run `git init` there, or"):
            repositories.open(str(tmp_path / name))
    with pytest.raises(BadInput, match="does not exist on this worker"):
        repositories.open(str(tmp_path / "none"))
    with pytest.raises(BadInput, match="only https, http, ssh, git, file"):
        repositories.open("ext::sh")
    with pytest.raises(BadInput, match="mine"):
        repositories.open("mime")
    with pytest.raises(BadInput) as raised:
        repositories.open("ftp://user:secret@example.org/x")
    assert "secret" not in str(raised.value)
