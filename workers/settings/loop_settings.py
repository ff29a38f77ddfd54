"""Settings of loops."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field


class LoopSettings(BaseModel):
    #: Items of all loops that run at once in the whole fleet. `mulligan loops slots` overrides it.
    loop_slots: int = Field(default=8, ge=1)
    #: The folder of the templates that `POST /api/loops` may name, each a file NAME.yaml.
    loop_templates: Path | None = None
    #: Patterns of the branches that loops may write that do not come from the command line.
    loop_branches: tuple[str, ...] = ("mulligan/**",)
