"""Settings of loops."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel


class LoopSettings(BaseModel):
    #: The folder of the templates that `POST /api/loops` may name, each a file NAME.yaml.
    loop_templates: Path | None = None
