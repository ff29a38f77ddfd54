"""The breakers and pauses that a caller bound to a tenant may see."""

from __future__ import annotations

from mulligan.policies.figures import trend
from mulligan.policies.jobs.breaker import Breaker
from mulligan.workers.services import Services

#: Seconds to look back for a tenant's task types.
_TASK_TYPES_WINDOW = 86400


def visible_breakers(services: Services, tenant: str | None) -> dict[str, Breaker]:
    """Return all providers; none for a tenant: they would reveal other tenants' work."""
    return services.ledger.breakers.all() if tenant is None else {}


def visible_pauses(services: Services, tenant: str | None) -> list[str]:
    """Return what is paused; for a tenant, queues and the task types that it used recently."""
    paused = services.ledger.paused()
    if tenant is None:
        return paused
    task_types: set[str] = set()
    if any(what.startswith("task_type:") for what in paused):
        now = services.ledger.now()
        found = services.figures.window(_TASK_TYPES_WINDOW, now=now, compare=False)
        types = trend.task_types((bucket.rows for bucket in found.buckets), tenant=tenant)
        task_types = {f"task_type:{name}" for name in types}
    return [what for what in paused if what.startswith("queue:") or what in task_types]
