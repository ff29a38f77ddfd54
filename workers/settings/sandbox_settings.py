"""Settings of programs under test: verifiers, agents, formatters and suites."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field


class SandboxSettings(BaseModel):
    #: How programs are confined: the best way that works here, or only this one.
    sandbox: Literal["auto", "bubblewrap", "landlock"] = "auto"
    #: Whether to run programs that cannot be confined. An answer may then do what the worker may.
    unsafe_sandbox: bool = False
    #: Files and directories that programs may read, besides the system's and this Python's.
    sandbox_read: tuple[Path, ...] = Field(default=())
