"""Failures in a window, ranked by frequency, and the techniques that repaired them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mulligan.policies.figures.facts import Figure

Steps = Sequence[Mapping[Figure, int]]


class TechniqueTrial(NamedTuple):
    """How often a technique was tried, and how often it succeeded."""

    tried: int = 0
    repaired: int = 0

    @property
    def share(self) -> float | None:
        return self.repaired / self.tried if self.tried else None


@dataclass(frozen=True, kw_only=True)
class RankingFilter:
    """Which failures count; None means all."""

    tenant: str | None = None
    kind: str | None = None
    task_type: str | None = None
    model: str | None = None
    signature: str | None = None


@dataclass(frozen=True, kw_only=True)
class RankedFailure:
    """One signature in a window."""

    signature: str
    kind: str
    cause: str
    count: int
    #: The count in the previous window.
    before: int
    #: One count per step of the window.
    series: tuple[int, ...]
    task_types: Mapping[str, int]
    models: Mapping[str, int]
    techniques: Mapping[str, TechniqueTrial]

    @property
    def trend(self) -> int:
        """1: more than in the previous window; -1: fewer; 0: equal."""
        return (self.count > self.before) - (self.count < self.before)

    @property
    def tried(self) -> TechniqueTrial:
        every = self.techniques.values()
        return TechniqueTrial(
            sum(each.tried for each in every), sum(each.repaired for each in every)
        )


def rank(
    steps: Steps, before: Steps, *, choice: RankingFilter | None = None, limit: int = 50
) -> list[RankedFailure]:
    """Rank the signatures by frequency, then by name."""
    chosen = choice or RankingFilter()
    by_signature: dict[str, list[tuple[int, Figure, int]]] = {}
    for step, figure, n in _failures(steps, chosen):
        by_signature.setdefault(figure.dims[0], []).append((step, figure, n))
    earlier: Counter[str] = Counter()
    for _, figure, n in _failures(before, chosen):
        earlier[figure.dims[0]] += n
    counts = {signature: sum(n for _, _, n in rows) for signature, rows in by_signature.items()}
    first = sorted(counts, key=lambda signature: (-counts[signature], signature))[:limit]
    repaired = repairs(steps, tenant=chosen.tenant)
    return [
        _ranked(
            signature,
            by_signature[signature],
            length=len(steps),
            before=earlier[signature],
            techniques=repaired.get(signature, {}),
        )
        for signature in first
    ]


def _ranked(
    signature: str,
    rows: Sequence[tuple[int, Figure, int]],
    *,
    length: int,
    before: int,
    techniques: Mapping[str, TechniqueTrial],
) -> RankedFailure:
    series = [0] * length
    types: Counter[str] = Counter()
    models: Counter[str] = Counter()
    names: Counter[tuple[str, str]] = Counter()
    for step, figure, n in rows:
        _, kind, cause, task_type, model, _ = figure.dims
        series[step] += n
        types[task_type] += n
        names[kind, cause] += n
        if model:
            models[model] += n
    ((kind, cause), _), *_ = names.most_common(1)
    return RankedFailure(
        signature=signature,
        kind=kind,
        cause=cause,
        count=sum(series),
        before=before,
        series=tuple(series),
        task_types=dict(types.most_common()),
        models=dict(models.most_common()),
        techniques=techniques,
    )


def repairs(steps: Steps, *, tenant: str | None = None) -> dict[str, dict[str, TechniqueTrial]]:
    """Return signature → technique → how often it worked."""
    counts: dict[str, dict[str, TechniqueTrial]] = {}
    for rows in steps:
        for figure, n in rows.items():
            if figure.family != "repair" or tenant not in (None, figure.dims[2]):
                continue
            signature, technique, _ = figure.dims
            of = counts.setdefault(signature, {})
            old = of.get(technique, TechniqueTrial())
            of[technique] = (
                old._replace(tried=old.tried + n)
                if figure.measure == "tried"
                else old._replace(repaired=old.repaired + n)
            )
    return counts


def techniques(steps: Steps, *, tenant: str | None = None) -> dict[str, TechniqueTrial]:
    """Return technique → how often it worked against any failure; the most tried first."""
    added: dict[str, TechniqueTrial] = {}
    for by_technique in repairs(steps, tenant=tenant).values():
        for name, each in by_technique.items():
            old = added.get(name, TechniqueTrial())
            added[name] = TechniqueTrial(old.tried + each.tried, old.repaired + each.repaired)
    return dict(sorted(added.items(), key=lambda item: (-item[1].tried, item[0])))


def heat(steps: Steps, *, tenant: str | None = None) -> dict[str, dict[str, int]]:
    """Return kind → task type → failures, the most frequent first."""
    kinds: Counter[str] = Counter()
    cells: dict[str, Counter[str]] = {}
    for _, figure, n in _failures(steps, RankingFilter(tenant=tenant)):
        kinds[figure.dims[1]] += n
        cells.setdefault(figure.dims[1], Counter())[figure.dims[3]] += n
    return {kind: dict(cells[kind].most_common()) for kind, _ in kinds.most_common()}


def _failures(steps: Steps, choice: RankingFilter) -> Iterator[tuple[int, Figure, int]]:
    for step, rows in enumerate(steps):
        for figure, n in rows.items():
            if figure.family == "failure" and _chosen(figure.dims, choice):
                yield step, figure, n


def _chosen(dims: tuple[str, ...], choice: RankingFilter) -> bool:
    signature, kind, _, task_type, model, tenant = dims
    return (
        choice.tenant in (None, tenant)
        and choice.kind in (None, kind)
        and choice.task_type in (None, task_type)
        and choice.model in (None, model)
        and choice.signature in (None, signature)
    )
