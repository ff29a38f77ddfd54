"""A console over a loop on a repository that runs in this process."""

from __future__ import annotations

from mulligan.console.http.broadcast import Broadcast
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.rate_limit import RateLimit
from mulligan.workers.celery.factory import create_app
from support.inline_fleet import InlineFleet


def console_of(fleet: InlineFleet) -> ConsoleContext:
    """Return the context of a console that shares the services of a fleet."""
    settings = fleet.settings
    # Its broker is never asked: the fleet takes what is published.
    app = create_app(settings.model_copy(update={"broker_url": "redis://localhost:1/0"}))
    return ConsoleContext(
        services=fleet.services,
        app=app,
        rate=RateLimit(settings.rate_limit),
        broadcast=Broadcast(fleet.ledger, settings),
    )
