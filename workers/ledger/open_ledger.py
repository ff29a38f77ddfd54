"""Open the ledger that the settings name. Imports neither Celery nor runners or verifiers."""

from __future__ import annotations

from collections.abc import Callable

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.ledger.connection.calls import SOCKET_TIMEOUT, connect
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stored.schema import CURRENT, StoredSchema
from mulligan.workers.settings.model import Settings

#: Seconds that Redis may take to answer, however short the patience.
_SHORTEST_TIMEOUT = 3.0


def open_ledger(
    settings: Settings,
    *,
    patience: float,
    keep: float | None = None,
    live: Callable[[], Settings] | None = None,
    schema: StoredSchema = CURRENT,
) -> RedisLedger:
    """Open the ledger of these settings. Raises BadInput if none is configured.

    ``keep``: seconds to wait when storing what was paid for, if longer than ``patience``.
    ``live`` returns the current settings: quotas may change while a process runs.
    ``schema``: what the release that uses the ledger can read.
    """
    if settings.ledger is None:
        raise BadInput("no ledger: set MULLIGAN_LEDGER_URL or MULLIGAN_BROKER_URL")
    if not settings.ledger.startswith(("redis://", "rediss://", "unix://")):
        scheme = settings.ledger.partition(":")[0]
        raise BadInput.at("ledger_url", f"the broker is {scheme}; set a Redis for the ledger, too")
    # Someone who waits only for a moment also gives up soon on a Redis that hangs.
    client = connect(settings.ledger, timeout=min(SOCKET_TIMEOUT, max(patience, _SHORTEST_TIMEOUT)))
    return RedisLedger(client, settings, patience=patience, keep=keep, live=live, schema=schema)
