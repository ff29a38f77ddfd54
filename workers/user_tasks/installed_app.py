"""What `install` adds to a user's Celery app: a ledger, the sweep, and a repair lane per queue.

The app may be configured after `install`, in any of Celery's ways. So its configuration is extended
when a worker starts, and its broker is read at its first use. Each of its workers sweeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery, signals

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.celery.broker import bounded_inflating, guarded_transport
from mulligan.workers.celery.guarded_consumer import GuardedConsumer, MessageGuard, guard_worker
from mulligan.workers.celery.periodic import SWEEP, register_periodic, scheduled
from mulligan.workers.celery.repeated_lines import drop_repeated_lines
from mulligan.workers.celery.scheduler import Scheduler
from mulligan.workers.celery.store_errors import StoreErrors
from mulligan.workers.celery.worker_process import WorkerProcess
from mulligan.workers.services import Services, app_services
from mulligan.workers.settings.model import Settings, load_settings
from mulligan.workers.user_tasks.messages import REPAIR_SUFFIX

_ATTRIBUTE = "mulligan"


class InstalledApp(WorkerProcess):
    """mulligan's part of a user's app."""

    def __init__(
        self,
        app: Celery,
        overrides: Mapping[str, Any],
        *,
        build: Callable[[Settings, Celery], Services] = app_services,
    ) -> None:
        """Raises BadInput for a wrong setting."""
        super().__init__(load_settings(**overrides), app, build=build)
        self._overrides = overrides
        self._scheduler: Scheduler | None = None

    @property
    def settings_without_broker(self) -> Settings:
        """The settings while the app's broker may not be known yet."""
        return self._settings

    @property
    def settings(self) -> Settings:
        broker = str(self._app.conf.broker_url or "")
        return load_settings(**{"broker_url": broker, **self._overrides})

    def attach(self) -> None:
        """Register the sweep, and connect to the signals of the app's start."""
        setattr(self._app, _ATTRIBUTE, self)
        register_periodic(self._app, self, StoreErrors(), SWEEP)
        self._app.on_after_finalize.connect(_on_finalize, weak=False)
        signals.celeryd_init.connect(_on_worker_init, weak=False)
        signals.celeryd_after_setup.connect(_add_repair_lanes, weak=False)
        signals.worker_ready.connect(_on_worker_ready, weak=False)
        signals.worker_shutdown.connect(_on_worker_shutdown, weak=False)
        if self._app.finalized:
            self.configure()

    def configure(self) -> None:
        """Add what is missing to the app's configuration; the user's values stay."""
        conf = self._app.conf
        conf.broker_transport_options = {
            "queue_order_strategy": "priority",
            **(conf.broker_transport_options or {}),
        }

    def guard_messages(self) -> None:
        """Let no message end a worker of the app. Only the size of inflated ones is limited."""
        guarded_transport.install(None)
        bounded_inflating.install(self.settings.message_cap)
        guard_worker(self._app, MessageGuard(refused=self.refused_messages), GuardedConsumer)

    def start_sweeping(self) -> None:
        """Sweep in a thread of this worker. Of several workers, one sweeps in each interval."""
        self._scheduler = Scheduler([scheduled(SWEEP, self.services, self._app)])
        self._scheduler.start()

    def stop_sweeping(self) -> None:
        if self._scheduler is not None:
            self._scheduler.stop()


def settings_of(app: Celery) -> Settings:
    """Return the settings for registering a task; the default ones before `install`."""
    found = _find(app)
    return load_settings() if found is None else found.settings_without_broker


def installed(app: Celery) -> InstalledApp:
    """Return mulligan's part of this app. Raises BadInput before `install`."""
    found = _find(app)
    if found is None:
        raise BadInput("call mulligan.install(app) before you use tasks based on RepairingTask")
    return found


def _find(app: Any) -> InstalledApp | None:
    found = getattr(app, _ATTRIBUTE, None)
    return found if isinstance(found, InstalledApp) else None


def _on_finalize(sender: Any, **_: Any) -> None:
    if (found := _find(sender)) is not None:
        found.configure()


def _on_worker_init(instance: Any, **_: Any) -> None:
    """Configure the app before the worker connects."""
    if (found := _find(instance.app)) is not None:
        found.configure()
        found.guard_messages()
        drop_repeated_lines()


def _on_worker_ready(sender: Any, **_: Any) -> None:
    if (found := _find(sender.app)) is not None:
        found.start_sweeping()


def _on_worker_shutdown(sender: Any, **_: Any) -> None:
    if (found := _find(sender.app)) is not None:
        found.stop_sweeping()


def _add_repair_lanes(instance: Any, **_: Any) -> None:
    """Make a worker serve the repair lane of each of its queues before the queue itself."""
    if _find(instance.app) is None:
        return
    queues = instance.app.amqp.queues
    served = list(queues.consume_from)
    lanes = [f"{name}{REPAIR_SUFFIX}" for name in served if not name.endswith(REPAIR_SUFFIX)]
    for lane in lanes:
        queues.select_add(lane)
    queues.select([*lanes, *(name for name in served if name not in lanes)])
