"""What a rollback undoes, and what runs again."""

from __future__ import annotations

import pytest
from support.loop_snapshots import snapshot, specs_of

from mulligan.policies.loops.checkpoints import (
    Checkpoint,
    Rollback,
    dependents,
    missing_merges,
    reopen,
    undone_by,
)
from mulligan.policies.loops.commands import NotPossible
from mulligan.policies.loops.loop import ItemRecord
from mulligan.tasks.loops.rollback import checkpoints_of
from mulligan.tasks.ports.repositories import (
    ATTEMPT_TRAILER,
    ITEM_TRAILER,
    ROLLBACK_TRAILER,
    UNDONE_TRAILER,
    BranchCommit,
)

#: c depends on a, and b on nothing.
SPECS = specs_of({"a": (), "b": (), "c": ("a",)})


def commit(number: int, **trailers: str) -> BranchCommit:
    names = {"attempt": ATTEMPT_TRAILER, "item": ITEM_TRAILER, "rollback": ROLLBACK_TRAILER,
             "undone": UNDONE_TRAILER}  # fmt: skip
    return BranchCommit(
        commit=f"c{number}",
        tree=f"t{number}",
        parents=(f"c{number - 1}",),
        at=float(number),
        subject=f"commit {number}",
        trailers={names[name]: value for name, value in trailers.items()},
    )


#: The newest first: a, b and c were merged onto the user's commits c1 and c2.
HISTORY = (
    commit(5, attempt="job-c/1", item="alpha/c"),
    commit(4, attempt="job-b/2", item="alpha/b"),
    commit(3, attempt="job-a/1", item="alpha/a"),
    commit(2),
    commit(1),
)


def names(checkpoints: list[Checkpoint]) -> list[str]:
    return [each.item for each in checkpoints]


def test_checkpoints_end_with_the_commit_that_the_loop_began_with() -> None:
    found = checkpoints_of(HISTORY, "alpha")
    assert [(each.commit, each.kind, each.item) for each in found] == [
        ("c5", "merge", "c"),
        ("c4", "merge", "b"),
        ("c3", "merge", "a"),
        ("c2", "other", ""),
    ]


def test_a_branch_without_merges_has_no_checkpoint_but_its_tip() -> None:
    assert [each.commit for each in checkpoints_of(HISTORY[3:], "alpha")] == ["c2"]


def test_merges_of_another_loop_are_somebody_elses_commits() -> None:
    other = commit(6, attempt="job-z/1", item="beta/z")
    assert checkpoints_of((other, *HISTORY), "alpha")[0].kind == "other"


@pytest.mark.parametrize(
    ("rollback", "undone"),
    [
        (Rollback(id="r", to="c3"), ["c", "b"]),
        (Rollback(id="r", to="c2"), ["c", "b", "a"]),
        (Rollback(id="r", to="c5"), []),
        (Rollback(id="r", item="b"), ["b"]),
        (Rollback(id="r", item="a"), ["c", "a"]),  # c depends on it
        (Rollback(id="r", item="a", to="c4"), ["c"]),
    ],
)
def test_what_a_rollback_undoes(rollback: Rollback, undone: list[str]) -> None:
    assert names(undone_by(checkpoints_of(HISTORY, "alpha"), rollback, SPECS)) == undone


@pytest.mark.parametrize(
    "rollback",
    [Rollback(id="r"), Rollback(id="r", to="c9"), Rollback(id="r", item="nothing")],
)
def test_what_cannot_be_rolled_back(rollback: Rollback) -> None:
    with pytest.raises(NotPossible):
        undone_by(checkpoints_of(HISTORY, "alpha"), rollback, SPECS)


def test_what_was_undone_is_not_undone_again() -> None:
    back = commit(6, rollback="r1", undone="job-c/1 job-b/2")
    found = checkpoints_of((back, *HISTORY), "alpha")
    assert [each.item for each in found if each.undone] == ["c", "b"]
    assert names(undone_by(found, Rollback(id="r2", to="c2"), SPECS)) == ["a"]


def test_work_that_is_merged_again_after_a_rollback_counts() -> None:
    back = commit(6, rollback="r1", undone="job-c/1")
    again = commit(7, attempt="job-c2/1", item="alpha/c")
    found = checkpoints_of((again, back, *HISTORY), "alpha")
    assert [(each.commit, each.undone) for each in found if each.item == "c"] == [
        ("c7", False),
        ("c5", True),
    ]


def test_dependents_are_found_through_others() -> None:
    specs = specs_of({"a": (), "b": ("a",), "c": ("b",), "d": ()})
    assert dependents("a", specs) == {"a", "b", "c"}


def test_only_items_of_the_undone_jobs_run_again() -> None:
    """Given one that runs as another job, then that one goes on."""
    found = snapshot(
        {"a": (), "b": (), "c": (), "d": ()},
        {
            "a": ItemRecord(state="passed", runs=1, job_id="job-a"),
            "b": ItemRecord(state="running", runs=1, job_id="job-b"),
            "c": ItemRecord(state="running", runs=2, job_id="job-c2"),
            "d": ItemRecord(state="skipped"),
        },
    )
    undone = {"a": "job-a", "b": "job-b", "c": "job-c", "d": "job-d", "gone": "job-x"}
    change = reopen(found, undone, now=5.0, note="back")
    assert {name: record.state for name, record in change.items.items()} == {
        "a": "pending",
        "b": "pending",
    }
    assert change.cancel == ("job-b",), "it was merged, but could not say so yet"
    assert change.rollback == ""
    assert change.items["a"].runs == 1


def test_an_item_that_passed_without_a_merge_is_found() -> None:
    found = snapshot(
        {"a": (), "b": (), "c": ("a",)},
        {
            "a": ItemRecord(state="passed", runs=1, job_id="job-a"),
            "b": ItemRecord(state="passed"),  # before the loop existed
            "c": ItemRecord(state="passed", runs=1, job_id="job-c"),
        },
    )
    history = checkpoints_of(HISTORY[2:], "alpha")
    assert missing_merges(found, history) == ["c"]
