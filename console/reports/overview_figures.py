"""The overview's figures, computed from the buckets of a window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from mulligan.console.reports.failure_report import example_of, place_of, rows_of
from mulligan.console.reports.overview_values import (
    Cost,
    OutcomeStep,
    Share,
    Speed,
    Success,
    TopFailure,
)
from mulligan.policies.figures import cost, trend
from mulligan.policies.figures.facts import OTHER, RETRY_BOUNDS, Figure
from mulligan.policies.figures.failure_ranking import RankedFailure, RankingFilter, rank
from mulligan.policies.figures.trend import Outcomes
from mulligan.workers.figures.windows import Bucket, FigureReader, Window
from mulligan.workers.settings.model import Settings

#: The most steps of a series that a line can show. Longer series are condensed.
_STEPS = 60

Rows = Sequence[Mapping[Figure, int]]
T = TypeVar("T")


def _groups(values: Sequence[T]) -> list[Sequence[T]]:
    """Split a series into at most _STEPS groups of equal length, except a shorter first one."""
    size = max(1, -(-len(values) // _STEPS))
    first = len(values) % size
    edges = [*([0] if first else []), *range(first, len(values), size), len(values)]
    return [values[start:end] for start, end in pairwise(edges)]


def condensed(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Merge neighbouring buckets until there are at most _STEPS. The newest is always complete."""
    return [
        Bucket(group[0].start, sum((bucket.rows for bucket in group), Counter()))
        for group in _groups(buckets)
    ]


def success_of(rows: Rows, *, tenant: str | None) -> Success:
    steps = [trend.outcomes(row, tenant=tenant) for row in rows]
    whole = sum(steps, Outcomes())
    return Success(
        ended=whole.ended,
        first_try=_share(whole.first_try, whole, [(s.first_try, s.ended) for s in steps]),
        after_repair=_share(
            whole.first_try + whole.repaired,
            whole,
            [(s.first_try + s.repaired, s.ended) for s in steps],
        ),
        escalated=_share(whole.escalated, whole, [(s.escalated, s.ended) for s in steps]),
    )


def _share(count: int, whole: Outcomes, steps: Sequence[tuple[int, int]]) -> Share:
    return Share(
        share=trend.share(count, whole.ended),
        count=count,
        series=tuple(trend.share(part, ended) for part, ended in steps),
    )


def outcomes_of(buckets: Sequence[Bucket], *, tenant: str | None) -> tuple[OutcomeStep, ...]:
    found = ((bucket.start, trend.outcomes(bucket.rows, tenant=tenant)) for bucket in buckets)
    return tuple(
        OutcomeStep(
            at=at, first_try=each.first_try, repaired=each.repaired, escalated=each.escalated
        )
        for at, each in found
    )


def speed_of(
    buckets: Sequence[Bucket], *, now: float, oldest: float | None, tenant: str | None
) -> Speed:
    rows = rows_of(buckets)
    ended = [trend.outcomes(row, tenant=tenant).ended for row in rows]
    waited = trend.histogram(rows, "retry", tenant=tenant)
    ends = [*(bucket.start for bucket in buckets[1:]), now]
    minutes = [max(end - bucket.start, 1.0) / 60 for end, bucket in zip(ends, buckets, strict=True)]
    return Speed(
        jobs_per_minute=sum(ended) / _minutes(buckets, now),
        retry_p50_ms=trend.percentile(waited, 0.5, RETRY_BOUNDS),
        retry_p99_ms=trend.percentile(waited, 0.99, RETRY_BOUNDS),
        oldest_seconds=oldest,
        series=tuple(n / each for n, each in zip(ended, minutes, strict=True)),
    )


def _minutes(buckets: Sequence[Bucket], now: float) -> float:
    return max(now - buckets[0].start, 1.0) / 60


def cost_of(
    buckets: Sequence[Bucket],
    settings: Settings,
    *,
    now: float,
    spent: Mapping[str, int],
    tenant: str | None,
) -> Cost:
    line = cost.total(rows_of(buckets), prices=settings.prices, tenant=tenant)
    used = line.both
    money = used.cost if settings.prices else None
    return Cost(
        per_hour=None if money is None else money / (_minutes(buckets, now) / 60),
        repairs_share=line.repairs_share,
        why_unknown=used.why_unpriced if settings.prices else "prices",
        tokens=used.known_tokens,
        tokens_per_success=line.tokens_per_success,
        budget_used=_budget_used(settings, spent),
        unknown=used.unknown,
    )


def _budget_used(settings: Settings, spent: Mapping[str, int]) -> float | None:
    """Return the used share of today's tokens, over all tenants with a quota."""
    allowed = {
        name: quota.tokens_per_day
        for name in spent
        if (quota := settings.quotas.get(name) or settings.quotas.get("*"))
        and quota.tokens_per_day is not None
    }
    whole = sum(allowed.values())
    return sum(spent[name] for name in allowed) / whole if whole else None


def top_failures(
    figures: FigureReader, window: Window, *, tenant: str | None, limit: int
) -> tuple[tuple[TopFailure, ...], bool]:
    """Return the most frequent signatures, and whether there are more."""
    found = rank(
        rows_of(window.buckets),
        rows_of(window.before),
        choice=RankingFilter(tenant=tenant),
        limit=limit + 1,
    )
    shown = found[:limit]
    examples = [example_of(window, each.signature, tenant) for each in shown]
    records = iter(figures.failures([example for example in examples if example]))
    failures = tuple(
        _top_failure(each, example or "", place_of(next(records)) if example else "")
        for each, example in zip(shown, examples, strict=True)
    )
    return failures, len(found) > limit


def _top_failure(ranked: RankedFailure, example: str, place: str) -> TopFailure:
    return TopFailure(
        signature=ranked.signature,
        kind=ranked.kind,
        cause=ranked.cause,
        place=place,
        count=ranked.count,
        repaired=ranked.tried.share,
        trend=ranked.trend,
        series=tuple(sum(group) for group in _groups(ranked.series)),
        example=example.partition("/")[0],
    )


def tenants_of(rows: Rows, *, tenant: str | None) -> tuple[str, ...]:
    """Return the tenants with jobs in the window; for one tenant, only itself."""
    if tenant is not None:
        return (tenant,)
    seen = {figure.dims[1] for row in rows for figure in row if figure.family == "job"}
    return tuple(sorted(seen - {"", OTHER}))
