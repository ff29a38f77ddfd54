"""The ledger to look into. Needs no Celery, which takes as long to import as all the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mulligan.console.cli.exit_codes import NoBroker
from mulligan.console.cli.home import embedded_redis, has_ledger
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.ledger.calls import connect
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.settings.model import Settings, load_settings


@contextmanager
def located(settings: Settings) -> Iterator[Settings]:
    """The settings with a broker in them: a home directory's own is started if need be."""
    if settings.ledger is not None:
        yield settings
        return
    if not has_ledger(settings.home):
        raise NoBroker(
            f"no ledger: nothing was run in {settings.home} yet; try `mulligan run FILE`,"
            " or set MULLIGAN_BROKER_URL"
        )
    with embedded_redis(settings.home) as redis:
        yield load_settings(broker_url=redis.url)


@contextmanager
def reading(settings: Settings) -> Iterator[RedisLedger]:
    """The ledger, to look into."""
    with located(settings) as found:
        yield _open(found)


def _open(settings: Settings) -> RedisLedger:
    url = settings.ledger or ""
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise BadInput("ledger_url: a broker that is no Redis needs a ledger: set a Redis URL")
    return RedisLedger(connect(url), settings, patience=settings.submit_patience)
