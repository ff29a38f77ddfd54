"""The values of the overview: what ops see at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

#: The windows that the page offers.
WINDOWS = ("1h", "24h", "7d", "30d")


@dataclass(frozen=True, kw_only=True)
class Health:
    """``down``: nothing can make progress. ``degraded``: something needs a look."""

    state: Literal["ok", "degraded", "down"]
    #: One line each, the worst first; empty when all is well.
    reasons: tuple[str, ...] = ()
    workers: int = 0
    breakers_open: int = 0


@dataclass(frozen=True, kw_only=True)
class NeedsAttention:
    """Something that waits for a person."""

    kind: Literal["escalations", "breaker", "webhooks", "sweep", "fold"]
    #: ``test_failed  write_function``, ``openai-eu open``…
    title: str
    detail: str
    count: int = 0
    #: The signature of a group, the name of a provider; empty where there is only one.
    key: str = ""
    since: float | None = None
    muted: bool = False


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of the jobs that ended, and how it went over the window. None: none ended."""

    share: float | None
    count: int
    #: One per step of the window; None where nothing ended.
    series: tuple[float | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Success:
    """Of all jobs that succeeded or were escalated in the window."""

    ended: int
    first_try: Share
    #: Succeeded at first or by a repair.
    after_repair: Share
    escalated: Share


@dataclass(frozen=True, kw_only=True)
class Speed:
    jobs_per_minute: float
    #: From a low score to the start of its immediate retry; None: there was none.
    retry_p50_ms: float | None
    retry_p99_ms: float | None
    #: How long the oldest message waits; None: nobody knows.
    oldest_seconds: float | None
    series: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Unknown is None, never 0."""

    per_hour: float | None
    #: Why: no prices are set, nobody told the usage, or no price is for these tokens.
    why_unknown: Literal["prices", "usage", "price"] | None
    #: Of all tokens, those of attempts after the first.
    repairs_share: float | None
    tokens: int | None
    tokens_per_success: float | None
    #: Of the tokens a day that the tenant (or, for all, the sum of the quotas) may use.
    budget_used: float | None
    #: Attempts whose usage nobody told.
    unknown: int = 0


@dataclass(frozen=True, kw_only=True)
class OutcomeStep:
    """One step of the outcomes' plot."""

    at: float
    first_try: int = 0
    repaired: int = 0
    escalated: int = 0


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One queue."""

    name: str
    waiting: int
    #: Of the workers that count in this queue: see `overview_now.lane_of`.
    active: int
    slots: int
    oldest_seconds: float | None
    paused: bool


@dataclass(frozen=True, kw_only=True)
class Why:
    """One failure signature of the window."""

    signature: str
    kind: str
    cause: str
    place: str
    count: int
    #: Of the repairs tried for it, those that succeeded; None: none was tried.
    repaired: float | None
    #: Against the window before: 1 more, -1 fewer, 0 as many.
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
    queues: tuple[Lane, ...]
    #: Tasks that run, each once, however many queues its worker serves.
    running: int
    #: The most frequent first, and whether there are more than these.
    why: tuple[Why, ...]
    why_more: bool = False
    #: kind → task type → failures.
    heat: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    techniques: tuple[Technique, ...] = ()
    #: What is paused, as `ledger.paused()` names it.
    paused: tuple[str, ...] = ()
    #: How many jobs wait for a breaker, in words; empty if none does.
    behind_breakers: str = ""
    #: Of the jobs that were accepted or ended in the window.
    task_types: tuple[str, ...] = ()
    #: When the configuration changed.
    changes: tuple[float, ...] = ()
    #: Tenants seen in the window: what the page offers to choose from.
    tenants: tuple[str, ...] = ()
