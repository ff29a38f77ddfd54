"""What a caller that is bound to a tenant may know of breakers and pauses."""

from __future__ import annotations

from mulligan.policies.figures import trend
from mulligan.policies.jobs.breaker import Breaker
from mulligan.workers.services import Services

#: How far back a tenant's task types are looked for, in seconds.
_TASK_TYPES_WINDOW = 86400


def visible_breakers(services: Services, tenant: str | None) -> dict[str, Breaker]:
    """All breakers, or none for a tenant: the providers and how they fare would tell it about
    other tenants' work."""
    return services.ledger.breakers.all() if tenant is None else {}


def visible_pauses(services: Services, tenant: str | None) -> list[str]:
    """What is paused. A tenant sees paused queues, and the task types that it used lately."""
    paused = services.ledger.paused()
    if tenant is None:
        return paused
    own: set[str] = set()
    if any(what.startswith("task_type:") for what in paused):
        now = services.ledger.now()
        found = services.figures.window(_TASK_TYPES_WINDOW, now=now, compare=False)
        types = trend.task_types((bucket.rows for bucket in found.buckets), tenant=tenant)
        own = {f"task_type:{name}" for name in types}
    return [what for what in paused if what.startswith("queue:") or what in own]
