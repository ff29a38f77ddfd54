"""Opening the ledger that the settings name. Imports neither Celery nor anything that works."""

from __future__ import annotations

from collections.abc import Callable

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.ledger.calls import connect
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.settings.model import Settings


def open_ledger(
    settings: Settings, *, patience: float, live: Callable[[], Settings] | None = None
) -> RedisLedger:
    """The ledger of these settings, or BadInput if none is configured.

    ``live`` tells the settings that may change meanwhile: the quotas.
    """
    if settings.ledger is None:
        raise BadInput("no ledger: set MULLIGAN_LEDGER_URL or MULLIGAN_BROKER_URL")
    if not settings.ledger.startswith(("redis://", "rediss://", "unix://")):
        scheme = settings.ledger.partition(":")[0]
        raise BadInput.at("ledger_url", f"the broker is {scheme}: name a Redis for the ledger, too")
    return RedisLedger(connect(settings.ledger), settings, patience=patience, live=live)
