"""What the settings allow programs under test."""

from __future__ import annotations

from urllib.parse import urlsplit

from mulligan.workers.sandbox.confinement import Confinement
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.settings.model import Settings

_PORTS = {"redis": 6379, "rediss": 6379, "amqp": 5672, "amqps": 5671, "http": 80, "https": 443}


def program_limits(settings: Settings) -> Limits:
    """Return the limits of programs under test, and how they are confined."""
    return Limits(
        confinement=Confinement(
            kind=settings.sandbox,
            unsafe=settings.unsafe_sandbox,
            read=settings.sandbox_read,
            never=_never(settings),
        )
    )


def _never(settings: Settings) -> tuple[str, ...]:
    """Return the places of the broker, the ledger, the blobs and the console."""
    urls = (settings.broker_url, settings.ledger_url, settings.blob_url, settings.console_url)
    found = [f"{settings.console_host}:{settings.console_port or 0}"]
    for url in (part for each in urls if each for part in each.split(";")):
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
        if parts.hostname and port:
            found.append(f"{parts.hostname}:{port}")
    return tuple(found)
