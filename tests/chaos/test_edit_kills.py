"""A process is killed at every step of an edit and of a rollback; the tree is never torn.

It is killed at each named step, and right before each effect on the file system. After recovery,
the tree is in its state before or after the whole operation: contents, modes, files and folders.
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


class TreeCase:
    """A tree, an operation on it, and its only two allowed states."""

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

    def tree(self, on_step: Callable[[str], None] | None = None) -> EditedTree:
        return EditedTree(self.root, self.home, timeout=5, on_step=on_step)

    def edit(self, tree: EditedTree) -> None:
        tree.apply("e1", "s", "auto", self.changes)

    def act(self, tree: EditedTree) -> None:
        if self.kind == "edit":
            self.edit(tree)
        else:
            tree.rollback_edit("e1")

    def reset(self) -> None:
        """Restore the tree as it was before the operation."""
        for folder in (self.root, self.home):
            shutil.rmtree(folder, ignore_errors=True)
            if (self._stage / folder.name).exists():
                shutil.copytree(self._stage / folder.name, folder)

    def check_whole(self) -> str:
        """Recover the tree, check that it is whole and usable, and return its state."""
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
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TreeCase:
    return TreeCase(tmp_path_factory.mktemp("case"), request.param)


@pytest.mark.parametrize("name", STEPS)
def test_a_kill_at_a_named_step_leaves_a_whole_tree(case: TreeCase, name: str) -> None:
    def dying(passed: str) -> None:
        if passed == f"{case.kind}_{name}":
            die()

    case.reset()
    assert in_child(lambda: case.act(case.tree(dying))) == KILLED
    state = case.check_whole()
    # Before the first file is written, the operation is undone; later, it is completed.
    early = name in ("checked", "stored", "intended")
    assert state == ("before" if early else "after")


def test_a_kill_before_any_effect_leaves_a_whole_tree(case: TreeCase) -> None:
    states = []
    effect = 1
    while True:
        case.reset()
        ended = in_child(killed_before(effect, lambda: case.act(case.tree())))
        if ended == 0:
            break
        assert ended == KILLED
        states.append(case.check_whole())
        effect += 1
    assert len(states) > 20
    # From one effect on, the operation is completed.
    assert states == sorted(states, reverse=True)
    assert set(states) == {"before", "after"}
    git("--git-dir", str(case.tree().state / "git"), "fsck", "--strict", cwd=case.root)


def test_a_killed_recovery_can_be_repeated(case: TreeCase) -> None:
    torn = _torn(case)
    effect = 1
    while True:
        case.reset()
        assert in_child(killed_before(torn, lambda: case.act(case.tree()))) == KILLED
        ended = in_child(killed_before(effect, lambda: case.tree().recover()))
        assert case.check_whole() == "after"
        if ended == 0:
            break
        effect += 1
    assert effect > 5


def _torn(case: TreeCase) -> int:
    """Return an effect before which some files are written and others are not."""
    untouched, touched = 1, 500
    while touched - untouched > 1:
        effect = (untouched + touched) // 2
        case.reset()
        in_child(killed_before(effect, lambda: case.act(case.tree())))
        if _files(snapshot(case.root)) == _files(case.before):
            untouched = effect
        else:
            touched = effect
    case.reset()
    in_child(killed_before(touched + 1, lambda: case.act(case.tree())))
    assert _files(snapshot(case.root)) not in (_files(case.before), _files(case.after))
    return touched + 1


def _files(found: Snapshot) -> Snapshot:
    return {
        name: what
        for name, what in found.items()
        if isinstance(what, tuple) and ".mulligan-tmp-" not in name
    }


@pytest.mark.parametrize(
    ("users", "kept"),
    [
        # The user changed other lines: the edit is undone, the user's line stays.
        (b"ONE\r\n2\r\n3\r\nmine\r\n", b"one\r\n2\r\n3\r\nmine\r\n"),
        # The user changed the same lines: nothing is overwritten.
        (b"mine\r\n2\r\n3\r\n4\r\n", b"mine\r\n2\r\n3\r\n4\r\n"),
        # The file was deleted.
        (None, None),
    ],
)
def test_changes_of_the_user_before_the_recovery_stay(
    tmp_path: Path, users: bytes | None, kept: bytes | None
) -> None:
    root = tmp_path / "root"
    write_files(root, {"a": b"one\r\n2\r\n3\r\n4\r\n", "b": b"b\n"})
    changes = [change(root, "a", b"ONE\r\n2\r\n3\r\n4\r\n"), change(root, "b", b"B\n")]
    tree = EditedTree(
        root, tmp_path / "home", on_step=lambda s: die() if s == "edit_written" else None
    )
    assert in_child(lambda: tree.apply("e1", "s", "auto", changes)) == KILLED
    assert (root / "b").read_bytes() == b"B\n"
    (root / "a").unlink()
    if users is not None:
        write_files(root, {"a": users})
    recovered = EditedTree(root, tmp_path / "home").recover()
    assert recovered is not None
    assert recovered.outcome == "undone"
    assert recovered.left_as_is == (() if kept != users else ("a",))
    assert (root / "b").read_bytes() == b"b\n"
    assert ((root / "a").read_bytes() if kept is not None else None) == kept


def test_a_link_in_place_of_a_file_does_not_stop_the_recovery(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write_files(root, {"a": b"a\n", "b": b"b\n", "c": b"c\n"})
    changes = [change(root, "a", b"A\n"), change(root, "b", b"B\n")]
    tree = EditedTree(
        root, tmp_path / "home", on_step=lambda s: die() if s == "edit_written" else None
    )
    assert in_child(lambda: tree.apply("e1", "s", "auto", changes)) == KILLED
    (root / "a").unlink()
    (root / "a").symlink_to("c")
    recovered = EditedTree(root, tmp_path / "home").recover()
    assert recovered is not None
    assert recovered.left_as_is == ("a",)
    assert {n: (root / n).read_bytes() for n in "bc"} == {"b": b"b\n", "c": b"c\n"}
