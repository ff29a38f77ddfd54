"""A process is killed at every step of an edit and of a rollback; the tree is never torn.

Two ways: at each step that has a name, and right before each single thing that the process does to
the file system. Whenever it dies, the recovery that precedes any further use leaves the tree before
or after the whole operation: contents, modes, new files and folders.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.file_trees import (
    Snapshot,
    change,
    die,
    git,
    in_child,
    killed_before,
    snapshot,
    write_files,
)

from mulligan.tasks.ports.appliers import FileChange
from mulligan.workers.edits.tree.edited_tree import EditedTree
from mulligan.workers.edits.tree.operator import STEPS

pytestmark = pytest.mark.chaos

FILES: dict[str, bytes | tuple[bytes, int]] = {
    "app.py": (b"one\r\ntwo\r\n", 0o640),
    "run.sh": (b"#!/bin/sh\n", 0o755),
    "old/gone.txt": b"gone\n",
    "becomes": b"a folder\n",
}
KILLED = -9


class Story:
    """A tree, an operation on it, and the two states that it may ever be found in."""

    def __init__(self, place: Path, kind: str) -> None:
        self.root, self.home = place / "root", place / "home"
        self._stage = place / "stage"
        self.kind = kind
        self.root.mkdir()
        write_files(self.root, FILES)
        self.changes = _changes(self.root)
        if kind == "rollback":
            self.edit(self.tree())
        for folder in (self.root, self.home):
            if folder.exists():
                shutil.copytree(folder, self._stage / folder.name)
        self.before = snapshot(self.root)
        self.act(self.tree())
        self.after = snapshot(self.root)
        assert self.after != self.before

    def tree(self, step: Callable[[str], None] | None = None) -> EditedTree:
        return EditedTree(self.root, self.home, timeout=5, step=step)

    def edit(self, tree: EditedTree) -> None:
        tree.apply("e1", "s", "auto", self.changes)

    def act(self, tree: EditedTree) -> None:
        if self.kind == "edit":
            self.edit(tree)
        else:
            tree.rollback_edit("e1")

    def again(self) -> None:
        """As if nothing had happened."""
        for folder in (self.root, self.home):
            shutil.rmtree(folder, ignore_errors=True)
            if (self._stage / folder.name).exists():
                shutil.copytree(self._stage / folder.name, folder)

    def check_whole(self) -> str:
        """The tree after recovery is whole, says so, and can be used on. Which state it is in."""
        tree = self.tree()
        tree.recover()
        found = snapshot(self.root)
        assert found in (self.before, self.after)
        done = found == self.after
        states = [(c.kind, c.state, bool(c.commit)) for c in tree.history()]
        edited = ("edit", "applied" if done == (self.kind == "edit") else "rolled_back", True)
        rolled = ("rollback", "applied", True)
        expected = {"edit": [edited] * done, "rollback": [edited, *[rolled] * done]}[self.kind]
        assert states == expected
        self.act(tree)
        assert snapshot(self.root) == self.after
        return "after" if done else "before"


def _changes(root: Path) -> list[FileChange]:
    return [
        change(root, "app.py", b"one\r\n2\r\n"),
        change(root, "run.sh", b"#!/bin/sh\nexit 1\n", 0o600),
        change(root, "old/gone.txt", None),
        change(root, "becomes", None),
        change(root, "becomes/a/file.txt", b"new\n", 0o755),
        change(root, "new/file.txt", b""),
    ]


@pytest.fixture(scope="module", params=["edit", "rollback"])
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("story"), request.param)


@pytest.mark.parametrize("name", STEPS)
def test_killed_at_a_named_step(story: Story, name: str) -> None:
    def dying(passed: str) -> None:
        if passed == f"{story.kind}_{name}":
            die()

    story.again()
    assert in_child(lambda: story.act(story.tree(dying))) == KILLED
    state = story.check_whole()
    # Before the first file is written it never happened; after the last it did.
    early = name in ("checked", "stored", "intended")
    assert state == ("before" if early else "after")


def test_killed_before_each_single_deed(story: Story) -> None:
    states = []
    deed = 1
    while True:
        story.again()
        ended = in_child(killed_before(deed, lambda: story.act(story.tree())))
        if ended == 0:
            break
        assert ended == KILLED
        states.append(story.check_whole())
        deed += 1
    assert len(states) > 20
    # There is one moment from which on it happened.
    assert states == sorted(states, reverse=True)
    assert set(states) == {"before", "after"}
    git("--git-dir", str(story.tree().state / "git"), "fsck", "--strict", cwd=story.root)


def test_a_recovery_that_is_killed_is_recovered_from(story: Story) -> None:
    torn = _torn(story)
    deed = 1
    while True:
        story.again()
        assert in_child(killed_before(torn, lambda: story.act(story.tree()))) == KILLED
        ended = in_child(killed_before(deed, lambda: story.tree().recover()))
        assert story.check_whole() == "after"
        if ended == 0:
            break
        deed += 1
    assert deed > 5


def _torn(story: Story) -> int:
    """A deed before which some files are written and others are not: the one after the first."""
    untouched, touched = 1, 500
    while touched - untouched > 1:
        deed = (untouched + touched) // 2
        story.again()
        in_child(killed_before(deed, lambda: story.act(story.tree())))
        if _files(snapshot(story.root)) == _files(story.before):
            untouched = deed
        else:
            touched = deed
    story.again()
    in_child(killed_before(touched + 1, lambda: story.act(story.tree())))
    assert _files(snapshot(story.root)) not in (_files(story.before), _files(story.after))
    return touched + 1


def _files(found: Snapshot) -> Snapshot:
    return {
        name: what
        for name, what in found.items()
        if isinstance(what, tuple) and ".mulligan-tmp-" not in name
    }


@pytest.mark.parametrize(
    ("theirs", "kept"),
    [
        # Other lines of a file that was written: the edit goes, their line stays.
        (b"ONE\r\n2\r\n3\r\nmine\r\n", b"one\r\n2\r\n3\r\nmine\r\n"),
        # The same lines: whose they are cannot be told, so nothing is overwritten.
        (b"mine\r\n2\r\n3\r\n4\r\n", b"mine\r\n2\r\n3\r\n4\r\n"),
        # The file was deleted.
        (None, None),
    ],
)
def test_what_the_user_did_before_the_recovery_stays(
    tmp_path: Path, theirs: bytes | None, kept: bytes | None
) -> None:
    root = tmp_path / "root"
    write_files(root, {"a": b"one\r\n2\r\n3\r\n4\r\n", "b": b"b\n"})
    changes = [change(root, "a", b"ONE\r\n2\r\n3\r\n4\r\n"), change(root, "b", b"B\n")]
    tree = EditedTree(
        root, tmp_path / "home", step=lambda s: die() if s == "edit_written" else None
    )
    assert in_child(lambda: tree.apply("e1", "s", "auto", changes)) == KILLED
    assert (root / "b").read_bytes() == b"B\n"
    (root / "a").unlink()
    if theirs is not None:
        write_files(root, {"a": theirs})
    settled = EditedTree(root, tmp_path / "home").recover()
    assert settled is not None
    assert settled.outcome == "undone"
    assert settled.left == (() if kept != theirs else ("a",))
    assert (root / "b").read_bytes() == b"b\n"
    assert ((root / "a").read_bytes() if kept is not None else None) == kept


def test_a_link_in_the_place_of_a_file_does_not_stop_the_recovery(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write_files(root, {"a": b"a\n", "b": b"b\n", "c": b"c\n"})
    changes = [change(root, "a", b"A\n"), change(root, "b", b"B\n")]
    tree = EditedTree(
        root, tmp_path / "home", step=lambda s: die() if s == "edit_written" else None
    )
    assert in_child(lambda: tree.apply("e1", "s", "auto", changes)) == KILLED
    (root / "a").unlink()
    (root / "a").symlink_to("c")
    settled = EditedTree(root, tmp_path / "home").recover()
    assert settled is not None
    assert settled.left == ("a",)
    assert {n: (root / n).read_bytes() for n in "bc"} == {"b": b"b\n", "c": b"c\n"}
