"""What a rollback undoes, and what runs again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.loop_snapshots import snapshot, specs_of

from mulligan.policies.loops.checkpoints import (
    Checkpoint,
    Rollback,
    dependents,
    effects_of,
    in_effect,
    missing_merges,
    named_commits,
    reopen,
)
from mulligan.policies.loops.commands import NotPossible
from mulligan.policies.loops.loop import ItemRecord
from mulligan.policies.loops.spec import ItemSpec
from mulligan.tasks.loops.rollback import checkpoints_of
from mulligan.tasks.ports.repositories import (
    ATTEMPT_TRAILER,
    ITEM_TRAILER,
    RESTORED_TRAILER,
    ROLLBACK_TRAILER,
    UNDONE_TRAILER,
    BranchCommit,
)

#: c depends on a, and b on nothing.
SPECS = specs_of({"a": (), "b": (), "c": ("a",)})


def commit(number: int, **trailers: str) -> BranchCommit:
    names = {"attempt": ATTEMPT_TRAILER, "item": ITEM_TRAILER, "rollback": ROLLBACK_TRAILER,
             "undone": UNDONE_TRAILER, "restored": RESTORED_TRAILER}  # fmt: skip
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


def undone_by(
    checkpoints: Sequence[Checkpoint], rollback: Rollback, specs: Sequence[ItemSpec]
) -> list[str]:
    return [each.item for each in effects_of(checkpoints, rollback, specs).undone]


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


@pytest.mark.parametrize("number", ["²", "٣", "", "-1", "9" * 5000])
def test_a_commit_with_a_number_that_is_none_is_somebody_elses(number: str) -> None:
    odd = commit(6, attempt=f"job-z/{number}", item="alpha/z")
    assert checkpoints_of((odd, *HISTORY), "alpha")[0].kind == "other"


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
    assert undone_by(checkpoints_of(HISTORY, "alpha"), rollback, SPECS) == undone


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
    assert undone_by(found, Rollback(id="r2", to="c2"), SPECS) == ["a"]


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
    assert dependents({"a"}, specs) == {"a", "b", "c"}


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


def test_what_runs_and_depends_on_an_undone_item_waits_for_it_again() -> None:
    """Also through an item that was skipped. What has ended, and what is apart, stays."""
    found = snapshot(
        {"a": (), "b": ("a",), "c": ("b",), "d": ("a",), "e": ()},
        {
            "a": ItemRecord(state="passed", runs=1, job_id="job-a"),
            "b": ItemRecord(state="skipped", reason="by ada"),
            "c": ItemRecord(state="running", runs=3, job_id="job-c"),
            "d": ItemRecord(state="failed", runs=1, job_id="job-d"),
            "e": ItemRecord(state="running", runs=1, job_id="job-e"),
        },
    )
    change = reopen(found, {"a": "job-a"}, now=5.0, note="back")
    assert {name: record.state for name, record in change.items.items()} == {
        "a": "pending",
        "c": "pending",
    }
    assert (change.cancel, change.forget) == (("job-c",), ("a", "c"))
    assert change.items["c"].runs == 3


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


# -- commits of others -----------------------------------------------------------------------------


def test_going_back_names_the_commits_of_others_that_it_removes_and_brings_back() -> None:
    pushed = (commit(6), *HISTORY)
    effects = effects_of(checkpoints_of(pushed, "alpha"), Rollback(id="r", to="c4"), SPECS)
    assert named_commits(effects.removed) == "1 commit of others: c6 commit 6"
    assert named_commits(effects.removed, texts=False) == "1 commit of others: c6"
    assert [each.item for each in effects.undone] == ["c"]
    back = checkpoints_of((commit(7, rollback="r", undone="job-c/1 c6"), *pushed), "alpha")
    assert [each.commit for each in back if each.undone] == ["c6", "c5"]
    again = effects_of(back, Rollback(id="r2", to="c4"), SPECS)
    assert (again.undone, again.removed) == ([], []), "they are gone already"
    forth = effects_of(back, Rollback(id="r2", to="c6"), SPECS)
    assert [each.commit for each in (*forth.restored, *forth.returned)] == ["c5", "c6"]


def test_going_back_is_refused_if_it_changes_the_work_of_another_loop() -> None:
    """Single items can be rolled back all the same."""
    other = commit(6, attempt="job-z/1", item="beta/z")
    found = checkpoints_of((other, *HISTORY), "alpha")
    with pytest.raises(NotPossible, match=r"work of the loop beta .* roll back single items"):
        effects_of(found, Rollback(id="r", to="c4"), SPECS)
    assert undone_by(found, Rollback(id="r", item="b"), SPECS) == ["b"]
    # Its own rollback has taken it out: nothing of it changes.
    gone = checkpoints_of((commit(7, rollback="x", undone="job-z/1"), other, *HISTORY), "alpha")
    assert undone_by(gone, Rollback(id="r", to="c4"), SPECS) == ["c"]


# -- any history -----------------------------------------------------------------------------------

_ITEMS = ("a", "b", "c", "d")
_CHAIN = specs_of({"a": (), "b": ("a",), "c": ("b",), "d": ()})
_STEPS = st.lists(
    st.tuples(st.just("merge"), st.sampled_from(_ITEMS))
    | st.tuples(st.just("item"), st.sampled_from(_ITEMS))
    | st.tuples(st.just("to"), st.integers(0, 30))
    | st.tuples(st.just("push"), st.none()),
    max_size=25,
)


@dataclass
class BranchModel:
    """A branch whose trees are sets of commits: each merge or push has a file of its own."""

    history: list[BranchCommit] = field(default_factory=lambda: [commit(0)])
    trees: dict[str, frozenset[str]] = field(default_factory=lambda: {"c0": frozenset({"c0"})})

    @property
    def tree(self) -> frozenset[str]:
        return self.trees[self.history[0].commit]

    @property
    def checkpoints(self) -> list[Checkpoint]:
        return checkpoints_of(self.history, "alpha")

    def land(self, tree: frozenset[str], **trailers: str) -> None:
        new = commit(len(self.history), **trailers)
        self.history.insert(0, new)
        self.trees[new.commit] = tree

    def merge(self, item: str) -> None:
        number = len(self.history)
        self.land(self.tree | {f"c{number}"}, attempt=f"job-{number}/1", item=f"alpha/{item}")

    def push(self) -> None:
        self.land(self.tree | {f"c{len(self.history)}"})

    def undo(self, item: str) -> None:
        gone = dependents({item}, _CHAIN)
        out = {each.commit for each in self.checkpoints if each.item in gone}
        self.roll_back(Rollback(id="r", item=item), self.tree - out)

    def go_back(self, place: int) -> None:
        found = self.checkpoints
        to = found[place % len(found)].commit
        self.roll_back(Rollback(id="r", to=to), self.trees[to])

    def roll_back(self, rollback: Rollback, tree: frozenset[str]) -> None:
        found = effects_of(self.checkpoints, rollback, _CHAIN)
        undone, restored = (*found.undone, *found.removed), (*found.restored, *found.returned)
        assert {each.commit for each in undone} == self.tree - tree
        assert {each.commit for each in restored} == tree - self.tree
        self.land(
            tree,
            rollback="r",
            undone=" ".join(each.name for each in undone),
            restored=" ".join(each.name for each in restored),
        )


@given(_STEPS)
def test_what_counts_as_merged_is_what_the_tree_has(
    steps: list[tuple[str, str | int | None]],
) -> None:
    model = BranchModel()
    for action, value in steps:
        if action == "merge":
            model.merge(str(value))
        elif action == "to":
            model.go_back(int(value or 0))
        elif action == "push":
            model.push()
        elif any(each.item == value for each in in_effect(model.checkpoints)):
            model.undo(str(value))
        found = model.checkpoints
        merges = {each.commit for each in found if each.kind == "merge"}
        assert {each.commit for each in in_effect(found)} == model.tree & merges
        merged = {each.item for each in found if each.commit in model.tree & merges}
        passed = snapshot(
            dict.fromkeys(_ITEMS, ()),
            {name: ItemRecord(state="passed", runs=1, job_id="job") for name in _ITEMS},
        )
        assert missing_merges(passed, found) == [each for each in _ITEMS if each not in merged]


def test_what_was_brought_back_later_is_undone_by_going_back_before_that() -> None:
    """Given b undone (c6), brought back (c7) and c merged, when going back to c6."""
    found = checkpoints_of(
        (
            commit(8, attempt="job-c2/1", item="alpha/c"),
            commit(7, rollback="r2", restored="job-b/2"),
            commit(6, rollback="r1", undone="job-b/2"),
            *HISTORY[1:],
        ),
        "alpha",
    )
    assert undone_by(found, Rollback(id="r3", to="c6"), SPECS) == ["c", "b"]
