"""A task queue for language-model work whose retries correct their input.

The public names, each loaded when it is first asked for: a producer never pays for a worker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.async_client import AsyncClient
    from mulligan.client import Client
    from mulligan.policies.job import Job
    from mulligan.result import (
        BadValue,
        Handle,
        JobFailed,
        NotAllStored,
        Result,
        WaitTimeout,
    )
    from mulligan.tasks.own import Repair, Scored
    from mulligan.workers.edits.loop import execute_edits
    from mulligan.workers.own_tasks import RepairingTask, install

_HOMES = {
    "AsyncClient": "mulligan.async_client",
    "BadValue": "mulligan.result",
    "Client": "mulligan.client",
    "Handle": "mulligan.result",
    "Job": "mulligan.policies.job",
    "JobFailed": "mulligan.result",
    "NotAllStored": "mulligan.result",
    "Repair": "mulligan.tasks.own",
    "RepairingTask": "mulligan.workers.own_tasks",
    "Result": "mulligan.result",
    "Scored": "mulligan.tasks.own",
    "WaitTimeout": "mulligan.result",
    "execute_edits": "mulligan.workers.edits.loop",
    "install": "mulligan.workers.own_tasks",
}

__all__ = [
    "AsyncClient",
    "BadValue",
    "Client",
    "Handle",
    "Job",
    "JobFailed",
    "NotAllStored",
    "Repair",
    "RepairingTask",
    "Result",
    "Scored",
    "WaitTimeout",
    "execute_edits",
    "install",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mulligan' has no attribute {name!r}")
    return getattr(import_module(home), name)
