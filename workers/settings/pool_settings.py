"""Settings of the worker pools and of Flower."""

from __future__ import annotations

import os

from pydantic import BaseModel, Field

from mulligan.policies.jobs.job import Seconds


class PoolSettings(BaseModel):
    """Sizes of the pools that workers/celery/broker/queues.py declares."""

    attempt_slots: int = Field(default=16, ge=1)
    repair_slots: int = Field(default=4, ge=1)
    verify_slots: int = Field(default_factory=lambda: max(1, os.cpu_count() or 1))
    #: Agents' attempts may take hours, so they have slots of their own.
    agent_slots: int = Field(default=8, ge=1)
    agent_repair_slots: int = Field(default=2, ge=1)
    #: With a maximum, a pool has processes instead of threads, from its slots to the maximum.
    attempt_slots_max: int | None = Field(default=None, ge=1)
    repair_slots_max: int | None = Field(default=None, ge=1)
    verify_slots_max: int | None = Field(default=None, ge=1)
    agent_slots_max: int | None = Field(default=None, ge=1)
    agent_repair_slots_max: int | None = Field(default=None, ge=1)
    #: How long an autoscaled pool must be too large before it ends one process.
    scale_quiet: Seconds = Field(default=60.0, gt=0)
    #: Task events for Flower; they cost about a quarter of the throughput.
    task_events: bool = True
    flower_port: int = Field(default=5555, ge=0, le=65535)
