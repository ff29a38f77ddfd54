"""A worker that is not root: its agents can close files to it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.file_trees import in_child
from support.git_repositories import FILES, UserRepository, files_of, open_repository, write

from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
from mulligan.workers.repositories.checkouts import Checkouts

UID = 61_200


def as_user(function: Callable[[Path], None]) -> None:
    """Run a function in a process of an ordinary user, with a directory of that user."""
    folder = Path(tempfile.mkdtemp(prefix="u-", dir="/tmp"))

    def become_user() -> None:
        if os.getuid() == 0:
            os.setgroups([])
            os.setresgid(UID, UID, UID)
            os.setresuid(UID, UID, UID)
        os.environ["HOME"] = str(folder)
        function(folder)

    try:
        if os.getuid() == 0:
            os.chown(folder, UID, UID)
        code = in_child(become_user)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert code == 0, "see stderr"


def save_what_can_be_read(folder: Path) -> None:
    user = UserRepository.make(folder / "user", dict(FILES) | {"closed/in.txt": "in\n"})
    for number, name in enumerate((str(user.path), f"file://{user.path}"), start=1):
        repository = open_repository(folder / "cache", name)
        with Checkouts(folder / "private").attempt(
            repository, branch=f"b{number}", start="main", loop="l", item=f"i{number}", attempt=1,
            token="t",
        ) as checkout:  # fmt: skip
            work = checkout.directory
            write(work, {"new.txt": "new\n", "hidden.txt": "h\n", "also/x.txt": "x\n"})
            for closed in ("a.txt", "hidden.txt", "closed", "also"):
                (work / closed).chmod(0)
            saved = checkout.save()
            assert saved is not None
            found = files_of(user.path, saved)
            # What was there before is no deletion, and what was never read is not there.
            assert found.keys() == {*FILES, "closed/in.txt", "new.txt"}
            assert found["a.txt"] == ("100644", FILES["a.txt"].encode())
            for opened in ("a.txt", "hidden.txt", "closed", "also"):
                (work / opened).chmod(0o755)
            again = checkout.save()
            assert again is not None
            assert {"hidden.txt", "also/x.txt"} <= files_of(user.path, again).keys()
            (work / "closed").chmod(0)
        assert list((folder / "private").iterdir()) == []


def write_to_what_is_not_theirs(folder: Path) -> None:
    user = UserRepository.make(folder / "user", dict(FILES))
    objects, refs = user.path / ".git/objects", user.path / ".git/refs"
    repository = open_repository(folder / "cache", user.path)
    first = repository.resolve("main") or ""
    for closed in (objects, refs, refs / "heads"):
        closed.chmod(0o500)
    with pytest.raises(RepositoryUnavailable, match=r"(?i)permission"):
        repository.commit(repository.tree_of(first), [first], "x\n")
    with pytest.raises(RepositoryUnavailable, match=r"(?i)permission"):
        repository.begin_branch("new", first)
    objects.chmod(0o700)
    (user.path / ".git").chmod(0)
    with pytest.raises(BadInput, match="cannot be read: Permission denied"):
        open_repository(folder / "cache", user.path)
    (user.path / ".git").chmod(0o700)


@pytest.mark.parametrize("scenario", [save_what_can_be_read, write_to_what_is_not_theirs])
def test_as_an_ordinary_user(scenario: Callable[[Path], None]) -> None:
    as_user(scenario)
