"""The benchmark gate: what is kept, what is refused, and when it needs another run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mulligan.policies.edits.gate import (
    Comparison,
    KeepEdit,
    MeasureMore,
    RejectEdit,
    compare,
    target_problem,
)
from mulligan.policies.edits.suite import WHOLE, Suite, SuiteScores, SuiteTask, TaskScore
from mulligan.policies.edits.t_distribution import t_quantile

#: A run as tests write it: cluster to the scores of its tasks.
Run = dict[str, list[float]]

REGRESSION, NO_IMPROVEMENT = RejectEdit("regression"), RejectEdit("no_improvement")


def suite_of(**fields: Any) -> Suite:
    task = SuiteTask(id="t", cluster="c", command=("score",))
    return Suite(**{"tasks": (task,), "deterministic": True, **fields})


def run_of(run: Run) -> tuple[TaskScore, ...]:
    return tuple(
        TaskScore(task=f"{cluster}{number}", cluster=cluster, values={WHOLE: value})
        for cluster, values in run.items()
        for number, value in enumerate(values)
    )


def scores(*runs: Run) -> SuiteScores:
    return SuiteScores(runs=tuple(run_of(run) for run in runs))


def told(command: dict[str, float], cluster: str | None = None) -> SuiteScores:
    """One run of one command that prints several scores."""
    return SuiteScores(runs=((TaskScore(task="all", cluster=cluster, values=command),),))


def judged(
    before: SuiteScores,
    after: SuiteScores,
    target: str | None = "a",
    loss: float = 0.05,
    **suite: Any,
) -> Comparison:
    return compare(before, after, suite=suite_of(**suite), target=target, max_regression=loss)


# -- a deterministic suite: one run each ----------------------------------------------------------

DECISIONS: list[tuple[str, Run, Run, str | None, Any]] = [
    ("the target improves", {"a": [0.4], "b": [1]}, {"a": [0.6], "b": [1]}, "a", KeepEdit()),
    ("nothing changes", {"a": [0.4]}, {"a": [0.4]}, "a", NO_IMPROVEMENT),
    # b gains 0.5, so the overall score does too; but a was to improve.
    ("only another improves", {"a": [0.4], "b": [0.5]}, {"a": [0.4], "b": [1]}, "a",
     NO_IMPROVEMENT),
    # Overall (0.6 - 0.1) / 2 is a gain; b alone says no.
    ("a bystander loses", {"a": [0.2], "b": [1]}, {"a": [0.8], "b": [0.9]}, "a", REGRESSION),
    ("a loss at the limit", {"a": [0.2], "b": [1]}, {"a": [0.8], "b": [0.95]}, "a", KeepEdit()),
    ("the target loses a little", {"a": [0.5]}, {"a": [0.46]}, "a", NO_IMPROVEMENT),
    ("the target loses much", {"a": [0.5]}, {"a": [0.4]}, "a", REGRESSION),
    ("a cluster is gone", {"a": [0.2], "b": [0.5]}, {"a": [0.9]}, "a", REGRESSION),
    ("a worthless cluster is gone", {"a": [0.2], "b": [0]}, {"a": [0.9]}, "a", KeepEdit()),
    ("a task is gone", {"a": [0.9, 0.3]}, {"a": [0.9]}, "a", REGRESSION),
    # Dropping a failing task (0.9 and 0 to 0.9) raises the mean and is no improvement.
    ("a failing task is gone", {"a": [0.9, 0]}, {"a": [0.9]}, "a", NO_IMPROVEMENT),
    ("a new task does not help", {"a": [0.4]}, {"a": [0.4, 1]}, "a", NO_IMPROVEMENT),
    ("a new cluster, not the target", {"a": [0.4]}, {"a": [0.4], "b": [1]}, "a", NO_IMPROVEMENT),
    ("a new cluster, the target", {"b": [0.4]}, {"a": [0.3], "b": [0.4]}, "a", KeepEdit()),
    ("a target nobody scores", {"b": [0.4]}, {"b": [0.9]}, "a", NO_IMPROVEMENT),
    # No target: (0.3 - 0.04) / 2 > 0.
    ("overall improves", {"a": [0.4], "b": [1]}, {"a": [0.7], "b": [0.96]}, None, KeepEdit()),
    ("overall does not", {"a": [0.4], "b": [1]}, {"a": [0.44], "b": [0.96]}, None, NO_IMPROVEMENT),
    ("overall, with a regression", {"a": [0.1], "b": [1]}, {"a": [0.9], "b": [0.9]}, None,
     REGRESSION),
    ("a new cluster is no overall gain", {"a": [0.4]}, {"a": [0.4], "b": [1]}, None,
     NO_IMPROVEMENT),
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "target", "expected"),
    [row[1:] for row in DECISIONS],
    ids=[row[0] for row in DECISIONS],
)
def test_one_run_decides(before: Run, after: Run, target: str | None, expected: Any) -> None:
    assert judged(scores(before), scores(after), target).decision == expected


def test_many_tasks_do_not_outweigh_a_cluster() -> None:
    """Overall is the mean over clusters: (0.3 + -0.2) / 2, not over five tasks."""
    before = scores({"a": [0.5], "b": [0.5] * 4})
    after = scores({"a": [0.8], "b": [0.3] * 4})
    found = judged(before, after, None, loss=0.5)
    assert found.delta == 0.05
    assert found.cluster_deltas == {"a": 0.3, "b": -0.2}


@pytest.mark.parametrize("after", [{"a": [0.6], "b": [1]}, {"a": [0.1]}, {"a": [0.4], "b": [1]}])
def test_deltas_are_always_filled(after: Run) -> None:
    """Kept or not: the overall difference and that of every cluster is told."""
    found = judged(scores({"a": [0.4], "b": [1]}), scores(after))
    assert set(found.cluster_deltas) == {"a", "b"}
    assert found.delta == pytest.approx(sum(found.cluster_deltas.values()) / 2)
    assert "a 0.400 → " in found.text


def test_rebasing_is_the_callers_before() -> None:
    """Given a kept edit, the next one is compared with its scores: not better is not kept."""
    first, kept, same = (scores({"a": [value]}) for value in (0.2, 0.8, 0.8))
    assert judged(first, kept).decision == KeepEdit()
    assert judged(kept, same).decision == NO_IMPROVEMENT
    assert judged(first, same).decision == KeepEdit()  # what comparing with the beginning would say


def test_nothing_measured_is_never_kept() -> None:
    assert judged(SuiteScores(), SuiteScores()).decision == MeasureMore(0)
    assert judged(scores({}), scores({})).decision == NO_IMPROVEMENT
    assert judged(scores({}), scores({}), None).decision == NO_IMPROVEMENT


# -- commands that print several scores -----------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"t1": 0, "t2": 1}, {"t1": 1, "t2": 1}, KeepEdit()),
        # Deleting the failing test is no improvement; adding one that passes neither.
        ({"t1": 0, "t2": 1}, {"t2": 1}, NO_IMPROVEMENT),
        ({"t1": 0, "t2": 1}, {"t1": 0, "t2": 1, "t3": 1}, NO_IMPROVEMENT),
        ({"t1": 1, "t2": 1}, {"t1": 1}, REGRESSION),
        # Before, it did not even run; afterwards, half of the tests pass. And the other way round.
        ({WHOLE: 0}, {"t1": 0, "t2": 1}, KeepEdit()),
        ({"t1": 0, "t2": 1}, {WHOLE: 0}, REGRESSION),
    ],
)
def test_scores_of_one_cluster(
    before: dict[str, float], after: dict[str, float], expected: Any
) -> None:
    assert judged(told(before, "a"), told(after, "a")).decision == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 0.2, "b": 1}, {"a": 0.3, "b": 1}, KeepEdit()),
        ({"a": 0.2, "b": 1}, {"a": 0.3}, REGRESSION),
        ({"a": 0.2, "b": 1}, {}, REGRESSION),  # it crashed
        ({}, {"a": 0.3}, KeepEdit()),  # it crashed before; the target is named
        ({}, {"b": 0.3}, NO_IMPROVEMENT),
    ],
)
def test_scores_that_are_clusters(
    before: dict[str, float], after: dict[str, float], expected: Any
) -> None:
    assert judged(told(before), told(after)).decision == expected


# -- repeats and bounds ---------------------------------------------------------------------------


def paired(deltas: Sequence[float], *, start: float = 0.5) -> tuple[SuiteScores, SuiteScores]:
    before = scores(*({"a": [start], "b": [0.9]} for _ in deltas))
    return before, scores(*({"a": [start + d], "b": [0.9]} for d in deltas))


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        ([0.3], MeasureMore(1)),  # one pair has no spread
        ([0.3, 0.3], MeasureMore(2)),  # nor have two that happen to agree
        ([0.3, 0.3, 0.3], KeepEdit()),
        # Two looks (3 and 4 of 5) share 10 %: t(0.95, 2) = 2.92; 0.2 - 2.92 · 0.1 / √3 = 0.03 > 0.
        ([0.1, 0.2, 0.3], KeepEdit()),
        # 0.1 - 2.92 · 0.1 / √3 = -0.07, and 0.1 + 0.17 > 0.
        ([0.0, 0.1, 0.2], MeasureMore(3)),
        ([0.0, 0.1, 0.2, 0.05], MeasureMore(4)),
        ([0.0, 0.1, 0.2, 0.05, 0.0], KeepEdit()),  # the last: the mean decides
        ([0.1, -0.1, 0.0, 0.1, -0.1], NO_IMPROVEMENT),  # a tie
        ([0.0, 0.0, 0.0], NO_IMPROVEMENT),
        ([-0.01, -0.01, -0.02], NO_IMPROVEMENT),
        # -0.3 + 2.92 · 0.1 / √3 = -0.13: beyond what a cluster may lose.
        ([-0.2, -0.3, -0.4], REGRESSION),
        ([0.2, -0.4, 0.2, -0.4, 0.0], REGRESSION),  # the mean, -0.08
    ],
)
def test_stops_when_decided(deltas: list[float], expected: Any) -> None:
    noisy: dict[str, Any] = {"deterministic": False, "repeats": 5, "confidence": 0.9}
    found = judged(*paired(deltas), **noisy, undecided="estimate")
    assert found.decision == expected
    assert found.pairs == len(deltas)


def test_an_unsure_bystander_needs_more_runs() -> None:
    """The target is surely better; b may have lost too much, or not."""
    before = scores(*({"a": [0.5], "b": [0.9]} for _ in range(3)))
    after = scores({"a": [0.8], "b": [1]}, {"a": [0.8], "b": [0.8]}, {"a": [0.8], "b": [0.9]})
    assert judged(before, after, deterministic=False).decision == MeasureMore(3)


def test_an_open_end_can_mean_no() -> None:
    """The suite decides what becomes of an edit that all repeats leave open."""
    before, after = paired([0.0, 0.1, 0.2, 0.05, 0.0])
    noisy: dict[str, Any] = {"deterministic": False, "repeats": 5}
    assert judged(before, after, **noisy, undecided="estimate").decision == KeepEdit()
    strict = judged(before, after, **noisy)
    assert strict.decision == RejectEdit("undecided")
    before, after = paired([0.2, 0.2, 0.3, 0.2, 0.2])
    assert judged(before, after, **noisy).decision == KeepEdit()


@pytest.mark.parametrize("pairs", [0, 1, 2])
def test_only_pairs_count(pairs: int) -> None:
    """A side that was run more often waits for the other."""
    before, after = paired([0.3] * 4)
    short = SuiteScores(runs=after.runs[:pairs])
    assert judged(before, short, deterministic=False).decision == MeasureMore(pairs)
    assert judged(SuiteScores(runs=before.runs[:pairs]), after, deterministic=False).pairs == pairs


@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("delta", [0.1, -0.4])
def test_fewer_than_three_pairs_tell_nothing_of_what_is_not_deterministic(
    repeats: int, delta: float
) -> None:
    before, after = paired([delta] * repeats)
    found = judged(before, after, deterministic=False, repeats=repeats)
    assert found.decision == RejectEdit("undecided")
    assert "fewer than 3 repeats tell nothing" in found.text
    # Who asks for the mean gets it.
    by_mean = judged(before, after, deterministic=False, repeats=repeats, undecided="estimate")
    assert by_mean.decision == (KeepEdit() if delta > 0 else REGRESSION)


# -- runs without a verdict -----------------------------------------------------------------------


def unknown(found: SuiteScores, task: str) -> SuiteScores:
    """As if the last run of a task had been stopped."""
    last = tuple(
        score.model_copy(update={"values": {WHOLE: 0.0}, "verdict": False, "note": "stopped"})
        if score.task == task
        else score
        for score in found.runs[-1]
    )
    return SuiteScores(runs=(*found.runs[:-1], last))


def test_what_was_not_known_before_is_no_improvement() -> None:
    before, after = scores({"a": [0.9], "b": [0.5]}), scores({"a": [0.9], "b": [0.9]})
    assert judged(before, after, target="b").decision == KeepEdit()
    assert judged(unknown(before, "a0"), after, target="a").decision == RejectEdit("undecided")
    assert judged(unknown(before, "a0"), after, target="b").decision == RejectEdit("undecided")


def test_what_is_not_known_afterwards_counts_nothing_and_keeps_nothing() -> None:
    before, after = scores({"a": [0.9], "b": [0.01]}), scores({"a": [1.0], "b": [0.01]})
    assert judged(before, unknown(after, "a0")).decision == REGRESSION
    # b may lose 0.01; but nobody knows what it is worth.
    assert judged(before, unknown(after, "b0")).decision == RejectEdit("undecided")


def test_a_repeat_that_is_not_known_before_ends_the_measuring() -> None:
    before, after = paired([0.3] * 2)
    found = judged(unknown(before, "a0"), after, deterministic=False, repeats=5)
    assert found.decision == RejectEdit("undecided")
    assert judged(before, after, deterministic=False, repeats=5).decision == MeasureMore(2)


#: From printed tables.
@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [
        (0.975, 1, 12.706),
        (0.9, 1, 3.078),
        (0.95, 2, 2.920),
        (0.99, 3, 4.541),
        (0.9, 4, 1.533),
        (0.95, 5, 2.015),
        (0.975, 10, 2.228),
        (0.995, 30, 2.750),
        (0.975, 120, 1.980),
        (0.5, 7, 0.0),
        (0.025, 10, -2.228),
    ],
)
def test_student(probability: float, freedom: int, expected: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(("probability", "freedom"), [(0.0, 3), (1.0, 3), (0.9, 0)])
def test_student_refuses(probability: float, freedom: int) -> None:
    with pytest.raises(ValueError, match="is"):
        t_quantile(probability, freedom)


# -- properties -----------------------------------------------------------------------------------

numbers = st.floats(0, 1, allow_nan=False)
shape = st.fixed_dictionaries({"a": st.lists(numbers, min_size=2, max_size=2), "b": st.lists(
    numbers, min_size=1, max_size=1)})  # fmt: skip
many = st.lists(shape, min_size=1, max_size=5)
targets = st.sampled_from(["a", "b", None])


@given(many, targets, st.booleans())
def test_the_same_is_no_improvement(runs: list[Run], target: str | None, sure: bool) -> None:
    same = scores(*runs)
    found = judged(same, same, target, deterministic=sure)
    assert found.decision != KeepEdit()
    assert found.delta == 0
    assert set(found.cluster_deltas.values()) == {0}


@given(st.lists(st.tuples(shape, shape, shape), min_size=1, max_size=5), targets, st.booleans())
def test_raising_scores_never_turns_keep_into_a_regression(
    rows: list[tuple[Run, Run, Run]], target: str | None, sure: bool
) -> None:
    before = scores(*(row[0] for row in rows))
    after = scores(*(row[1] for row in rows))
    raised = scores(*({c: [max(x, y) for x, y in zip(low[c], more[c], strict=True)] for c in low}
                      for _, low, more in rows))  # fmt: skip
    if judged(before, after, target, deterministic=sure).decision == KeepEdit():
        found = judged(before, raised, target, deterministic=sure).decision
        # A raised score may widen the spread: then the runs decide nothing, which is no loss.
        assert found in (KeepEdit(), RejectEdit(reason="undecided")) or isinstance(
            found, MeasureMore
        )


@given(many, many, targets, st.randoms(use_true_random=False))
def test_the_order_of_tasks_is_irrelevant(
    before: list[Run], after: list[Run], target: str | None, random: Any
) -> None:
    def shuffled(found: SuiteScores) -> SuiteScores:
        return SuiteScores(runs=tuple(tuple(random.sample(run, len(run))) for run in found.runs))

    one, two = scores(*before), scores(*after)
    kinds = {"deterministic": False}
    assert judged(one, two, target, **kinds) == judged(
        shuffled(one), shuffled(two), target, **kinds
    )


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1.1])
def test_only_numbers_from_0_to_1(value: float) -> None:
    with pytest.raises(ValidationError):
        TaskScore(task="t", cluster="c", values={WHOLE: value})


def test_a_target_that_the_suite_cannot_score() -> None:
    suite = suite_of()
    assert target_problem("c", suite) is None
    assert target_problem(None, suite) is None
    assert target_problem("d", suite) == (
        "expected_improvement: the suite has no cluster 'd', only c"
    )
    printed = Suite(tasks=(SuiteTask(id="t", command=("score",)),))
    assert target_problem("d", printed) is None  # the command names its clusters


def test_seeds_are_the_same_in_every_process() -> None:
    """Python's own hash() is salted: it would give each worker another seed."""
    code = (
        "from mulligan.policies.edits.suite import Suite, SuiteTask\n"
        "s = Suite(tasks=(SuiteTask(id='t', cluster='c', command=('x',)),), seed=7)\n"
        "print([s.seed_of('t', n) for n in range(3)])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2")
    }
    assert len(told) == 1
    suite = suite_of(seed=7)
    seeds = [suite.seed_of("t", n) for n in range(3)]
    assert told == {f"{seeds}\n"}
    assert len({*seeds, suite.seed_of("u", 0), suite_of(seed=8).seed_of("t", 0)}) == 5
    assert all(0 <= seed < 1 << 31 for seed in seeds)
