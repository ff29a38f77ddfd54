"""Rollbacks in any order: the files end as they were at first, or a conflict is told."""

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

#: A few lines of a few words: edits meet, put back what was there, and take each other's names.
NAMES = ("a", "d/b", "d/e/c")
TEXTS = st.lists(st.sampled_from(["1\n", "2\n", "3\n"]), min_size=1, max_size=9)


@contextmanager
def planted(files: dict[str, bytes]) -> Iterator[EditedTree]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        root.mkdir()
        write_files(root, dict(files))
        tree = EditedTree(root, Path(folder) / "home", timeout=0)
        with tree.held("all"):
            yield tree


def lined(lines: Sequence[str]) -> bytes:
    return "".join(lines).encode()


def apply(tree: EditedTree, edit_id: str, *changes: FileChange) -> None:
    tree.apply(edit_id, "s", "auto", changes)


def states(tree: EditedTree) -> dict[str | None, str]:
    return {c.edit_id: c.state for c in tree.history() if c.kind == "edit"}


def test_what_a_later_edit_put_back_is_not_taken_for_rolled_back() -> None:
    with planted({"x": b"10\n"}) as tree:
        first = snapshot(tree.root)
        apply(tree, "e1", change(tree.root, "x", b"99\n"))
        apply(tree, "e2", change(tree.root, "x", b"10\n"))
        with pytest.raises(RollbackConflict) as refused:
            tree.rollback_edit("e1")
        assert tuple(map(str, refused.value.problems)) == (
            "x: a later edit has put back what it was (since then: edit e2 of session s)",
        )
        assert states(tree) == {"e1": "applied", "e2": "applied"}
        tree.rollback_edit("e2")
        tree.rollback_edit("e1")
        assert tree.rollback_edit("e1").checkpoint is None
        assert snapshot(tree.root) == first


def test_a_file_that_a_later_edit_moved_away_is_not_taken_for_never_made() -> None:
    with planted({}) as tree:
        apply(tree, "e3", change(tree.root, "n", b"n\n"))
        apply(tree, "e4", change(tree.root, "n", None), change(tree.root, "m", b"n\n"))
        with pytest.raises(RollbackConflict, match="n: a later edit has put back"):
            tree.rollback_edit("e3")
        tree.rollback_session("s")
        assert snapshot(tree.root) == {}


def test_one_of_two_changes_that_a_later_edit_put_back_is_a_conflict_too() -> None:
    """The merge alone is content with it: both sides make the same change."""
    ten = [f"line {n}\n" for n in range(10)]
    with planted({"f": lined(ten)}) as tree:
        apply(tree, "e1", change(tree.root, "f", lined(["one\n", *ten[1:9], "nine\n"])))
        apply(tree, "e2", change(tree.root, "f", lined([*ten[:5], "five\n", *ten[6:9], "nine\n"])))
        with pytest.raises(RollbackConflict, match="f: later edits build on it"):
            tree.rollback_edit("e1")
        tree.rollback_edit("e2")
        tree.rollback_edit("e1")
        assert (tree.root / "f").read_bytes() == lined(ten)


def test_a_folder_goes_with_the_last_edit_that_needs_it() -> None:
    with planted({}) as tree:
        apply(tree, "e1", change(tree.root, "d/one", b"1\n"))
        apply(tree, "e2", change(tree.root, "d/two", b"2\n"))
        tree.rollback_edit("e1")
        assert sorted(snapshot(tree.root)) == ["d", "d/two"]
        tree.rollback_edit("e2")
        assert snapshot(tree.root) == {}


def test_a_folder_that_somebody_made_meanwhile_stays() -> None:
    with planted({}) as tree:
        apply(tree, "e1", change(tree.root, "d/one", b"1\n"))
        tree.rollback_edit("e1")
        (tree.root / "d").mkdir()
        apply(tree, "e2", change(tree.root, "d/two", b"2\n"))
        tree.rollback_edit("e2")
        assert sorted(snapshot(tree.root)) == ["d"]


@st.composite
def an_edit(draw: st.DrawFn) -> tuple[str, str, str, bytes, bool]:
    kind = draw(st.sampled_from(["write", "write", "write", "delete", "rename"]))
    path, to = draw(st.sampled_from(NAMES)), draw(st.sampled_from(NAMES))
    return kind, path, to, lined(draw(TEXTS)), draw(st.booleans())


def changes_of(
    root: Path, kind: str, path: str, to: str, data: bytes, executable: bool
) -> list[FileChange]:
    """The changes of an edit on the files as they are now; none if it makes no sense."""
    there = (root / path).read_bytes() if (root / path).exists() else None
    if kind == "write":
        mode = 0o755 if executable else 0o644
        now = (root / path).stat().st_mode & 0o777 if there is not None else 0o644
        made = change(root, path, data, mode if mode != now else None)
        return [] if made.unchanged else [made]
    if there is None or (kind == "rename" and (root / to).exists()):
        return []
    moved = [change(root, to, there)] if kind == "rename" else []
    return [change(root, path, None), *moved]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from(NAMES), TEXTS.map(lined)),
    st.lists(an_edit(), min_size=2, max_size=6),
    st.data(),
)
def test_any_order_of_rollbacks_leads_to_the_first_files_or_says_why_not(
    files: dict[str, bytes],
    edits: list[tuple[str, str, str, bytes, bool]],
    data: st.DataObject,
) -> None:
    with planted(files) as tree:
        first = snapshot(tree.root)
        made: dict[str, str] = {}
        for number, given_edit in enumerate(edits):
            changes = changes_of(tree.root, *given_edit)
            if changes:
                made[f"e{number}"] = data.draw(st.sampled_from("st"), label="session")
                tree.apply(f"e{number}", made[f"e{number}"], "auto", changes)
        conflicts = 0
        for name in data.draw(st.permutations([*made, *set(made.values())]), label="order"):
            before, known = snapshot(tree.root), states(tree)
            whole = name in made.values()
            try:
                tree.rollback_session(name) if whole else tree.rollback_edit(name)
            except RollbackConflict:
                conflicts += 1
                assert snapshot(tree.root) == before
                assert states(tree) == known
            else:
                taken = [e for e, session in made.items() if name in (e, session)]
                assert {states(tree)[edit_id] for edit_id in taken} == {"rolled_back"}
        if not conflicts:
            assert snapshot(tree.root) == first
        # What is left can always be taken back, the last first.
        for edit_id in reversed(made):
            tree.rollback_edit(edit_id)
        assert snapshot(tree.root) == first
