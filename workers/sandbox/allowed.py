"""What the settings allow programs under test."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from mulligan.workers.sandbox.confinement import Confinement
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.visible_files import home_directory
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
            never_read=_never_read(settings),
        ),
        heartbeat_seconds=settings.lease,
    )


def _never(settings: Settings) -> tuple[str, ...]:
    """Return the places of the broker, the ledger, the blobs and the console."""
    found = [f"{settings.console_host}:{settings.console_port or 0}"]
    for parts in _urls(settings):
        port = parts.port or _PORTS.get(parts.scheme)
        if parts.hostname and port:
            found.append(f"{parts.hostname}:{port}")
    return tuple(found)


def _never_read(settings: Settings) -> tuple[Path, ...]:
    """Return the home directory, the blobs' directory, and where sockets are."""
    found = [settings.home.resolve()]
    for parts in _urls(settings):
        path = Path(unquote(parts.path))
        if parts.scheme == "file":
            found.append(path.resolve())
        elif parts.scheme in ("unix", "redis+socket"):
            found.append(_hideable(path.resolve()))
    return tuple(dict.fromkeys(found))


def _hideable(socket: Path) -> Path:
    """Return the directory of a socket, which may be made anew; or the socket, if others use it."""
    folder = socket.parent
    if folder in (home_directory(), *home_directory().parents) or not folder.is_dir():
        return socket
    shared = folder.stat().st_mode & stat.S_ISVTX or str(folder) in ("/run", "/var")
    return socket if shared else folder


def _urls(settings: Settings) -> Iterator[SplitResult]:
    urls = (settings.broker_url, settings.ledger_url, settings.blob_url, settings.console_url)
    for url in (part for each in urls if each for part in each.split(";")):
        yield urlsplit(url)
