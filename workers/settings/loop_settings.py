"""Settings of loops."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field

from mulligan.policies.jobs.job import Seconds


class LoopSettings(BaseModel):
    #: Items of all loops that run at once in the whole fleet. `mulligan loops slots` overrides it.
    loop_slots: int = Field(default=8, ge=1)
    #: A loop of priority p that waits p times as long for a slot is overdue; 0: none ever is.
    loop_ageing: Seconds = Field(default=600.0, ge=0)
    #: How long an item without a slot keeps the files that it declares.
    lock_ttl: Seconds = Field(default=600.0, ge=1)
    #: The folder of the templates that `POST /api/loops` may name, each a file NAME.yaml.
    loop_templates: Path | None = None
    #: Patterns of the branches that loops may write that do not come from the command line.
    loop_branches: tuple[str, ...] = ("mulligan/**",)
    #: The profile of the runner that drafts loops; by default that of the loop.
    loop_drafter: str | None = None
