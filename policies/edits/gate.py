"""The benchmark gate: whether an edit is kept, by a paired comparison of before and after.

- Repeat r before is compared with repeat r after: both have the same seed.
- A task's difference is that of its scores. For a command that prints several scores it is the mean
  over those printed before: one that is missing afterwards counts 0, a new one does not count.
- A cluster's difference is the mean over its tasks, the overall one the mean over the clusters, so
  that a cluster with many tasks does not outweigh others. A cluster that is missing afterwards
  counts 0. A new one counted 0 before, but only as the target: the overall score ignores it.
- An edit is kept if it improves its target (the overall score by default) and no cluster drops more
  than allowed. Before the last repeat, confidence bounds of the mean difference must show that.
- A run without a verdict before the edit leaves it undecided. One after the edit counts 0, and the
  edit is not kept.

The bounds are Student's, over the repeats. Their error is divided among all interim decisions, so
that deciding often does not make a chance result significant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from mulligan.policies.edits.suite import WHOLE, Suite, SuiteScores, TaskScore
from mulligan.policies.edits.t_distribution import t_quantile

#: Smaller differences are rounding errors.
TINY = 1e-9
#: Minimum pairs for a decision: two that happen to agree have no spread.
FEWEST = 3


@dataclass(frozen=True)
class KeepEdit:
    """The target is better and no cluster lost too much."""


@dataclass(frozen=True)
class RejectEdit:
    """The edit is not kept; ``undecided``: the scores show nothing, and the suite rejects that."""

    reason: Literal["regression", "no_improvement", "undecided"]


@dataclass(frozen=True)
class MeasureMore:
    """Run this repeat (0 is the first) on the sides that lack it, and compare again."""

    repeat: int


@dataclass(frozen=True, kw_only=True)
class MeasuredEffect:
    """Means over the repeats, with bounds of the difference; after a single run, they equal it."""

    before: float
    after: float
    delta: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The measured effects and the decision that follows."""

    decision: KeepEdit | RejectEdit | MeasureMore
    overall: MeasuredEffect
    clusters: Mapping[str, MeasuredEffect] = field(default_factory=dict)
    #: Pairs of runs that were compared.
    pairs: int = 0
    #: For people.
    text: str = ""

    @property
    def delta(self) -> float:
        """``benchmark_delta`` of the outcome."""
        return _plain(self.overall.delta)

    @property
    def cluster_deltas(self) -> dict[str, float]:
        """``cluster_deltas`` of the outcome."""
        return {name: _plain(effect.delta) for name, effect in self.clusters.items()}


def compare(
    before: SuiteScores,
    after: SuiteScores,
    *,
    suite: Suite,
    target: str | None,
    max_regression: float,
) -> Comparison:
    """Decide by the repeats that both sides have. ``before`` is the tree right before the edit,
    with the edits kept so far."""
    pairs = min(before.repeats, after.repeats, suite.runs)
    if pairs == 0:
        nothing = MeasuredEffect(before=0.0, after=0.0, delta=0.0, low=0.0, high=0.0)
        return Comparison(decision=MeasureMore(0), overall=nothing, text="nothing was measured yet")
    known = _known(before.runs[:pairs])
    left = _by_cluster(before.runs[:pairs], known)
    right = _by_cluster(after.runs[:pairs], known)
    zero = (0.0,) * pairs
    sure = _confidence(suite)
    effects = {
        name: _effect(left.get(name, zero), right.get(name, zero), sure)
        for name in sorted({*left, *right})
    }
    mine = _mean_of([left[name] for name in left], pairs)
    other = _mean_of([right.get(name, zero) for name in left], pairs)
    overall = _effect(mine, other, sure)
    aim = overall if target is None else effects.get(target)
    decision = _decide(aim, list(effects.values()), pairs, suite, max_regression)
    known_before, known_after = before.whole(pairs), after.whole(pairs)
    if not known_before or (isinstance(decision, KeepEdit) and not known_after):
        decision = RejectEdit("undecided")
    text = _describe(decision, overall, effects, pairs=pairs, suite=suite, target=target)
    return Comparison(decision=decision, overall=overall, clusters=effects, pairs=pairs, text=text)


def target_problem(target: str | None, suite: Suite) -> str | None:
    """Return why no edit with this target can be kept, if that is known without measuring."""
    known = suite.clusters
    if target is None or known is None or target in known:
        return None
    return f"expected_improvement: the suite has no cluster {target!r}, only {', '.join(known)}"


# -- deciding -------------------------------------------------------------------------------------


def _decide(
    aim: MeasuredEffect | None,
    clusters: Sequence[MeasuredEffect],
    pairs: int,
    suite: Suite,
    max_regression: float,
) -> KeepEdit | RejectEdit | MeasureMore:
    if pairs < suite.runs:
        if pairs >= FEWEST:
            sure = _by_bounds(aim, clusters, max_regression)
            if sure is not None:
                return sure
        return MeasureMore(pairs)
    if suite.undecided == "reject" and not suite.deterministic:
        if pairs < FEWEST:
            return RejectEdit("undecided")
        return _by_bounds(aim, clusters, max_regression) or RejectEdit("undecided")
    return _by_estimate(aim, clusters, max_regression)


def _by_bounds(
    aim: MeasuredEffect | None, clusters: Sequence[MeasuredEffect], max_regression: float
) -> KeepEdit | RejectEdit | None:
    """Return the decision that the bounds justify, or None."""
    if any(effect.high < -max_regression - TINY for effect in clusters):
        return RejectEdit("regression")
    if aim is None or aim.high <= TINY:
        return RejectEdit("no_improvement")
    if aim.low > TINY and all(effect.low >= -max_regression - TINY for effect in clusters):
        return KeepEdit()
    return None


def _by_estimate(
    aim: MeasuredEffect | None, clusters: Sequence[MeasuredEffect], max_regression: float
) -> KeepEdit | RejectEdit:
    if any(effect.delta < -max_regression - TINY for effect in clusters):
        return RejectEdit("regression")
    return KeepEdit() if aim is not None and aim.delta > TINY else RejectEdit("no_improvement")


def _confidence(suite: Suite) -> float:
    """Return the confidence of each decision, so that all together reach the suite's."""
    last = suite.runs if suite.undecided == "reject" else suite.runs - 1
    looks = max(1, last - FEWEST + 1)
    return 1 - (1 - suite.confidence) / looks


# -- measuring ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Known:
    """The tasks, the names of their scores and the clusters of the runs before."""

    cluster_of: Mapping[str, str | None]
    names: Mapping[str, frozenset[str]]
    clusters: frozenset[str]


def _known(runs: Sequence[Sequence[TaskScore]]) -> _Known:
    cluster_of: dict[str, str | None] = {}
    names: dict[str, frozenset[str]] = {}
    for run in runs:
        for score in run:
            cluster_of[score.task] = score.cluster
            own = frozenset(score.values) - {WHOLE}
            names[score.task] = names.get(score.task, frozenset()) | own
    printed = {name for task, own in names.items() if cluster_of[task] is None for name in own}
    fixed = {cluster for cluster in cluster_of.values() if cluster is not None}
    return _Known(cluster_of=cluster_of, names=names, clusters=frozenset(printed | fixed))


def _by_cluster(runs: Sequence[Sequence[TaskScore]], known: _Known) -> dict[str, tuple[float, ...]]:
    """Return the score of each cluster in each run, 0 where a run lacks the cluster."""
    found = [_clusters_of(run, known) for run in runs]
    every = sorted({cluster for run in found for cluster in run})
    return {cluster: tuple(run.get(cluster, 0.0) for run in found) for cluster in every}


def _clusters_of(run: Sequence[TaskScore], known: _Known) -> dict[str, float]:
    scores = {score.task: score for score in run}
    votes: dict[str, list[float]] = {}
    for task, cluster in known.cluster_of.items():
        score = scores.get(task) or TaskScore(task=task, cluster=cluster)
        for name, value in _votes(score, cluster, known.names[task]):
            votes.setdefault(name, []).append(value)
    for score in run:
        for name, value in _votes(score, score.cluster, frozenset(score.values) - {WHOLE}):
            if name not in known.clusters:
                votes.setdefault(name, []).append(value)
    return {name: _mean(values) for name, values in votes.items()}


def _votes(
    score: TaskScore, cluster: str | None, names: frozenset[str]
) -> Iterator[tuple[str, float]]:
    """Yield the scores of one task: one for its cluster, or one for each cluster that it names."""
    if cluster is None:
        yield from ((name, score.values.get(name, 0.0)) for name in names)
    elif names and set(score.values) - {WHOLE}:
        yield cluster, _mean([score.values.get(name, 0.0) for name in names])
    else:
        yield cluster, score.mean


def _effect(before: Sequence[float], after: Sequence[float], confidence: float) -> MeasuredEffect:
    differences = [b - a for a, b in zip(before, after, strict=True)]
    delta, margin = _mean(differences), 0.0
    if len(differences) > 1:
        squares = math.fsum((d - delta) ** 2 for d in differences)
        error = math.sqrt(squares / (len(differences) - 1) / len(differences))
        margin = t_quantile(confidence, len(differences) - 1) * error
    return MeasuredEffect(
        before=_mean(before),
        after=_mean(after),
        delta=delta,
        low=delta - margin,
        high=delta + margin,
    )


def _mean_of(rows: Sequence[Sequence[float]], length: int) -> tuple[float, ...]:
    """Return the mean of each column."""
    return tuple(_mean([row[i] for row in rows]) for i in range(length))


def _mean(values: Sequence[float]) -> float:
    """Return the mean of an exact sum, so that the order of tasks does not matter."""
    return math.fsum(values) / len(values) if values else 0.0


def _plain(number: float) -> float:
    return round(number, 6) + 0.0


# -- text -----------------------------------------------------------------------------------------


def _describe(
    decision: KeepEdit | RejectEdit | MeasureMore,
    overall: MeasuredEffect,
    clusters: Mapping[str, MeasuredEffect],
    *,
    pairs: int,
    suite: Suite,
    target: str | None,
) -> str:
    """``extraction 0.40 → 0.60 (+0.200), routing … ; after 3 of 5 repeats: no_improvement``."""
    effects = [f"{name} {_arrow(effect)}" for name, effect in clusters.items()]
    if target is None:
        effects.append(f"overall {_arrow(overall)}")
    elif target not in clusters:
        effects.append(f"{target}: no task scored it")
    match decision:
        case KeepEdit():
            end = "kept"
        case RejectEdit("undecided") if pairs < FEWEST and not suite.deterministic:
            end = f"undecided: a suite that is not deterministic needs {FEWEST} repeats or more"
        case RejectEdit(reason):
            end = reason
        case MeasureMore(repeat):
            end = f"repeat {repeat + 1} is needed"
    times = "1 run" if suite.runs == 1 else f"{pairs} of {suite.runs} repeats"
    return f"{', '.join(effects)}; after {times}: {end}"


def _arrow(effect: MeasuredEffect) -> str:
    return f"{effect.before:.3f} → {effect.after:.3f} ({_plain(effect.delta):+.3f})"
