"""What the HTTP app needs: services, tokens, the rate limit and the event broadcast."""

from __future__ import annotations

from dataclasses import dataclass

from celery import Celery

from mulligan.console.http.broadcast import Broadcast
from mulligan.console.http.rate_limit import RateLimit
from mulligan.workers.celery.factory import create_app
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stores.tokens import Tokens
from mulligan.workers.services import Services, app_services
from mulligan.workers.settings.model import Settings


@dataclass(frozen=True, kw_only=True)
class ConsoleContext:
    """One console process. Routes take everything from here."""

    services: Services
    app: Celery
    rate: RateLimit
    broadcast: Broadcast

    @property
    def settings(self) -> Settings:
        """The settings in force now: prices, quotas and the like are reloaded."""
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
    """Wire a console process. Nothing is contacted yet."""
    # Somebody waits for an answer: for seconds, not for as long as a worker would.
    hasty = settings.model_copy(update={"worker_patience": settings.submit_patience})
    app = create_app(hasty)
    services = app_services(hasty, app, patience=hasty.submit_patience, local_paths=False)
    return ConsoleContext(
        services=services,
        app=app,
        rate=RateLimit(hasty.rate_limit),
        broadcast=Broadcast(services.ledger, hasty),
    )
