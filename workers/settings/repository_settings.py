"""Settings of git repositories, in which loops work."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field

from mulligan.policies.jobs.job import Seconds


class RepositorySettings(BaseModel):
    #: Named git repositories, each a URL or a path: the only ones a loop that arrives by HTTP may
    #: use.
    repositories: dict[str, str] = Field(default_factory=dict)
    #: The directory of mirrors of remote repositories and of prepared directories. Programs may
    #: read parts of it, so it cannot be below `home`.
    repository_cache: Path = Path("~/.cache/mulligan")
    #: Maximum bytes of that directory. What was not used for the longest time is removed.
    repository_cache_cap: int = Field(default=20 << 30, ge=1 << 20)
    #: How often the work of a running attempt is saved in its repository.
    save_interval: Seconds = Field(default=60.0, ge=1)
    #: How long the work and the transcripts of attempts are kept after their items have ended.
    work_retention: Seconds = Field(default=14 * 86400.0, ge=0)

    @property
    def repository_folder(self) -> Path:
        """The directory that `repository_cache` names."""
        return self.repository_cache.expanduser().absolute()
