"""Rollbacks in any order restore the original files or report a conflict."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.file_trees import change, snapshot, write_files

from mulligan.tasks.ports.appliers import FileChange
from mulligan.workers.edits.tree.edited_tree import EditedTree
from mulligan.workers.edits.tree.undo import RollbackConflict

#: Few names and lines, so that edits overlap, restore earlier content and reuse names.
NAMES = ("a", "d/b", "d/e/c")
TEXTS = st.lists(st.sampled_from(["1\n", "2\n", "3\n"]), min_size=1, max_size=9)


@contextmanager
def tree_with(files: dict[str, bytes]) -> Iterator[EditedTree]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        root.mkdir()
        write_files(root, dict(files))
        tree = EditedTree(root, Path(folder) / "home", timeout=0)
        with tree.held("all"):
            yield tree


def joined(lines: Sequence[str]) -> bytes:
    return "".join(lines).encode()


def apply(tree: EditedTree, edit_id: str, *changes: FileChange) -> None:
    tree.apply(edit_id, "s", "auto", changes)


def states(tree: EditedTree) -> dict[str | None, str]:
    return {c.edit_id: c.state for c in tree.history() if c.kind == "edit"}


def test_content_restored_by_a_later_edit_does_not_count_as_rolled_back() -> None:
    with tree_with({"x": b"10\n"}) as tree:
        first = snapshot(tree.root)
        apply(tree, "e1", change(tree.root, "x", b"99\n"))
        apply(tree, "e2", change(tree.root, "x", b"10\n"))
        with pytest.raises(RollbackConflict) as refused:
            tree.rollback_edit("e1")
        assert tuple(map(str, refused.value.problems)) == (
            "x: a later edit already restored it (since then: edit e2 of session s)",
        )
        assert states(tree) == {"e1": "applied", "e2": "applied"}
        tree.rollback_edit("e2")
        tree.rollback_edit("e1")
        assert tree.rollback_edit("e1").checkpoint is None
        assert snapshot(tree.root) == first


def test_a_file_moved_by_a_later_edit_does_not_count_as_rolled_back() -> None:
    with tree_with({}) as tree:
        apply(tree, "e3", change(tree.root, "n", b"n\n"))
        apply(tree, "e4", change(tree.root, "n", None), change(tree.root, "m", b"n\n"))
        with pytest.raises(RollbackConflict, match="n: a later edit already restored it"):
            tree.rollback_edit("e3")
        tree.rollback_session("s")
        assert snapshot(tree.root) == {}


def test_one_of_two_changes_restored_by_a_later_edit_is_a_conflict() -> None:
    """The merge alone accepts it: both sides make the same change."""
    ten = [f"line {n}\n" for n in range(10)]
    with tree_with({"f": joined(ten)}) as tree:
        apply(tree, "e1", change(tree.root, "f", joined(["one\n", *ten[1:9], "nine\n"])))
        apply(tree, "e2", change(tree.root, "f", joined([*ten[:5], "five\n", *ten[6:9], "nine\n"])))
        with pytest.raises(RollbackConflict, match="f: later edits build on it"):
            tree.rollback_edit("e1")
        tree.rollback_edit("e2")
        tree.rollback_edit("e1")
        assert (tree.root / "f").read_bytes() == joined(ten)


def test_a_folder_goes_with_the_last_edit_that_needs_it() -> None:
    with tree_with({}) as tree:
        apply(tree, "e1", change(tree.root, "d/one", b"1\n"))
        apply(tree, "e2", change(tree.root, "d/two", b"2\n"))
        tree.rollback_edit("e1")
        assert sorted(snapshot(tree.root)) == ["d", "d/two"]
        tree.rollback_edit("e2")
        assert snapshot(tree.root) == {}


def test_a_folder_created_by_hand_meanwhile_stays() -> None:
    with tree_with({}) as tree:
        apply(tree, "e1", change(tree.root, "d/one", b"1\n"))
        tree.rollback_edit("e1")
        (tree.root / "d").mkdir()
        apply(tree, "e2", change(tree.root, "d/two", b"2\n"))
        tree.rollback_edit("e2")
        assert sorted(snapshot(tree.root)) == ["d"]


@st.composite
def edits(draw: st.DrawFn) -> tuple[str, str, str, bytes, bool]:
    kind = draw(st.sampled_from(["write", "write", "write", "delete", "rename"]))
    path, to = draw(st.sampled_from(NAMES)), draw(st.sampled_from(NAMES))
    return kind, path, to, joined(draw(TEXTS)), draw(st.booleans())


def changes_of(
    root: Path, kind: str, path: str, to: str, data: bytes, executable: bool
) -> list[FileChange]:
    """Return the changes of an edit of the current files, or none if it does not apply."""
    current = (root / path).read_bytes() if (root / path).exists() else None
    if kind == "write":
        mode = 0o755 if executable else 0o644
        now = (root / path).stat().st_mode & 0o777 if current is not None else 0o644
        written = change(root, path, data, mode if mode != now else None)
        return [] if written.unchanged else [written]
    if current is None or (kind == "rename" and (root / to).exists()):
        return []
    moved = [change(root, to, current)] if kind == "rename" else []
    return [change(root, path, None), *moved]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from(NAMES), TEXTS.map(joined)),
    st.lists(edits(), min_size=2, max_size=6),
    st.data(),
)
def test_any_order_of_rollbacks_restores_the_original_files_or_conflicts(
    files: dict[str, bytes],
    edits: list[tuple[str, str, str, bytes, bool]],
    data: st.DataObject,
) -> None:
    with tree_with(files) as tree:
        first = snapshot(tree.root)
        applied: dict[str, str] = {}
        for number, drawn in enumerate(edits):
            changes = changes_of(tree.root, *drawn)
            if changes:
                applied[f"e{number}"] = data.draw(st.sampled_from("st"), label="session")
                tree.apply(f"e{number}", applied[f"e{number}"], "auto", changes)
        conflicts = 0
        for name in data.draw(st.permutations([*applied, *set(applied.values())]), label="order"):
            before, known_states = snapshot(tree.root), states(tree)
            whole = name in applied.values()
            try:
                tree.rollback_session(name) if whole else tree.rollback_edit(name)
            except RollbackConflict:
                conflicts += 1
                assert snapshot(tree.root) == before
                assert states(tree) == known_states
            else:
                rolled_back = [e for e, session in applied.items() if name in (e, session)]
                assert {states(tree)[edit_id] for edit_id in rolled_back} == {"rolled_back"}
        if not conflicts:
            assert snapshot(tree.root) == first
        # The rest can always be rolled back in reverse order.
        for edit_id in reversed(applied):
            tree.rollback_edit(edit_id)
        assert snapshot(tree.root) == first
