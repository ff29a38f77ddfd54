"""The journal of a tree survives whatever a killed process left at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from mulligan.workers.edits.tree.journal import (
    FileStep,
    Image,
    Journal,
    Operation,
    TreeFault,
    in_force,
)


def edit(number: int, **more: object) -> Operation:
    step = FileStep(
        path="app.py",
        before=Image(blob=f"{number:040x}", mode=0o640),
        after=Image(blob=f"{number + 1:040x}", mode=0o640),
    )
    fields = {"edit_id": f"e{number}", "session_id": "s", "tier": "auto", "files": (step,), **more}
    return Operation(number=number, kind="edit", at=1.5, fence=number, **fields)  # type: ignore[arg-type]


def rollback(number: int, *undoes: int) -> Operation:
    return Operation(number=number, kind="rollback", at=1.5, fence=number, undoes=undoes)


def reread(path: Path) -> Journal:
    journal = Journal(path)
    journal.load()
    return journal


def test_an_operation_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    names = ("grüße\nline.txt", "\udcff.bin", 'quo"te\\')
    steps = tuple(
        FileStep(path=name, before=None, after=Image(blob="0" * 40, mode=0o4755)) for name in names
    )
    operation = edit(1, files=steps, created_folders=("a", "a/b"), removed_folders=("c",))
    journal = Journal(tmp_path / "journal")
    journal.intend(operation)
    assert b'"made":["a","a/b"],"dropped":["c"]' in (tmp_path / "journal").read_bytes()
    assert reread(tmp_path / "journal").open == operation
    journal.finish(1)
    journal.commit({1: "f" * 40})
    restored = reread(tmp_path / "journal")
    assert restored.done == {1: operation}
    assert restored.commits == {1: "f" * 40}
    assert restored.open is None
    assert restored.uncommitted == []


def test_an_undone_operation_keeps_its_number(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.intend(edit(1))
    journal.undo(1, left_as_is=["app.py"])
    restored = reread(tmp_path / "journal")
    assert (restored.done, restored.open, restored.next_number) == ({}, None, 2)


def test_a_torn_record_is_ignored_and_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.intend(edit(1))
    whole = path.stat().st_size
    journal.finish(1)
    full = path.read_bytes()
    for size in range(whole, len(full)):
        path.write_bytes(full[:size])
        torn = reread(path)
        assert torn.open == edit(1), size
        torn.finish(1)
        assert path.read_bytes() == full


@pytest.mark.parametrize("tail", [b"\0\0\0\0", b"\0\0\n", b'{"record"', b"{\n"])
def test_garbage_at_the_end_is_ignored(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "journal"
    Journal(path).intend(edit(1))
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    journal = reread(path)
    assert journal.open == edit(1)
    journal.finish(1)
    assert reread(path).done == {1: edit(1)}


@pytest.mark.parametrize(
    "line", [b"rubbish", b'{"record":"done","number":7}', b'{"record":"intent"}', b"[]", b"{}"]
)
def test_damage_before_the_end_is_reported_and_nothing_is_written(
    tmp_path: Path, line: bytes
) -> None:
    path = tmp_path / "journal"
    Journal(path).intend(edit(1))
    damaged = line + b"\n" + path.read_bytes()
    path.write_bytes(damaged)
    with pytest.raises(TreeFault, match="journal"):
        reread(path)
    assert path.read_bytes() == damaged


def test_a_reader_loads_new_records(tmp_path: Path) -> None:
    writer, reader = Journal(tmp_path / "journal"), Journal(tmp_path / "journal")
    reader.load()
    assert reader.done == {}
    for number in (1, 2):
        writer.intend(edit(number))
        writer.finish(number)
        reader.load()
        assert list(reader.done) == list(range(1, number + 1))
    (tmp_path / "journal").unlink()
    reader.load()
    assert reader.done == {}


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([edit(1), edit(2)], {1, 2}),
        ([edit(1), rollback(2, 1)], {2}),
        ([edit(1), edit(2), rollback(3, 1, 2)], {3}),
        # Back to the checkpoint before the rollback: the edit is in force again.
        ([edit(1), rollback(2, 1), rollback(3, 2)], {1, 3}),
        # ... and that rollback is undone, too.
        ([edit(1), rollback(2, 1), rollback(3, 2), rollback(4, 3)], {2, 4}),
        # An edit and its rollback, both after the checkpoint.
        ([edit(1), edit(2), rollback(3, 2), rollback(4, 2, 3)], {1, 4}),
    ],
)
def test_which_operations_are_in_force(operations: list[Operation], expected: set[int]) -> None:
    assert in_force(operations) == expected
