"""The values of the overview."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mulligan.console.reports.providers import ParkedWork

#: The windows to choose from.
WINDOWS = ("1h", "24h", "7d", "30d")


@dataclass(frozen=True, kw_only=True)
class Health:
    """``down``: nothing can make progress. ``degraded``: something needs a look."""

    state: Literal["ok", "degraded", "down"]
    #: One line each, the worst first.
    reasons: tuple[str, ...] = ()
    workers: int = 0
    #: Whether workers may run that had no time to report: the ledger is back since seconds.
    settling: bool = False
    breakers_open: int = 0


@dataclass(frozen=True, kw_only=True)
class NeedsAttention:
    """Something that a person should look at."""

    kind: Literal["escalations", "breaker", "outbox", "submissions", "webhooks", "sweep", "fold"]
    #: ``test_failed  write_function``, ``openai-eu open``…
    title: str
    detail: str
    count: int = 0
    #: The signature of a group or the name of a provider; else empty.
    key: str = ""
    since: float | None = None
    muted: bool = False


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of the jobs that ended; None if none ended."""

    share: float | None
    count: int
    #: One value per step of the window.
    series: tuple[float | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Success:
    """The jobs that succeeded or were escalated in the window."""

    ended: int
    first_try: Share
    #: Succeeded on the first try or after a repair.
    after_repair: Share
    escalated: Share


@dataclass(frozen=True, kw_only=True)
class Speed:
    jobs_per_minute: float
    #: From a low score to the start of its immediate retry; None without a retry.
    retry_p50_ms: float | None
    retry_p99_ms: float | None
    #: How long the oldest message has waited; None if the broker cannot be reached.
    oldest_seconds: float | None
    series: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Money and tokens. Unknown values are None, never 0."""

    per_hour: float | None
    #: Why it is unknown: no prices are set, no usage was reported, or a model has no price.
    why_unknown: Literal["prices", "usage", "price"] | None
    #: The share of tokens that attempts after the first used.
    repairs_share: float | None
    tokens: int | None
    tokens_per_success: float | None
    #: The used share of the tenant's daily tokens; for all tenants, of the sum of their quotas.
    budget_used: float | None
    #: Attempts without reported usage.
    unknown: int = 0


@dataclass(frozen=True, kw_only=True)
class OutcomeStep:
    """One step of the outcomes chart."""

    at: float
    first_try: int = 0
    repaired: int = 0
    escalated: int = 0


@dataclass(frozen=True, kw_only=True)
class QueueStatus:
    name: str
    waiting: int
    #: Of the workers that count in this queue: see `overview_now.queue_of`.
    active: int
    slots: int
    oldest_seconds: float | None
    paused: bool


@dataclass(frozen=True, kw_only=True)
class TopFailure:
    """A frequent failure signature of the window."""

    signature: str
    kind: str
    cause: str
    place: str
    count: int
    #: The share of repairs that succeeded; None if none was tried.
    repaired: float | None
    #: Compared with the previous window: 1 more, -1 fewer, 0 the same.
    trend: int
    series: tuple[int, ...] = ()
    example: str = ""


@dataclass(frozen=True, kw_only=True)
class Technique:
    name: str
    tried: int
    repaired: int


@dataclass(frozen=True, kw_only=True)
class Overview:
    at: float
    window: str
    #: Seconds of one step of every series.
    step: int
    tenant: str | None
    health: Health
    needs_attention: tuple[NeedsAttention, ...]
    success: Success
    speed: Speed
    cost: Cost
    outcomes: tuple[OutcomeStep, ...]
    queues: tuple[QueueStatus, ...]
    running: int
    #: The most frequent first.
    failures: tuple[TopFailure, ...]
    more_failures: bool = False
    #: kind → task type → failures.
    heat: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    techniques: tuple[Technique, ...] = ()
    #: What is paused, as `ledger.paused()` names it.
    paused: tuple[str, ...] = ()
    #: What waits outside the queues, the largest number first.
    parked: tuple[ParkedWork, ...] = ()
    #: Task types of the jobs that were accepted or ended in the window.
    task_types: tuple[str, ...] = ()
    #: When the configuration changed.
    changes: tuple[float, ...] = ()
    #: Tenants with jobs in the window, to choose from.
    tenants: tuple[str, ...] = ()
