"""The server of the bundled model, for the jobs of this process."""

from __future__ import annotations

import os
import threading

from mulligan.policies.jobs.job import Job
from mulligan.workers.local.stopping import uninterrupted
from mulligan.workers.settings.model import Settings


class LocalModel:
    """Starts the server when a job needs it, so that no attempt has to wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_running = False

    def start_for(self, job: Job, settings: Settings) -> None:
        """Start the server if the job's runner is the bundled model."""
        profile = settings.runners.get(job.runner.profile or "", {})
        if "local" not in (job.runner.kind, profile.get("kind")):
            return
        from mulligan.workers.runners.blocking import blocked
        from mulligan.workers.runners.local_state import ensure_local_server

        with self._lock:
            if not self._is_running and not blocked("local"):
                ensure_local_server(owner_pid=os.getpid())
                self._is_running = True

    def stop(self) -> None:
        """Stop the server, unless another process still needs it."""
        if not self._is_running:
            return
        from mulligan.workers.runners.local_state import stop_local_server

        with uninterrupted():
            stop_local_server(owner_pid=os.getpid())
