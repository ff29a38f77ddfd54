"""What the HTTP app needs: services, tokens, limits and the event broadcast."""

from __future__ import annotations

from dataclasses import dataclass, field

from celery import Celery

from mulligan.console.http.broadcast import Broadcast
from mulligan.console.http.rate_limit import RateLimit
from mulligan.console.http.repository_reads import RepositoryReads
from mulligan.workers.celery.factory import create_app
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stores.tokens import Tokens
from mulligan.workers.services import Services, app_services
from mulligan.workers.settings.model import Settings


@dataclass(frozen=True, kw_only=True)
class ConsoleContext:
    """The dependencies of one console process."""

    services: Services
    app: Celery
    rate: RateLimit
    broadcast: Broadcast
    repository_reads: RepositoryReads = field(default_factory=RepositoryReads)

    @property
    def settings(self) -> Settings:
        """The current settings: prices, quotas and some others are reloaded."""
        return self.services.live.current()

    @property
    def ledger(self) -> RedisLedger:
        return self.services.ledger

    @property
    def tokens(self) -> Tokens:
        return self.services.ledger.tokens

    def close(self) -> None:
        self.broadcast.close()


def open_context(settings: Settings) -> ConsoleContext:
    """Wire a console process, without connecting to anything."""
    # A request waits seconds for the ledger, not as long as a worker does.
    settings = settings.model_copy(update={"worker_patience": settings.submit_patience})
    app = create_app(settings)
    services = app_services(settings, app, patience=settings.submit_patience, local_paths=False)
    return ConsoleContext(
        services=services,
        app=app,
        rate=RateLimit(settings.rate_limit),
        broadcast=Broadcast(services.ledger, settings),
    )
