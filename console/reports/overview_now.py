"""The current state for the overview: workers, queues, breakers, and what needs attention."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kombu.exceptions import OperationalError

from mulligan.console.reports.overview_values import (
    Health,
    NeedsAttention,
    QueueStatus,
)
from mulligan.console.reports.providers import ParkedWork, visible_parked
from mulligan.console.reports.visibility import visible_breakers, visible_pauses
from mulligan.policies.figures.format import counted, duration
from mulligan.policies.jobs.breaker import Breaker
from mulligan.policies.jobs.sweep_health import SweepHealth, sweep_health
from mulligan.tasks.escalations.end_escalations import list_groups
from mulligan.tasks.ports.ledger import EscalationGroup
from mulligan.workers.celery.broker.queue_depth import QueueDepth, waiting
from mulligan.workers.celery.broker.queues import (
    CONTROL_QUEUE,
    REQUIRED_QUEUES,
    SHOWN_QUEUES,
    SUBMIT_QUEUE,
    main_queue,
    required_queues,
)
from mulligan.workers.celery.broker.stranded import StrandedMessages, stranded_messages
from mulligan.workers.ledger.stores.beats import STALE, Beat
from mulligan.workers.ledger.stores.refused_submissions import recent_words
from mulligan.workers.services import Services

if TYPE_CHECKING:
    from celery import Celery

#: Seconds that figures may be behind before it is reported.
_LATE = 60.0
_GROUPS = 20


@dataclass(frozen=True, kw_only=True)
class CurrentState:
    """The current state, as far as the overview shows it."""

    at: float
    beats: Sequence[Beat] = ()
    #: None if the broker cannot be reached.
    queues: Mapping[str, QueueDepth] | None = None
    paused: tuple[str, ...] = ()
    breakers: Mapping[str, Breaker] = field(default_factory=dict)
    parked: tuple[ParkedWork, ...] = ()
    groups: Sequence[EscalationGroup] = ()
    dead_webhooks: int = 0
    #: Entries that cannot be sent or read.
    quarantined: int = 0
    #: The queues that some worker must serve.
    required: Sequence[str] = REQUIRED_QUEUES
    #: Submissions refused within the last hour.
    submissions_refused: int = 0
    #: Messages to mulligan on a queue that none of its workers serves.
    stranded: StrandedMessages | None = None
    #: Why the ledger stores nothing now.
    refused: str | None = None
    #: Seconds since which the ledger answers.
    answering_for: float = math.inf
    sweep_age: float | None = None
    sweep: SweepHealth = "down"
    fold_lag: float = 0.0
    #: Tenant → tokens used today, for tenants with a quota.
    spent: Mapping[str, int] = field(default_factory=dict)

    @property
    def settling(self) -> bool:
        """Whether a running worker may have had no time to report since the ledger is back."""
        return self.answering_for < STALE

    @property
    def oldest_seconds(self) -> float | None:
        ages = [w.oldest_seconds for w in (self.queues or {}).values() if w.oldest_seconds]
        return max(ages, default=0.0) if self.queues is not None else None


def read_current_state(
    services: Services, app: Celery, *, tenant: str | None, bound: bool
) -> CurrentState:
    """Read the current state. The number of round trips does not depend on the number of jobs.

    ``bound``: the reader may know only this tenant.
    """
    ledger = services.ledger
    now = ledger.now()
    bound_to = tenant if bound else None
    breakers = visible_breakers(services, bound_to)
    sweep_age = ledger.sweep_age()
    refused = ledger.write_problem()
    return CurrentState(
        at=now,
        beats=ledger.beats.live(now=now),
        required=required_queues(services.settings, loops=ledger.has_loops()),
        queues=_queues(app),
        paused=tuple(visible_pauses(services, bound_to)),
        breakers=breakers,
        parked=visible_parked(services, bound_to),
        groups=list_groups(ledger, tenant=tenant, limit=_GROUPS),
        quarantined=0 if bound else ledger.quarantine.count(),
        submissions_refused=0 if bound else ledger.refused_submissions.recent(),
        stranded=None if bound else stranded_messages(app),
        dead_webhooks=0 if bound else services.webhooks.deliveries.counts()["dead"],
        refused=str(refused) if refused is not None else None,
        answering_for=ledger.answering_for(),
        sweep_age=sweep_age,
        sweep=sweep_health(sweep_age, interval=services.settings.sweep_interval),
        fold_lag=services.figures.lag(now=now),
        spent=_spent(services, now, tenant),
    )


def _queues(app: Celery) -> Mapping[str, QueueDepth] | None:
    try:
        return waiting(app, SHOWN_QUEUES)
    except OperationalError:
        return None  # the page reports it and shows what the ledger knows


def _spent(services: Services, now: float, tenant: str | None) -> dict[str, int]:
    quotas = services.live.current().quotas
    if not quotas:
        return {}
    tenants = [name for name in quotas if name != "*"] if tenant is None else [tenant]
    return services.ledger.tokens_spent(tenants, day=int(now // 86400))


# -- health ----------------------------------------------------------------------------------------


def health_of(now: CurrentState) -> Health:
    down, degraded = _down(now), _degraded(now)
    return Health(
        state="down" if down else "degraded" if degraded else "ok",
        reasons=(*down, *degraded),
        workers=len(now.beats),
        settling=now.settling,
        breakers_open=sum(breaker.failing for breaker in now.breakers.values()),
    )


def _down(now: CurrentState) -> list[str]:
    reasons = []
    if now.refused is not None:
        reasons.append(now.refused)
    if now.queues is None:
        reasons.append("the broker cannot be reached")
    if not now.beats and not now.settling:
        reasons.append(f"no worker has reported for {duration(STALE)}: start workers")
    if now.sweep_age is None and not now.settling:
        reasons.append("the sweep has never run: start a control worker")
    elif now.sweep_age is not None and now.beats and now.sweep == "down":
        reasons.append(f"no sweep for {duration(now.sweep_age)}: delayed work is not started")
    return reasons


def _degraded(now: CurrentState) -> list[str]:
    served = {queue for beat in now.beats for queue in beat.queues}
    unserved = [queue for queue in now.required if queue not in served]
    reasons = []
    if now.settling and unserved:
        which = f"no worker for {', '.join(unserved)}" if now.beats else "no worker"
        back = duration(now.answering_for)
        reasons.append(f"the ledger has answered for only {back}, and {which} has reported yet")
    elif now.beats:
        reasons += [f"no worker serves {queue}" for queue in unserved]
    waiting = [beat for beat in now.beats if beat.waiting]
    if waiting:
        who = counted(len(waiting), "worker")
        reasons.append(f"{who} waiting for the ledger: {waiting[0].waiting_reason}")
    if now.sweep == "late":
        reasons.append(f"the last sweep was {duration(now.sweep_age)} ago")
    for name, breaker in sorted(now.breakers.items()):
        if breaker.failing:
            what = name if breaker.state == "out_of_credits" else f"the breaker of {name}"
            reasons.append(f"{what} is {breaker.state.replace('_', ' ')}")
    if now.fold_lag > _LATE:
        reasons.append(f"figures are {duration(now.fold_lag)} behind")
    reasons += [f"{what} is paused" for what in now.paused]
    return reasons


# -- what needs attention --------------------------------------------------------------------------


def needing_attention(now: CurrentState, *, tenant: str | None) -> tuple[NeedsAttention, ...]:
    """List escalations first, the largest group at the top, then what is broken."""
    groups = [_escalations(group, now.at, tenant) for group in now.groups]
    groups.sort(key=lambda need: (need.muted, -need.count))
    needs = [*groups, *_open_breakers(now)]
    if now.quarantined:
        needs.append(
            NeedsAttention(
                kind="outbox",
                title=f"{counted(now.quarantined, 'entry', 'entries')} quarantined",
                detail="they cannot be sent or read: send them again, or drop them",
                count=now.quarantined,
            )
        )
    needs += _submissions(now)
    if now.dead_webhooks:
        needs.append(
            NeedsAttention(
                kind="webhooks",
                title=f"{counted(now.dead_webhooks, 'alert')} could not be delivered",
                detail="see `mulligan webhooks list`",
                count=now.dead_webhooks,
            )
        )
    if now.sweep != "ok":
        last = "has never run" if now.sweep_age is None else f"ran {duration(now.sweep_age)} ago"
        needs.append(
            NeedsAttention(
                kind="sweep",
                title=f"the sweep {last}",
                detail="delayed retries and lost work wait for it; is a control worker running?",
            )
        )
    if now.fold_lag > _LATE:
        needs.append(
            NeedsAttention(
                kind="fold",
                title=f"figures are {duration(now.fold_lag)} behind",
                detail="this page shows old figures",
            )
        )
    return tuple(needs)


def _escalations(group: EscalationGroup, now: float, tenant: str | None) -> NeedsAttention:
    count = group.open if tenant is None else group.tenants.get(tenant, 0)
    types = [name for name, n in group.task_types.items() if n]
    shown = ", ".join(types[:2]) + (f" and {len(types) - 2} more" if len(types) > 2 else "")
    return NeedsAttention(
        kind="escalations",
        title=f"{group.kind or group.reason}  {shown}".strip(),
        detail=group.reason if group.kind else group.detail,
        count=count,
        key=group.signature,
        since=group.first_at,
        muted=group.muted_until is not None and group.muted_until > now,
    )


def _open_breakers(now: CurrentState) -> list[NeedsAttention]:
    found = []
    parked = {each.reason: each.entries for each in now.parked}
    for name, breaker in sorted(now.breakers.items()):
        if not breaker.failing:
            continue
        unpaid = breaker.out_of_credits_at
        since = breaker.first_fault_at if unpaid is None else unpaid
        lasting = f" for {duration(now.at - since)}" if since is not None else ""
        probing = "waiting before the next probe" if breaker.until > now.at else "probing"
        count = parked.get(f"provider:{name}", 0)
        behind = f", {counted(count, 'job')} waiting" if count else ""
        what = "breaker of" if unpaid is None else "provider"
        faults = f", {counted(breaker.faults, 'consecutive fault')}" if unpaid is None else ""
        found.append(
            NeedsAttention(
                kind="breaker",
                title=f"{what} {name}: {breaker.state.replace('_', ' ')}{lasting}",
                detail=f"{probing}{behind}{faults}",
                count=breaker.faults,
                key=name,
                since=since,
            )
        )
    return found


# -- queues ----------------------------------------------------------------------------------------


def queue_statuses(now: CurrentState) -> tuple[QueueStatus, ...]:
    """Return the required queues and those that have workers or messages.

    The queue of submissions is shown if some wait: its worker is counted in `control`.

    A worker may serve several queues. Its tasks and slots count in one of them, so that the queues
    add up and agree with `/api/scale` for the pool of that name.
    """
    statuses = []
    for name in SHOWN_QUEUES:
        served = any(name in beat.queues for beat in now.beats)
        counted_here = [beat for beat in now.beats if queue_of(beat) == name]
        found = (now.queues or {}).get(name)
        depth = found.depth if found else 0
        optional = name == SUBMIT_QUEUE or (not served and name not in now.required)
        if optional and not depth:
            continue
        statuses.append(
            QueueStatus(
                name=name,
                waiting=depth,
                active=sum(beat.active for beat in counted_here),
                slots=sum(beat.slots for beat in counted_here),
                oldest_seconds=found.oldest_seconds if found else None,
                paused=f"queue:{name}" in now.paused,
            )
        )
    return tuple(statuses)


def queue_of(beat: Beat) -> str | None:
    """Return the queue that a worker counts in; None if it serves none of mulligan's.

    This is the queue named like its pool, else the one with most of its work.
    """
    return beat.pool if beat.pool in beat.queues else main_queue(beat.queues)


def count_running(now: CurrentState) -> int:
    """Count running tasks of jobs and edits, without those of the control worker."""
    return sum(beat.active for beat in now.beats if queue_of(beat) != CONTROL_QUEUE)


def _submissions(now: CurrentState) -> Iterator[NeedsAttention]:
    if now.stranded is not None:
        yield NeedsAttention(
            kind="submissions",
            title=now.stranded.text,
            detail=f"no worker of mulligan serves it: send them to the queue {SUBMIT_QUEUE}",
            count=now.stranded.count,
        )
    if now.submissions_refused:
        yield NeedsAttention(
            kind="submissions",
            title=recent_words(now.submissions_refused),
            detail="their producers must correct them; see Operations",
            count=now.submissions_refused,
        )
