"""Keep the repository cache of this computer within its limit, now and then, beside the work."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from mulligan.tasks.ports.errors import RepositoryUnavailable
from mulligan.workers.repositories.disk_usage import cache_entries, collect_garbage, prune

log = logging.getLogger(__name__)

#: Seconds between two rounds of one process.
_INTERVAL = 3600.0


@dataclass
class CacheTidying:
    """Removes what was not used for the longest time, and packs what stays."""

    cache: Path
    max_bytes: int
    _last: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def tidy_if_due(self) -> None:
        """Begin a round in a thread of its own, if the last one was long ago."""
        with self._lock:
            if time.monotonic() - self._last < _INTERVAL:
                return
            self._last = time.monotonic()
        threading.Thread(target=self.tidy, name="tidy repositories", daemon=True).start()

    def tidy(self) -> None:
        try:
            for entry in prune(self.cache, self.max_bytes):
                log.info("Removed %s from the repository cache.", entry.path.name)
            for entry in cache_entries(self.cache, kinds=("mirror",)):
                collect_garbage(entry)
        except (RepositoryUnavailable, OSError) as error:
            log.warning("The repository cache cannot be tidied: %s", error)
