"""A task queue for language-model work whose retries correct their input.

The public names are imported at first use, so that a producer never loads a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mulligan.lazy_exports import lazy_exports

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
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "mulligan.client.async_client": "AsyncClient",
            "mulligan.client.result": "BadValue Handle JobFailed NotAllStored Result WaitTimeout",
            "mulligan.client.sync_client": "Client",
            "mulligan.policies.jobs.job": "Job",
            "mulligan.tasks.user_tasks.user_task": "Repair Scored",
            "mulligan.workers.edits.execute_edits": "execute_edits",
            "mulligan.workers.user_tasks.repairing_task": "RepairingTask install",
        },
    )

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
