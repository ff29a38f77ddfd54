"""The choice of where jobs run, for the command line, the clients and the edits.

1. A broker is configured: its fleet runs them.
2. A `mulligan up` serves the home directory: its workers run them, unless the jobs are private.
3. Otherwise the caller starts its own workers, over an embedded Redis in the home directory, or in
   a directory below it if `mulligan up` uses the Redis of the home directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.local.embedded_redis import EmbeddedRedis
from mulligan.workers.local.home import embedded_redis, is_up
from mulligan.workers.settings.model import Settings

#: The directory, below the home directory, of workers that run beside a `mulligan up`.
BESIDE_UP = "run"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Whose workers run the jobs, and over which Redis."""

    workers: Literal["fleet", "up", "own"]
    #: The directory of the embedded Redis; None if the broker is configured.
    home: Path | None = None

    def adapt(self, settings: Settings) -> Settings:
        """Return the settings for submitting jobs here. Starts nothing."""
        if self.home is None:
            return settings
        changes: dict[str, object] = {"broker_url": EmbeddedRedis(self.home).url}
        if self.workers == "own":
            # The caller wrote the jobs, which may therefore define runners and commands.
            changes |= {"home": self.home, "allow_inline": True}
        return settings.model_copy(update=changes)

    @contextmanager
    def opened(self, settings: Settings) -> Iterator[Settings]:
        """Yield the adapted settings, and keep the embedded Redis, if any, running meanwhile."""
        if self.home is None:
            yield settings
            return
        with embedded_redis(self.home, hung_after=settings.embedded_hung_after):
            yield self.adapt(settings)


def place_jobs(settings: Settings, *, private: bool) -> Placement:
    """Choose whose workers run some jobs. Raises BadInput for a ledger without a broker.

    ``private``: the jobs need something that another process's workers lack or refuse, such as a
    Python model or a runner defined in the job.
    """
    if settings.broker_url is not None:
        return Placement(workers="fleet")
    if settings.ledger_url is not None:
        raise BadInput("broker_url: a ledger without a broker: set MULLIGAN_BROKER_URL, too")
    if not is_up(settings.home):
        return Placement(workers="own", home=settings.home)
    if private:
        return Placement(workers="own", home=settings.home / BESIDE_UP)
    return Placement(workers="up", home=settings.home)
