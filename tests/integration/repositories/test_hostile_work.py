"""What an agent leaves in its directory runs no code in the worker and leads nowhere else."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.git_repositories import (
    FILES,
    UserRepository,
    add_hook,
    files_of,
    git,
    open_repository,
    write,
)

from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
from mulligan.workers.repositories.checkouts import AttemptCheckout, Checkouts
from mulligan.workers.repositories.git_repository import GitRepository
from mulligan.workers.repositories.work_store import WorkStore

SECRET = b"secret of the worker's user"


class Attack:
    """An attempt, and what the agent must not reach."""

    def __init__(self, tmp_path: Path) -> None:
        self.user = UserRepository.make(tmp_path / "user")
        self.repository: GitRepository = open_repository(tmp_path / "cache", self.user.path)
        self.marker = tmp_path / "marker"
        self.program = tmp_path / "program"
        self.program.write_text(f"#!/bin/sh\ntouch {self.marker}\ncat\n")
        self.program.chmod(0o755)
        self.outside = tmp_path / "outside"
        write(self.outside, {"b.py": SECRET, "secret.txt": SECRET, ".gitignore": "*\n"})
        self._checkouts = Checkouts(tmp_path / "private")
        self._attempt = self._checkouts.attempt(
            self.repository,
            branch="mulligan/loop",
            start="main",
            loop="loop",
            item="item",
            attempt=1,
            token="t",
        )
        self.checkout: AttemptCheckout = self._attempt.__enter__()
        self.work = self.checkout.directory

    def save(self) -> dict[str, tuple[str, bytes]]:
        """Save and verify the work; return what was saved."""
        write(self.work, {"work.txt": "work\n"})
        saved = self.checkout.save()
        assert saved is not None
        found = files_of(self.user.path, saved)
        assert found["work.txt"] == ("100644", b"work\n")
        assert not any(SECRET in content for _, content in found.values())
        with self._checkouts.attempt(
            self.repository, branch="mulligan/loop", start="main", loop="loop", item="item",
            attempt=2, token="t", kept=saved,
        ) as again:  # fmt: skip
            again.save()
        merged = self.repository.merge(self.checkout.base, saved)
        self.repository.diff(self.checkout.base, merged.tree, max_bytes=10_000)
        self._checkouts.export(self.repository, saved)
        return found

    def end(self) -> None:
        self._attempt.__exit__(None, None, None)
        assert not self.marker.exists()
        assert (self.outside / "secret.txt").read_bytes() == SECRET
        assert sorted(p.name for p in self.outside.iterdir()) == [
            ".gitignore",
            "b.py",
            "secret.txt",
        ]
        self.user.git("fsck", "--connectivity-only")


@pytest.fixture
def attack(tmp_path: Path) -> Iterator[Attack]:
    found = Attack(tmp_path)
    yield found
    found.end()


def test_configuration_hooks_and_attributes(attack: Attack) -> None:
    inside, program = attack.work / ".git", str(attack.program)
    for name in (
        "core.fsmonitor", "core.sshCommand", "core.pager", "core.editor", "core.askPass",
        "core.gitProxy", "core.alternateRefsCommand", "filter.x.clean", "filter.x.smudge",
        "filter.x.process", "diff.x.command", "diff.x.textconv", "merge.x.driver",
        "diff.external", "gpg.program", "credential.helper", "uploadpack.packObjectsHook",
        "alias.ls-files", "alias.commit-tree", "sequence.editor", "remote.origin.uploadpack",
    ):  # fmt: skip
        git(attack.work, "config", name, program)
    git(attack.work, "config", "filter.x.required", "true")
    git(attack.work, "config", "core.hooksPath", str(inside / "hooks"))
    git(attack.work, "config", "include.path", str(attack.outside / "secret.txt"))
    for name in ("reference-transaction", "post-index-change", "fsmonitor-watchman", "pre-push"):
        add_hook(inside, name, f"touch {attack.marker}")
    write(inside, {"info/attributes": "* filter=x diff=x merge=x\n"})
    write(
        attack.work, {".gitattributes": "* filter=x diff=x merge=x text=auto\n", "a.txt": "new\n"}
    )
    found = attack.save()
    assert found["a.txt"] == ("100644", b"new\n")
    assert found[".gitattributes"][1].startswith(b"* filter=x")


def test_attributes_cannot_keep_work_from_being_saved(attack: Attack) -> None:
    text = "* working-tree-encoding=UTF-16 ident text eol=crlf\n[attr]binary text\n\0\n"
    write(attack.work, {".gitattributes": text, "src/.gitattributes": "* filter=lfs\n" * 10_000})
    write(attack.work, {"crlf.txt": "a\r\n", "id.txt": "$Id: 1 $\n"})
    found = attack.save()
    assert found["crlf.txt"][1] == b"a\r\n"
    assert found["id.txt"][1] == b"$Id: 1 $\n"


def remove(attack: Attack) -> None:
    shutil.rmtree(attack.work / ".git")


def as_file(attack: Attack) -> None:
    remove(attack)
    write(attack.work, {".git": f"gitdir: {attack.user.path / '.git'}\n"})


def as_link(attack: Attack) -> None:
    remove(attack)
    (attack.work / ".git").symlink_to(attack.user.path / ".git")


def as_pipe(attack: Attack) -> None:
    remove(attack)
    os.mkfifo(attack.work / ".git")


def with_another_worktree(attack: Attack) -> None:
    git(attack.work, "config", "core.worktree", str(attack.outside))
    git(attack.work, "config", "core.bare", "true")


def with_other_objects(attack: Attack) -> None:
    write(attack.work / ".git/objects/info", {"alternates": f"{attack.outside}\n"})
    write(
        attack.work / ".git",
        {"index": "not an index", "HEAD": "ref: ../../x\n", "commondir": "/\n"},
    )


@pytest.mark.parametrize(
    "change", [remove, as_file, as_link, as_pipe, with_another_worktree, with_other_objects]
)
def test_the_git_directory_of_the_agent_does_not_matter(
    attack: Attack, change: Callable[[Attack], None]
) -> None:
    before = attack.user.state()
    change(attack)
    assert attack.save().keys() == {*FILES, "work.txt"}
    assert attack.user.state() == before


def test_links_are_saved_as_links(attack: Attack) -> None:
    shutil.rmtree(attack.work / "src")
    (attack.work / "src").symlink_to(attack.outside)
    (attack.work / "a.txt").unlink()
    (attack.work / "a.txt").symlink_to(attack.outside / "secret.txt")
    (attack.work / "new").symlink_to("/etc")
    (attack.work / ".gitattributes").symlink_to(attack.outside / "secret.txt")
    found = attack.save()
    assert found["src"] == ("120000", str(attack.outside).encode())
    assert found["a.txt"] == ("120000", str(attack.outside / "secret.txt").encode())
    assert found["new"] == ("120000", b"/etc")
    assert "src/b.py" not in found


def test_a_linked_gitignore_is_not_read(attack: Attack) -> None:
    """The file it leads to would ignore everything."""
    (attack.work / ".gitignore").symlink_to(attack.outside / ".gitignore")
    assert ".gitignore" in attack.save()


def test_a_directory_that_becomes_a_link_after_it_was_listed(
    attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(attack.work, {"new/secret.txt": "mine\n"})
    listed = WorkStore._others

    def exchange(store: WorkStore, directory: Path) -> set[bytes]:
        found = listed(store, directory)
        assert b"new/secret.txt" in found
        for name in ("new", "src"):
            shutil.rmtree(attack.work / name)
            (attack.work / name).symlink_to(attack.outside)
        return found

    write(attack.work, {"work.txt": "work\n"})
    with monkeypatch.context() as patched:
        patched.setattr(WorkStore, "_others", exchange)
        saved = attack.checkout.save()
    assert saved is not None
    assert files_of(attack.user.path, saved).keys() == {"a.txt", "work.txt"}


def test_directories_and_links_that_are_exchanged_all_the_time(attack: Attack) -> None:
    stop = threading.Event()

    def exchange() -> None:
        write(attack.work, {"real/secret.txt": "mine\n"})
        (attack.work / "link").symlink_to(attack.outside)
        while not stop.is_set():
            with suppress(OSError):
                (attack.work / "real").rename(attack.work / "new")
                (attack.work / "new").rename(attack.work / "real")
                (attack.work / "link").rename(attack.work / "new")
                (attack.work / "new").rename(attack.work / "link")

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for count in range(4):
            write(attack.work, {"count": str(count)})
            saved = attack.checkout.save()
            assert saved is not None
            found = files_of(attack.user.path, saved)
            assert not any(SECRET in content for _, content in found.values())
    finally:
        stop.set()
        thread.join()


def test_a_submodule_that_wants_to_run_a_command(attack: Attack) -> None:
    program = attack.program
    text = f'[submodule "x"]\n\tpath = x\n\turl = ext::{program}\n\tupdate = !{program}\n'
    write(attack.work, {".gitmodules": text})
    other = UserRepository.make(attack.work / "x", {"f": "f\n"})
    add_hook(other.path / ".git", "post-index-change", f"touch {attack.marker}")
    other.git("config", "core.fsmonitor", str(attack.program))
    assert {".gitmodules", "x/f"} <= attack.save().keys()


def test_nested_repositories_lead_nowhere(attack: Attack) -> None:
    write(attack.work, {"x/.git": f"gitdir: {attack.user.path / '.git'}\n", "x/f": "f\n"})
    (attack.work / "y").mkdir()
    (attack.work / "y/.git").symlink_to(attack.user.path / ".git")
    write(attack.work, {"y/f": "f\n"})
    found = attack.save()
    assert {"x/f", "y/f"} <= found.keys()
    assert not any(".git" in name.split("/") for name in found)


def test_a_gitignore_that_never_ends_stops_the_saving_only(
    attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attack.checkout._store, "_listing_seconds", 0.5)
    os.mkfifo(attack.work / ".gitignore")
    write(attack.work, {"work.txt": "work\n"})
    with pytest.raises(BadInput, match=r"cannot be listed in 0\.5 s"):
        attack.checkout.save()
    (attack.work / ".gitignore").unlink()
    attack.save()


def test_very_long_and_very_deep_paths(attack: Attack) -> None:
    here = os.open(attack.work, os.O_RDONLY)
    try:
        for _ in range(120):
            os.mkdir("d" * 40, dir_fd=here)
            below = os.open("d" * 40, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    finally:
        os.close(here)
    write(attack.work, {"n" * 255: "n\n"})
    found = attack.save()
    assert "n" * 255 in found


def test_a_tree_that_no_git_would_make_is_not_checked_out(attack: Attack, tmp_path: Path) -> None:
    """Given commits whose trees contain .git, made by hand and pushed to the repository."""
    user = attack.user
    hook = user.git(
        "hash-object", "-w", "--stdin", stdin=f"#!/bin/sh\ntouch {attack.marker}\n".encode()
    )
    hooks = user.git("mktree", stdin=f"100755 blob {hook}\tpost-checkout\n".encode())
    inside = user.git("mktree", stdin=f"040000 tree {hooks}\thooks\n".encode())
    for name in (".git", ".GIT", "git~1", ".."):
        tree = user.git("mktree", stdin=f"040000 tree {inside}\t{name}\n".encode())
        into = tmp_path / "into"
        with pytest.raises(RepositoryUnavailable, match="invalid path"):
            Checkouts().files(attack.repository, tree, into)
        assert [p for p in into.rglob("*") if p.is_file()] == []
