"""`/metrics` for Prometheus: counters from the totals of the fold, gauges as things are now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from mulligan.console.http.access import Caller, needs
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import HttpError
from mulligan.policies.figures import trend
from mulligan.policies.figures.facts import RETRY_BOUNDS, SCORE_BOUNDS, Figure
from mulligan.workers.celery.queue_depth import waiting
from mulligan.workers.celery.queues import QUEUES

_BREAKERS = {"closed": 0, "half_open": 1, "open": 2}
_GROUPS = 5000


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["ops"])

    @router.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    def metrics(caller: Annotated[Caller, Depends(needs("ops"))]) -> Response:
        """Everything Prometheus can watch."""
        if caller.tenant is not None:
            raise HttpError(403, "forbidden", "metrics are of all tenants: this token has one")
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Metrics(context))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router


class _Metrics(Collector):
    def __init__(self, context: ConsoleContext) -> None:
        self._context = context

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: the registry is for one answer."""
        return []

    def collect(self) -> Iterator[Metric]:
        figures = self._context.services.figures
        now = self._context.ledger.now()
        totals = figures.totals()
        yield from _counters(totals)
        yield from _histograms(totals)
        yield from self._queues()
        yield from self._workers(now)
        yield from self._people()
        yield _gauge(
            "fold_lag_seconds", "How long the oldest uncounted event waits.", figures.lag(now=now)
        )
        age = self._context.ledger.sweep_age()
        if age is not None:
            yield _gauge("sweep_age_seconds", "Since the last sweep.", max(0.0, age))

    def _queues(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily(
            "mulligan_queue_depth", "Messages that wait.", labels=["queue", "priority"]
        )
        oldest = GaugeMetricFamily(
            "mulligan_queue_oldest_seconds", "How long the oldest waits.", labels=["queue"]
        )
        for queue, found in waiting(self._context.app, QUEUES).items():
            # AMQP does not tell priorities: all is one step.
            steps = [(str(step), n) for step, n in found.by_priority.items()]
            for step, count in steps or [("", found.depth)]:
                depth.add_metric([queue, step], count)
            oldest.add_metric([queue], found.oldest_seconds or 0.0)
        yield depth
        yield oldest
        yield _labelled(
            "paused", "What is paused.", "what", dict.fromkeys(self._context.ledger.paused(), 1)
        )

    def _workers(self, now: float) -> Iterator[Metric]:
        ledger = self._context.ledger
        slots: Counter[str] = Counter()
        active: Counter[str] = Counter()
        workers: Counter[str] = Counter()
        trips = CounterMetricFamily(
            "mulligan_ledger_round_trips", "Round trips to the ledger.", labels=["worker"]
        )
        for beat in ledger.beats.live(now=now):
            slots[beat.pool] += beat.slots
            active[beat.pool] += beat.active
            workers[beat.pool] += 1
            trips.add_metric([beat.name], beat.round_trips)
        trips.add_metric(["console"], ledger.round_trips)
        yield _labelled("slots", "Tasks that a pool can run at once.", "pool", slots)
        yield _labelled("active", "Tasks that a pool is running.", "pool", active)
        yield _labelled("workers", "Workers of a pool.", "pool", workers)
        yield trips

    def _people(self) -> Iterator[Metric]:
        """What needs attention, or may need it soon."""
        ledger = self._context.ledger
        breakers = ledger.breakers.all()
        states = {name: _BREAKERS[breaker.state] for name, breaker in breakers.items()}
        yield _labelled(
            "breaker_state", "0 closed, 1 half open, 2 open; closed ones leave.", "provider", states
        )
        groups = ledger.groups(limit=_GROUPS)
        yield _gauge("escalations_open", "Escalations.", sum(group.open for group in groups))
        yield _gauge("escalation_groups_open", "Groups of escalations alike.", len(groups))
        deliveries = self._context.services.webhooks.deliveries
        yield _labelled(
            "webhook_deliveries", "Alerts on their way, or given up.", "state", deliveries.counts()
        )


# -- from the totals -------------------------------------------------------------------------------

#: Family of the totals → name, what it is, labels.
_TOTALS: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "attempt": ("attempts", "Settled attempts.", ("mode", "outcome", "kind")),
    "job": ("jobs", "Jobs accepted and ended.", ("state",)),
    "escalated": ("escalations", "Jobs that were escalated.", ("reason",)),
    "cycle": ("cycles", "Self-repair cycles that came into a status.", ("status",)),
    "tokens": ("tokens", "Tokens that were used.", ("runner", "direction", "repair")),
    "missed": ("events_missed", "Times that events were trimmed before they were counted.", ()),
}


def _counters(totals: Mapping[Figure, int]) -> Iterator[Metric]:
    for family, (name, about, labels) in _TOTALS.items():
        metric = CounterMetricFamily(f"mulligan_{name}", about, labels=labels)
        rows = [(each.dims, n) for each, n in totals.items() if each.family == family]
        for dims, n in sorted(rows):
            metric.add_metric(list(dims), n)
        if not labels and not rows:
            metric.add_metric([], 0)
        yield metric


def _histograms(totals: Mapping[Figure, int]) -> Iterator[Metric]:
    yield _histogram(totals, "score", "score", "Scores of attempts.", SCORE_BOUNDS, 1, 100)
    yield _histogram(
        totals,
        "retry",
        "retry_latency_seconds",
        "From a low score to the start of its immediate retry.",
        RETRY_BOUNDS,
        1000,
        1000,
    )


def _histogram(
    totals: Mapping[Figure, int],
    family: str,
    name: str,
    about: str,
    bounds: Sequence[int],
    bound_unit: int,
    sum_unit: int,
) -> Metric:
    """Cumulative, as Prometheus wants it. The units are what the figures are multiplied by."""
    counts = trend.histogram([totals], family)
    cumulated, buckets = 0, []
    for bound in [*bounds, float("inf")]:
        cumulated += counts.get(float(bound), 0)
        shown = "+Inf" if bound == float("inf") else repr(bound / bound_unit)
        buckets.append((shown, cumulated))
    metric = HistogramMetricFamily(f"mulligan_{name}", about)
    metric.add_metric([], buckets, trend.sum_of([totals], family) / sum_unit)
    return metric


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"mulligan_{name}", about, value=value)


def _labelled(name: str, about: str, label: str, values: Mapping[str, Any]) -> Metric:
    metric = GaugeMetricFamily(f"mulligan_{name}", about, labels=[label])
    for value, count in sorted(values.items()):
        metric.add_metric([value], count)
    return metric
