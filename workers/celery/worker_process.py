"""The services of a worker process: built once, and again after a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack

from celery import Celery

from mulligan.workers.sandbox.private import tidy_once
from mulligan.workers.services import Services, app_services
from mulligan.workers.settings.model import Settings

_RELEASE_SECONDS = 3.0


class WorkerProcess:
    """Holds the services of this process. ``make`` builds them; tests pass their own."""

    def __init__(
        self,
        settings: Settings,
        app: Celery,
        *,
        make: Callable[[Settings, Celery], Services] = app_services,
    ) -> None:
        self._settings = settings
        self._app = app
        self._make = make
        self._lock = threading.Lock()
        self._services: tuple[int, Services] | None = None

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def services(self) -> Services:
        with self._lock:
            if self._services is None or self._services[0] != os.getpid():
                self._services = (os.getpid(), self._make(self.settings, self._app))
            return self._services[1]

    def warm_up(self, *, slots: int = 1) -> None:
        """Open the connections before the first jobs need them: they are the worst latency.

        And remove the private copies of workers that were killed: there is time for it now.
        """
        tidy_once()
        self.services.ledger.now()
        with ExitStack() as opened:
            for _ in range(min(slots, self._app.conf.broker_pool_limit or 1)):
                producer = opened.enter_context(self._app.producer_or_acquire())
                _ = producer.channel  # made, and so connected, on first use

    def give_back(self) -> None:
        """At a cold shutdown: nobody should wait for leases of what will not be finished."""
        if self._services is None or self._services[0] != os.getpid():
            return
        # In a thread of its own: this runs in a signal handler, and the interrupted code may be
        # in the middle of a round trip on this thread's connection.
        release = threading.Thread(target=self._services[1].leases.release_all, daemon=True)
        release.start()
        release.join(_RELEASE_SECONDS)
