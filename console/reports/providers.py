"""The providers and the parked work that a caller may see, as every surface shows them."""

from __future__ import annotations

from dataclasses import dataclass

from mulligan.console.reports.visibility import visible_breakers, visible_pauses
from mulligan.policies.figures.format import duration
from mulligan.policies.figures.waiting_words import provider_words, waiting_words
from mulligan.policies.jobs.breaker import Breaker, BreakerState
from mulligan.policies.jobs.provider_limits import ProviderLimits
from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.status_reads import ParkedEntries
from mulligan.workers.services import Services

_PROVIDER = "provider:"


@dataclass(frozen=True, kw_only=True)
class ProviderRow:
    """One provider."""

    provider: str
    state: BreakerState
    #: Calls at once that the fleet allows itself now, learned from the provider's answers; null
    #: before the first call.
    limit: int | None
    #: Calls at once that the configuration allows; null without a limit.
    ceiling: int | None
    #: Tokens in any 60 seconds, from the configuration or the provider's headers, and those of the
    #: last minute; null without a limit.
    tokens_per_minute: int | None
    tokens_used: int | None
    in_flight: int
    #: Entries that wait for it, and how long the first has waited.
    parked: int
    oldest_seconds: float | None
    #: When the next call is allowed; null if it is allowed now.
    until: float | None
    #: Transport faults in a row.
    faults: int
    #: What the last fault or refusal was, and when.
    last_fault: str | None
    last_fault_at: float | None
    #: Whether a person paused it.
    paused: bool
    #: What it does now, in words.
    text: str


@dataclass(frozen=True, kw_only=True)
class ParkedWork:
    """Entries that may not run now, for one reason."""

    #: What they wait for: queue:NAME, task_type:NAME, provider:NAME or quota:TENANT.
    reason: str
    #: The same in words.
    text: str
    entries: int
    #: How long the first of them has waited.
    oldest_seconds: float

    def __str__(self) -> str:
        waits = "entry waits" if self.entries == 1 else "entries wait"
        return f"{self.entries:,} {waits} (longest {duration(self.oldest_seconds)}) for {self.text}"


def provider_rows(services: Services, tenant: str | None) -> list[ProviderRow]:
    """List providers that were called, configured or paused.

    None for a tenant, because they would reveal other tenants' work.
    """
    if tenant is not None:
        return []
    ledger = services.ledger
    now, known, paused = ledger.now(), ledger.breakers.all(), ledger.paused()
    parked = {each.reason: each for each in ledger.parked()}
    ceilings = services.runners.ceilings()
    named = [what.removeprefix(_PROVIDER) for what in paused if what.startswith(_PROVIDER)]
    return [
        _row(
            name,
            known.get(name, Breaker()),
            parked.get(_PROVIDER + name),
            ceiling=ceilings.get(name, ProviderLimits()),
            paused=name in named,
            now=now,
        )
        for name in sorted({*known, *services.runners.providers(), *named})
    ]


def _row(
    name: str,
    found: Breaker,
    parked: ParkedEntries | None,
    *,
    ceiling: ProviderLimits,
    paused: bool,
    now: float,
) -> ProviderRow:
    per_minute = found.tokens_per_minute or ceiling.tokens_per_minute
    return ProviderRow(
        provider=name,
        state=found.state,
        limit=found.limit or None,
        ceiling=ceiling.concurrency,
        tokens_per_minute=per_minute,
        tokens_used=None if per_minute is None else found.tokens_used,
        in_flight=found.in_flight,
        parked=parked.count if parked else 0,
        oldest_seconds=parked.age(now) if parked else None,
        until=found.until if found.until > now else None,
        faults=found.faults,
        last_fault=found.last_fault,
        last_fault_at=found.last_fault_at,
        paused=paused,
        text="paused by a person" if paused else provider_words(found, now),
    )


def awaited_provider(
    ledger: RedisLedger, view: JobView, tenant: str | None = None
) -> Breaker | None:
    """Return the state of the provider that a job waits for, if the caller may see it.

    None for one that a person has paused: its next try would not come.
    """
    behind = view.waiting_behind or ""
    if tenant is not None or not behind.startswith(_PROVIDER) or behind in ledger.paused():
        return None
    return ledger.breakers.all().get(behind.removeprefix(_PROVIDER))


def visible_parked(services: Services, tenant: str | None) -> tuple[ParkedWork, ...]:
    """List what is parked, by reason; for a tenant, only behind its own quota."""
    now, found = services.ledger.now(), services.ledger.parked()
    if tenant is not None:
        found = [each for each in found if each.reason == f"quota:{tenant}"]
    if not found:
        return ()
    known, paused = visible_breakers(services, tenant), visible_pauses(services, tenant)
    return tuple(
        ParkedWork(
            reason=each.reason,
            text=waiting_words(
                "pause" if each.reason in paused else None,
                each.reason,
                provider=known.get(each.reason.removeprefix(_PROVIDER)),
                now=now,
            ),
            entries=each.count,
            oldest_seconds=each.age(now),
        )
        for each in found
    )
