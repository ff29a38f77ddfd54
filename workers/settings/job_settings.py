"""Settings of jobs: what they may name, timeouts and repair limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, field_validator

from mulligan.policies.jobs.job import Seconds
from mulligan.policies.value import SortedSet


class JobSettings(BaseModel):
    #: Task types without a mandatory retry.
    exempt_task_types: SortedSet[str] = frozenset({"read_aloud", "benchmark"})
    #: Whether jobs may define runners inline instead of naming a profile.
    allow_inline: bool = False
    #: Where `on_done` may send outcomes, as `task@queue`; `*` stands for any text.
    on_done: SortedSet[str] = frozenset()
    #: Named runners: the only ones a job from a queue may use.
    runners: dict[str, dict[str, Any]] = Field(default_factory=dict)
    #: Named commands for command.subprocess: `{argv = […], timeout = …}`.
    commands: dict[str, dict[str, Any]] = Field(default_factory=dict)
    #: Named directories that jobs from a queue may use as their workspace.
    workspaces: dict[str, Path] = Field(default_factory=dict)
    #: The runner of a client's jobs that name none. None: the bundled model on an embedded stack.
    default_runner: str | None = None
    #: Modules and packages whose pydantic models jobs may name as contracts.
    model_modules: SortedSet[str] = frozenset()
    #: Maximum time for one answer of a runner whose profile sets no timeout.
    runner_timeout: Seconds = Field(default=300.0, gt=0)

    @field_validator("on_done")
    @classmethod
    def _check_on_done(cls, value: frozenset[str]) -> frozenset[str]:
        for each in sorted(value):
            if "@" not in each and "*" not in each:
                raise ValueError(f"use task@queue, such as shop.answered@shop, not {each!r}")
        return value


class PatienceSettings(BaseModel):
    #: How long producers and workers wait for an unreachable ledger.
    submit_patience: Seconds = 5.0
    worker_patience: Seconds = 600.0
    #: Back-off between tries of an unreachable provider.
    backoff_base: Seconds = 1.0
    backoff_cap: Seconds = 60.0


class RepairLimitSettings(BaseModel):
    #: How long a subject may keep an external attempt.
    external_lease: Seconds = Field(default=1800.0, gt=0)
    #: Guardrails: maximum repair loops of one skill in a session, and maximum share of its time.
    #: A session is what happened within the window.
    guard_window: Seconds = Field(default=5400.0, gt=0)
    guard_loops: int = Field(default=2, ge=1)
    guard_share: float = Field(default=0.25, gt=0, le=1)
    #: Whether guardrails apply to each subject of external work, and to each job from the queue.
    #: Without them, every low score gets its retry.
    guard_subjects: bool = False
    guard_jobs: bool = False
