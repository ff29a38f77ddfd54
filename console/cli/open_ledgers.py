"""The ledger for commands that only read it. Needs no Celery, which is slow to import."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mulligan.console.cli.exit_codes import NoBroker
from mulligan.workers.ledger.open_ledger import open_ledger
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.local.home import embedded_redis, has_ledger
from mulligan.workers.settings.model import Settings


@contextmanager
def locate_ledger(settings: Settings) -> Iterator[Settings]:
    """Yield settings with a ledger; start that of the home directory if necessary."""
    if settings.ledger is not None:
        yield settings
        return
    if not has_ledger(settings.home):
        raise NoBroker(
            f"no ledger in {settings.home.absolute()}: nothing has run there yet. Start"
            " `mulligan up`, change to the folder where it runs, or set MULLIGAN_BROKER_URL"
        )
    with embedded_redis(settings.home, hung_after=settings.embedded_hung_after) as redis:
        yield settings.model_copy(update={"broker_url": redis.url})


@contextmanager
def open_located_ledger(settings: Settings) -> Iterator[RedisLedger]:
    """Open the existing ledger, or raise NoBroker."""
    with locate_ledger(settings) as found:
        yield open_ledger(found, patience=found.submit_patience)
