"""What the HTTP app stands on: settings, shop, ledger, tokens and the event broadcast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from celery import Celery

from mulligan.console.http.broadcast import Broadcast
from mulligan.console.http.rate_limit import RateLimit
from mulligan.workers.celery.factory import create_app
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.tokens import Tokens
from mulligan.workers.services import Shop, compose
from mulligan.workers.settings.live_settings import Live
from mulligan.workers.settings.model import Settings


@dataclass(frozen=True, kw_only=True)
class Site:
    """One console process. Routes take everything from here."""

    shop: Shop
    app: Celery
    tokens: Tokens
    rate: RateLimit
    broadcast: Broadcast
    #: The settings in force now: prices, quotas and the like are reloaded.
    current: Callable[[], Settings] = field(repr=False)

    @property
    def settings(self) -> Settings:
        return self.current()

    @property
    def ledger(self) -> RedisLedger:
        return self.shop.ledger

    def close(self) -> None:
        self.broadcast.close()


def open_site(settings: Settings) -> Site:
    """Wire a console process. Nothing is contacted yet."""
    # Somebody waits for an answer: for seconds, not for as long as a worker would.
    hasty = settings.model_copy(update={"worker_patience": settings.submit_patience})
    app = create_app(hasty)
    shop = compose(hasty, app, patience=hasty.submit_patience, local_paths=False)
    return Site(
        shop=shop,
        app=app,
        tokens=Tokens(shop.ledger.calls, prefix=hasty.key_prefix),
        rate=RateLimit(hasty.rate_limit),
        broadcast=Broadcast(shop.ledger, hasty),
        current=Live(hasty).current,
    )
