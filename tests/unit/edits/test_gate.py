"""The benchmark gate: when an edit is kept, rejected or measured again."""

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

#: A run in a test: the scores of each cluster's tasks.
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


def command_scores(command: dict[str, float], cluster: str | None = None) -> SuiteScores:
    """Return one run of a command that prints several scores."""
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
    # b gains 0.5, and so does the overall score; but a is the target.
    ("only another improves", {"a": [0.4], "b": [0.5]}, {"a": [0.4], "b": [1]}, "a",
     NO_IMPROVEMENT),
    # Overall (0.6 - 0.1) / 2 is a gain; b alone is a regression.
    ("a bystander loses", {"a": [0.2], "b": [1]}, {"a": [0.8], "b": [0.9]}, "a", REGRESSION),
    ("a loss at the limit", {"a": [0.2], "b": [1]}, {"a": [0.8], "b": [0.95]}, "a", KeepEdit()),
    ("the target loses a little", {"a": [0.5]}, {"a": [0.46]}, "a", NO_IMPROVEMENT),
    ("the target loses much", {"a": [0.5]}, {"a": [0.4]}, "a", REGRESSION),
    ("a cluster is gone", {"a": [0.2], "b": [0.5]}, {"a": [0.9]}, "a", REGRESSION),
    ("a worthless cluster is gone", {"a": [0.2], "b": [0]}, {"a": [0.9]}, "a", KeepEdit()),
    ("a task is gone", {"a": [0.9, 0.3]}, {"a": [0.9]}, "a", REGRESSION),
    # Dropping a failing task (0.9 and 0 to 0.9) raises the mean but is no improvement.
    ("a failing task is gone", {"a": [0.9, 0]}, {"a": [0.9]}, "a", NO_IMPROVEMENT),
    ("a new task does not help", {"a": [0.4]}, {"a": [0.4, 1]}, "a", NO_IMPROVEMENT),
    ("a new cluster, not the target", {"a": [0.4]}, {"a": [0.4], "b": [1]}, "a", NO_IMPROVEMENT),
    ("a new cluster, the target", {"b": [0.4]}, {"a": [0.3], "b": [0.4]}, "a", KeepEdit()),
    ("a target without a score", {"b": [0.4]}, {"b": [0.9]}, "a", NO_IMPROVEMENT),
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
def test_one_run_decides_a_deterministic_suite(
    before: Run, after: Run, target: str | None, expected: Any
) -> None:
    assert judged(scores(before), scores(after), target).decision == expected


def test_many_tasks_do_not_outweigh_a_cluster() -> None:
    """The overall score is the mean over clusters: (0.3 + -0.2) / 2, not over five tasks."""
    before = scores({"a": [0.5], "b": [0.5] * 4})
    after = scores({"a": [0.8], "b": [0.3] * 4})
    found = judged(before, after, None, loss=0.5)
    assert found.delta == 0.05
    assert found.cluster_deltas == {"a": 0.3, "b": -0.2}


@pytest.mark.parametrize("after", [{"a": [0.6], "b": [1]}, {"a": [0.1]}, {"a": [0.4], "b": [1]}])
def test_every_comparison_has_deltas(after: Run) -> None:
    """Kept or not, it has the overall difference and that of every cluster."""
    found = judged(scores({"a": [0.4], "b": [1]}), scores(after))
    assert set(found.cluster_deltas) == {"a", "b"}
    assert found.delta == pytest.approx(sum(found.cluster_deltas.values()) / 2)
    assert "a 0.400 → " in found.text


def test_an_edit_is_compared_with_the_last_kept_edit() -> None:
    """Given a kept edit, the next one is kept only if it is better than that."""
    first, kept, same = (scores({"a": [value]}) for value in (0.2, 0.8, 0.8))
    assert judged(first, kept).decision == KeepEdit()
    assert judged(kept, same).decision == NO_IMPROVEMENT
    assert judged(first, same).decision == KeepEdit()  # compared with the beginning


def test_an_edit_without_measurements_is_never_kept() -> None:
    assert judged(SuiteScores(), SuiteScores()).decision == MeasureMore(0)
    assert judged(scores({}), scores({})).decision == NO_IMPROVEMENT
    assert judged(scores({}), scores({}), None).decision == NO_IMPROVEMENT


# -- commands that print several scores -----------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"t1": 0, "t2": 1}, {"t1": 1, "t2": 1}, KeepEdit()),
        # Neither deleting the failing test nor adding a passing one is an improvement.
        ({"t1": 0, "t2": 1}, {"t2": 1}, NO_IMPROVEMENT),
        ({"t1": 0, "t2": 1}, {"t1": 0, "t2": 1, "t3": 1}, NO_IMPROVEMENT),
        ({"t1": 1, "t2": 1}, {"t1": 1}, REGRESSION),
        # Before, it did not run; afterwards, half of the tests pass. And the reverse.
        ({WHOLE: 0}, {"t1": 0, "t2": 1}, KeepEdit()),
        ({"t1": 0, "t2": 1}, {WHOLE: 0}, REGRESSION),
    ],
)
def test_a_command_may_score_one_cluster(
    before: dict[str, float], after: dict[str, float], expected: Any
) -> None:
    found = judged(command_scores(before, "a"), command_scores(after, "a"))
    assert found.decision == expected


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
def test_a_command_may_score_several_clusters(
    before: dict[str, float], after: dict[str, float], expected: Any
) -> None:
    assert judged(command_scores(before), command_scores(after)).decision == expected


# -- repeats and bounds ---------------------------------------------------------------------------


def paired(deltas: Sequence[float], *, start: float = 0.5) -> tuple[SuiteScores, SuiteScores]:
    before = scores(*({"a": [start], "b": [0.9]} for _ in deltas))
    return before, scores(*({"a": [start + d], "b": [0.9]} for d in deltas))


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        ([0.3], MeasureMore(1)),  # one pair has no spread
        ([0.3, 0.3], MeasureMore(2)),  # and neither have two that happen to agree
        ([0.3, 0.3, 0.3], KeepEdit()),
        # Two checks (3 and 4 of 5) share 10 %: t(0.95, 2) = 2.92; 0.2 - 2.92 · 0.1 / √3 = 0.03 > 0
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
def test_repeats_stop_when_the_result_is_clear(deltas: list[float], expected: Any) -> None:
    noisy: dict[str, Any] = {"deterministic": False, "repeats": 5, "confidence": 0.9}
    found = judged(*paired(deltas), **noisy, undecided="estimate")
    assert found.decision == expected
    assert found.pairs == len(deltas)


def test_an_uncertain_other_cluster_needs_more_runs() -> None:
    """The target is clearly better; whether b has lost too much is open."""
    before = scores(*({"a": [0.5], "b": [0.9]} for _ in range(3)))
    after = scores({"a": [0.8], "b": [1]}, {"a": [0.8], "b": [0.8]}, {"a": [0.8], "b": [0.9]})
    assert judged(before, after, deterministic=False).decision == MeasureMore(3)


def test_the_suite_decides_about_edits_that_stay_undecided() -> None:
    before, after = paired([0.0, 0.1, 0.2, 0.05, 0.0])
    noisy: dict[str, Any] = {"deterministic": False, "repeats": 5}
    assert judged(before, after, **noisy, undecided="estimate").decision == KeepEdit()
    strict = judged(before, after, **noisy)
    assert strict.decision == RejectEdit("undecided")
    before, after = paired([0.2, 0.2, 0.3, 0.2, 0.2])
    assert judged(before, after, **noisy).decision == KeepEdit()


@pytest.mark.parametrize("pairs", [0, 1, 2])
def test_only_pairs_count(pairs: int) -> None:
    """Runs of one side count when the other side has as many."""
    before, after = paired([0.3] * 4)
    short = SuiteScores(runs=after.runs[:pairs])
    assert judged(before, short, deterministic=False).decision == MeasureMore(pairs)
    assert judged(SuiteScores(runs=before.runs[:pairs]), after, deterministic=False).pairs == pairs


@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("delta", [0.1, -0.4])
def test_fewer_than_three_pairs_of_a_noisy_suite_decide_nothing(repeats: int, delta: float) -> None:
    before, after = paired([delta] * repeats)
    found = judged(before, after, deterministic=False, repeats=repeats)
    assert found.decision == RejectEdit("undecided")
    assert "needs 3 repeats or more" in found.text
    # With undecided="estimate" the mean decides.
    by_mean = judged(before, after, deterministic=False, repeats=repeats, undecided="estimate")
    assert by_mean.decision == (KeepEdit() if delta > 0 else REGRESSION)


# -- runs without a verdict -----------------------------------------------------------------------


def unknown(found: SuiteScores, task: str) -> SuiteScores:
    """Return the scores as if the last run of a task had been stopped."""
    last = tuple(
        score.model_copy(update={"values": {WHOLE: 0.0}, "verdict": False, "note": "stopped"})
        if score.task == task
        else score
        for score in found.runs[-1]
    )
    return SuiteScores(runs=(*found.runs[:-1], last))


def test_an_unknown_score_before_the_edit_leaves_it_undecided() -> None:
    before, after = scores({"a": [0.9], "b": [0.5]}), scores({"a": [0.9], "b": [0.9]})
    assert judged(before, after, target="b").decision == KeepEdit()
    assert judged(unknown(before, "a0"), after, target="a").decision == RejectEdit("undecided")
    assert judged(unknown(before, "a0"), after, target="b").decision == RejectEdit("undecided")


def test_an_unknown_score_after_the_edit_counts_as_zero_and_keeps_nothing() -> None:
    before, after = scores({"a": [0.9], "b": [0.01]}), scores({"a": [1.0], "b": [0.01]})
    assert judged(before, unknown(after, "a0")).decision == REGRESSION
    # b may lose 0.01, but its score is unknown.
    assert judged(before, unknown(after, "b0")).decision == RejectEdit("undecided")


def test_an_unknown_repeat_before_the_edit_ends_the_measurement() -> None:
    before, after = paired([0.3] * 2)
    found = judged(unknown(before, "a0"), after, deterministic=False, repeats=5)
    assert found.decision == RejectEdit("undecided")
    assert judged(before, after, deterministic=False, repeats=5).decision == MeasureMore(2)


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
def test_t_quantiles_match_printed_tables(
    probability: float, freedom: int, expected: float
) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(("probability", "freedom"), [(0.0, 3), (1.0, 3), (0.9, 0)])
def test_t_quantiles_need_a_valid_probability_and_freedom(probability: float, freedom: int) -> None:
    with pytest.raises(ValueError, match="is"):
        t_quantile(probability, freedom)


# -- properties -----------------------------------------------------------------------------------

numbers = st.floats(0, 1, allow_nan=False)
shape = st.fixed_dictionaries({"a": st.lists(numbers, min_size=2, max_size=2), "b": st.lists(
    numbers, min_size=1, max_size=1)})  # fmt: skip
many = st.lists(shape, min_size=1, max_size=5)
targets = st.sampled_from(["a", "b", None])


@given(many, targets, st.booleans())
def test_equal_scores_are_no_improvement(runs: list[Run], target: str | None, sure: bool) -> None:
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
        # A raised score may widen the spread, and then nothing is decided.
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


# -- invalid input --------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1.1])
def test_a_score_is_a_number_from_0_to_1(value: float) -> None:
    with pytest.raises(ValidationError):
        TaskScore(task="t", cluster="c", values={WHOLE: value})


def test_the_target_must_be_a_cluster_of_the_suite() -> None:
    suite = suite_of()
    assert target_problem("c", suite) is None
    assert target_problem(None, suite) is None
    assert target_problem("d", suite) == (
        "expected_improvement: the suite has no cluster 'd', only c"
    )
    printed = Suite(tasks=(SuiteTask(id="t", command=("score",)),))
    assert target_problem("d", printed) is None  # the command names its clusters


def test_seeds_are_the_same_in_every_process() -> None:
    """Python's hash() is salted and would give each worker another seed."""
    code = (
        "from mulligan.policies.edits.suite import Suite, SuiteTask\n"
        "s = Suite(tasks=(SuiteTask(id='t', cluster='c', command=('x',)),), seed=7)\n"
        "print([s.seed_of('t', n) for n in range(3)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2")
    }
    assert len(outputs) == 1
    suite = suite_of(seed=7)
    seeds = [suite.seed_of("t", n) for n in range(3)]
    assert outputs == {f"{seeds}\n"}
    assert len({*seeds, suite.seed_of("u", 0), suite_of(seed=8).seed_of("t", 0)}) == 5
    assert all(0 <= seed < 1 << 31 for seed in seeds)
