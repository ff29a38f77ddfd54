"""The services of a worker process: built once, and again after a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from celery import Celery

from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.workers.celery.refused_messages import RefusedMessages
from mulligan.workers.celery.worker_limits import require_connections, require_files
from mulligan.workers.edits.sessions.started_steps import end_all_steps
from mulligan.workers.ledger.open_ledger import open_ledger
from mulligan.workers.sandbox.private import tidy_once
from mulligan.workers.services import Services, app_services
from mulligan.workers.settings.model import Settings

_RELEASE_SECONDS = 3.0
#: Seconds to wait for Redis before a worker starts; it waits longer when it has work.
_START_PATIENCE = 1.0


class WorkerProcess:
    """Holds the services of this process."""

    def __init__(
        self,
        settings: Settings,
        app: Celery,
        *,
        build: Callable[[Settings, Celery], Services] = app_services,
    ) -> None:
        self._settings = settings
        self._app = app
        self._build = build
        self._lock = threading.Lock()
        self._services: tuple[int, Services] | None = None
        self.refused_messages = RefusedMessages(lambda: self.services.ledger.refused_submissions)

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def services(self) -> Services:
        with self._lock:
            if self._services is None or self._services[0] != os.getpid():
                services = self._build(self.settings, self._app)
                # Checked when the worker started. Later it would refuse every message.
                services.ledger.allow_more_partitions()
                self._services = (os.getpid(), services)
            return self._services[1]

    def warm_up(self, *, slots: int = 1) -> None:
        """Open the connections, which would delay the first jobs most.

        Also removes the private copies of killed workers, while there is time.
        """
        tidy_once()
        self.services.ledger.now()
        with ExitStack() as opened:
            for _ in range(min(slots, self._app.conf.broker_pool_limit or 1)):
                producer = opened.enter_context(self._app.producer_or_acquire())
                _ = producer.channel  # connects at its first use

    def require_limits(self, worker: Any) -> None:
        """Raise BadInput if the computer or Redis cannot serve a worker of this size."""
        slots = int(worker.concurrency or 1)
        threads = getattr(worker.pool_cls, "__module__", "").endswith(".thread")
        require_files(slots if threads else 1)
        ledger = open_ledger(self.settings, patience=_START_PATIENCE)
        require_connections(ledger, processes=1 if threads else slots)
        with suppress(LedgerUnavailable):  # a worker waits for its Redis
            ledger.numbers()

    def stop_waiting(self) -> None:
        """Let no thread wait for the ledger any more, except with an answer."""
        if self._services is not None and self._services[0] == os.getpid():
            self._services[1].ledger.calls.stop_waiting()

    def release_leases(self) -> None:
        """Release all leases at a cold shutdown, so that they need not expire first."""
        if self._services is None or self._services[0] != os.getpid():
            return
        # In another thread: this runs in a signal handler, and the interrupted code may be in the
        # middle of a round trip on this thread's connection.
        leases = self._services[1].leases

        def release_all() -> None:
            leases.release_all()
            end_all_steps()

        release = threading.Thread(target=release_all, daemon=True)
        release.start()
        release.join(_RELEASE_SECONDS)
