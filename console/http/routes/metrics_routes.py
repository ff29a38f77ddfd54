"""`/metrics` for Prometheus: counters from the folded totals, gauges from the current state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from mulligan.console.http.access import Ops
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import HttpError
from mulligan.policies.figures import trend
from mulligan.policies.figures.facts import RETRY_BOUNDS, SCORE_BOUNDS, Figure
from mulligan.workers.celery.broker.queue_depth import waiting
from mulligan.workers.celery.broker.queues import SHOWN_QUEUES

_BREAKERS = {"closed": 0, "limited": 0, "half_open": 1, "open": 2, "out_of_credits": 3}
_GROUPS = 5000


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["ops"])

    @router.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    def metrics(caller: Ops) -> Response:
        """Return all metrics for Prometheus."""
        if caller.tenant is not None:
            raise HttpError(
                403, "forbidden", "metrics cover all tenants: they need a token without a tenant"
            )
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Metrics(context))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router


class _Metrics(Collector):
    def __init__(self, context: ConsoleContext) -> None:
        self._context = context

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the registry serves a single response."""
        return []

    def collect(self) -> Iterator[Metric]:
        figures = self._context.services.figures
        now = self._context.ledger.now()
        totals = figures.totals()
        yield from _counters(totals)
        yield from _histograms(totals)
        yield from self._queues()
        yield from self._workers(now)
        yield from self._providers()
        yield from self._parked(now)
        yield from self._attention()
        yield _gauge("fold_lag_seconds", "Age of the oldest uncounted event.", figures.lag(now=now))
        age = self._context.ledger.sweep_age()
        if age is not None:
            yield _gauge("sweep_age_seconds", "Time since the last sweep.", max(0.0, age))

    def _queues(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily(
            "mulligan_queue_depth", "Waiting messages.", labels=["queue", "priority"]
        )
        oldest = GaugeMetricFamily(
            "mulligan_queue_oldest_seconds", "Age of the oldest message.", labels=["queue"]
        )
        for queue, found in waiting(self._context.app, SHOWN_QUEUES).items():
            # AMQP does not report priorities: everything has an empty one.
            depths: Mapping[Any, int] = found.by_priority or {"": found.depth}
            for priority, count in depths.items():
                depth.add_metric([queue, str(priority)], count)
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
        waiting: Counter[str] = Counter()
        releases: Counter[str] = Counter()
        trips = CounterMetricFamily(
            "mulligan_ledger_round_trips", "Round trips to the ledger.", labels=["worker"]
        )
        for beat in ledger.beats.live(now=now):
            slots[beat.pool] += beat.slots
            active[beat.pool] += beat.active
            workers[beat.pool] += 1
            releases[beat.release] += 1
            trips.add_metric([beat.name], beat.round_trips)
            waiting[beat.pool] += beat.waiting
        trips.add_metric(["console"], ledger.round_trips)
        yield _labelled("slots", "Tasks that a pool can run at once.", "pool", slots)
        yield _labelled("active", "Tasks that a pool is running.", "pool", active)
        yield _labelled("workers", "Workers of a pool.", "pool", workers)
        yield _labelled("worker_releases", "Workers of a release.", "release", releases)
        yield _labelled(
            "ledger_waiting", "Calls that have waited long for the ledger.", "pool", waiting
        )
        stores = ledger.write_problem() is None
        yield _gauge("ledger_stores", "Whether the ledger takes writes.", float(stores))
        yield trips

    def _providers(self) -> Iterator[Metric]:
        known = self._context.ledger.breakers.all()
        yield _labelled(
            "breaker_state",
            "0 closed, 1 half open, 2 open, 3 out of credits.",
            "provider",
            {name: _BREAKERS[each.state] for name, each in known.items()},
        )
        limits = {name: each.limit for name, each in known.items() if each.limit}
        yield _labelled("provider_limit", "Calls at once to a provider.", "provider", limits)
        in_flight = {name: each.in_flight for name, each in known.items()}
        yield _labelled("provider_in_flight", "Running calls.", "provider", in_flight)

    def _parked(self, now: float) -> Iterator[Metric]:
        """Yield parked entries. All quotas are one reason: there may be thousands of tenants."""
        counts: Counter[str] = Counter()
        oldest: dict[str, float] = {}
        for each in self._context.ledger.parked():
            reason = "quota" if each.reason.startswith("quota:") else each.reason
            counts[reason] += each.count
            oldest[reason] = max(oldest.get(reason, 0.0), each.age(now))
        yield _labelled("parked", "Entries that may not run now.", "reason", counts)
        yield _labelled("parked_oldest_seconds", "How long the first has waited.", "reason", oldest)

    def _attention(self) -> Iterator[Metric]:
        """Yield what needs attention now or may need it soon."""
        ledger = self._context.ledger
        later = ledger.waiting_for("version").count
        yield _gauge("waiting_for_version", "Jobs that need workers of a later release.", later)
        quarantined = ledger.quarantine.count()
        yield _gauge("outbox_quarantined", "Entries that cannot be sent or read.", quarantined)
        refused = ledger.refused_submissions.recent()
        yield _gauge("submissions_refused", "Submissions refused in the last hour.", refused)
        groups = ledger.groups(limit=_GROUPS)
        yield _gauge("escalations_open", "Open escalations.", sum(group.open for group in groups))
        yield _gauge("escalation_groups_open", "Groups of open escalations.", len(groups))
        deliveries = self._context.services.webhooks.deliveries
        yield _labelled(
            "webhook_deliveries", "Alerts pending or given up.", "state", deliveries.counts()
        )


# -- from the totals -------------------------------------------------------------------------------

#: Family of the totals → name, description, labels.
_TOTALS: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "attempt": ("attempts", "Settled attempts.", ("mode", "outcome", "kind")),
    "job": ("jobs", "Jobs accepted and ended.", ("state",)),
    "escalated": ("escalations", "Escalated jobs.", ("reason",)),
    "cycle": ("cycles", "Self-repair cycles that entered a status.", ("status",)),
    "tokens": ("tokens", "Tokens used.", ("runner", "direction", "repair")),
    "missed": ("events_missed", "Times that events were trimmed before they were counted.", ()),
}


def _counters(totals: Mapping[Figure, int]) -> Iterator[Metric]:
    for family, (name, description, labels) in _TOTALS.items():
        metric = CounterMetricFamily(f"mulligan_{name}", description, labels=labels)
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
    description: str,
    bounds: Sequence[int],
    bound_unit: int,
    sum_unit: int,
) -> Metric:
    """Return a cumulative histogram. The figures are integers: values multiplied by their unit."""
    counts = trend.histogram([totals], family)
    total, buckets = 0, []
    for bound in [*bounds, float("inf")]:
        total += counts.get(float(bound), 0)
        label = "+Inf" if bound == float("inf") else repr(bound / bound_unit)
        buckets.append((label, total))
    metric = HistogramMetricFamily(f"mulligan_{name}", description)
    metric.add_metric([], buckets, trend.sum_of([totals], family) / sum_unit)
    return metric


def _gauge(name: str, description: str, value: float) -> Metric:
    return GaugeMetricFamily(f"mulligan_{name}", description, value=value)


def _labelled(name: str, description: str, label: str, values: Mapping[str, Any]) -> Metric:
    metric = GaugeMetricFamily(f"mulligan_{name}", description, labels=[label])
    for value, count in sorted(values.items()):
        metric.add_metric([value], count)
    return metric
