"""The records of items and loops: what is stored is what is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.loop_snapshots import snapshot

from mulligan.policies.loops.loop import ITEM_STATES, ItemRecord, LoopChange


@given(
    state=st.sampled_from(ITEM_STATES),
    since=st.integers(0, 4_000_000_000_000),
    runs=st.integers(0, 10**6),
    reason=st.text(st.characters(exclude_categories=["Cs"])),
)
def test_a_record_is_read_as_it_was_written(state: str, since: int, runs: int, reason: str) -> None:
    begun = ItemRecord(runs=runs, job_id="p00-i0123456789abcdefghijkl")
    record = begun.moved(
        next(s for s in ITEM_STATES if s == state), now=since / 1000, reason=reason
    )
    text = str(record)
    assert ItemRecord.parse(text) == record
    assert len(text.encode()) <= 200


@pytest.mark.parametrize(
    "text",
    ["", "ready", "ready|1|1|x", "asleep|1|1|x|", "ready|soon|1|x|", "ready|1|once|x|"],
)
def test_a_damaged_record_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"asleep|values to unpack|float|int"):
        ItemRecord.parse(text)


def test_a_new_run_has_the_next_number_and_no_reason() -> None:
    before = ItemRecord(state="ready", since=1.0, runs=2, job_id="old", reason="x")
    assert before.started("new", now=5.0) == ItemRecord(
        state="running", since=5.0, runs=3, job_id="new"
    )


def test_a_snapshot_finds_its_items() -> None:
    found = snapshot({"a": (), "b": ("a",)}, {"a": "passed"})
    assert [spec.id for spec in (found.spec("a"), found.spec("b")) if spec] == ["a", "b"]
    assert found.spec("c") is None
    assert found.record("c") == ItemRecord()
    assert (found.count("passed"), found.count("passed", "pending")) == (1, 2)


def test_a_change_is_empty_until_it_changes_something() -> None:
    assert LoopChange().empty
    assert not LoopChange(items={"a": ItemRecord()}).empty
    assert not LoopChange(note="x").empty
