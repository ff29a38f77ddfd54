"""A task queue for language-model work whose retries correct their input.

The public names, each loaded when it is first asked for: a producer never pays for a worker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.client.async_client import AsyncClient
    from mulligan.client.result import (
        BadValue,
        Handle,
        JobFailed,
        NotAllStored,
        Result,
        WaitTimeout,
    )
    from mulligan.client.sync_client import Client
    from mulligan.policies.jobs.job import Job
    from mulligan.tasks.user_tasks.user_task import Repair, Scored
    from mulligan.workers.edits.execute_edits import execute_edits
    from mulligan.workers.user_tasks.repairing_task import RepairingTask, install

_HOMES = {
    "AsyncClient": "mulligan.client.async_client",
    "BadValue": "mulligan.client.result",
    "Client": "mulligan.client.sync_client",
    "Handle": "mulligan.client.result",
    "Job": "mulligan.policies.jobs.job",
    "JobFailed": "mulligan.client.result",
    "NotAllStored": "mulligan.client.result",
    "Repair": "mulligan.tasks.user_tasks.user_task",
    "RepairingTask": "mulligan.workers.user_tasks.repairing_task",
    "Result": "mulligan.client.result",
    "Scored": "mulligan.tasks.user_tasks.user_task",
    "WaitTimeout": "mulligan.client.result",
    "execute_edits": "mulligan.workers.edits.execute_edits",
    "install": "mulligan.workers.user_tasks.repairing_task",
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
