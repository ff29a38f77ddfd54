"""What a worker needs of its computer and its Redis, checked before it takes any work."""

from __future__ import annotations

import resource

from mulligan.tasks.ports.errors import BadInput, LedgerUnavailable
from mulligan.workers.ledger.connection.connections import SHARED
from mulligan.workers.ledger.redis_ledger import RedisLedger

#: Files that a worker opens besides those of its slots: connections, logs, libraries.
_FILES = 160
#: A connection to a model's server, or the pipes and files of a program.
_FILES_PER_SLOT = 4
#: Connections of a worker to its broker: publishing, consuming, events.
_BROKER_CONNECTIONS = 20
#: Connections that renew leases.
_LEASE_CONNECTIONS = 2
#: Round trips of several scripts take a second connection.
CONNECTIONS = 2 * SHARED + _LEASE_CONNECTIONS + _BROKER_CONNECTIONS


def require_files(slots: int) -> None:
    """Raise the limit of open files to what the slots need, or raise BadInput."""
    needed = _FILES + slots * _FILES_PER_SLOT
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise BadInput(
            f"{slots} slots need {needed:,} open files, and this process may have {hard:,}:"
            " raise the limit (ulimit -Hn, LimitNOFILE, --ulimit nofile) or use fewer slots"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def require_connections(ledger: RedisLedger, *, processes: int = 1) -> None:
    """Raise BadInput if Redis does not allow as many connections as the worker may open."""
    try:
        info = ledger.server_info()
    except LedgerUnavailable:
        return  # a worker waits for its Redis
    most, open_now = int(info.get("maxclients", 0)), int(info.get("connected_clients", 0))
    needed = CONNECTIONS if processes == 1 else 4 * processes + _BROKER_CONNECTIONS
    if most and open_now + needed > most:
        raise BadInput(
            f"this worker needs {needed} connections, and its Redis allows {most:,} (maxclients),"
            f" of which {open_now:,} are in use: raise maxclients or stop other clients"
        )
