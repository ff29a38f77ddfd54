"""What `install` gives a user's Celery app: a ledger, the sweep, and a lane for each queue.

The app may be configured after `install`, in any of Celery's ways, so that what is added to its
configuration is added when a worker or beat starts, and its broker is read when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from amqp.exceptions import NotFound  # type: ignore[import-untyped] # has no types
from celery import Celery, signals

from mulligan.tasks.jobs.sweep import run_sweep
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.celery.periodic import beat_entry
from mulligan.workers.celery.queue_depth import empty_queues
from mulligan.workers.celery.queues import JOB_QUEUES
from mulligan.workers.celery.worker_process import WorkerProcess
from mulligan.workers.services import Services, app_services
from mulligan.workers.settings.model import Settings, load_settings
from mulligan.workers.user_tasks.messages import LANE

SWEEP = "mulligan.sweep"
_ATTRIBUTE = "mulligan"


class InstalledApp(WorkerProcess):
    """What an app was given by `install`."""

    def __init__(
        self,
        app: Celery,
        given: Mapping[str, Any],
        *,
        make: Callable[[Settings, Celery], Services] = app_services,
    ) -> None:
        """BadInput if a setting is not one."""
        super().__init__(load_settings(**given), app, make=make)
        self._given = given

    @property
    def chosen(self) -> Settings:
        """The settings, without the app's broker, which may not be known yet."""
        return self._settings

    @property
    def settings(self) -> Settings:
        broker = str(self._app.conf.broker_url or "")
        return load_settings(**{"broker_url": broker, **self._given})

    def sweep(self) -> int:
        services = self.services
        return run_sweep(
            services.ledger,
            empty_queues=lambda: _empty(self._app, JOB_QUEUES),
            publish=services.publish,
        )

    def attach(self) -> None:
        """Register the sweep, and be there when the app is put to work."""
        setattr(self._app, _ATTRIBUTE, self)

        def sweep() -> int:  # a method would count ``self`` among a task's arguments
            return self.sweep()

        self._app.task(name=SWEEP, ignore_result=True, shared=False)(sweep)
        self._app.on_after_finalize.connect(_app_is_complete, weak=False)
        signals.celeryd_init.connect(_worker_begins, weak=False)
        signals.celeryd_after_setup.connect(_add_repair_lanes, weak=False)
        signals.beat_init.connect(_beat_begins, weak=False)
        if self._app.finalized:
            self.configure()

    def configure(self) -> None:
        """Add to the app's configuration what is not there; what the user says is left alone."""
        conf = self._app.conf
        conf.beat_schedule = {**self.schedule, **(conf.beat_schedule or {})}
        conf.broker_transport_options = {
            "queue_order_strategy": "priority",
            **(conf.broker_transport_options or {}),
        }

    @property
    def schedule(self) -> dict[str, Any]:
        return {SWEEP: beat_entry(SWEEP, self.chosen.sweep_interval)}


def settings_of(app: Celery) -> Settings:
    """The settings that a task is registered under; the usual ones before `install`."""
    found = _found(app)
    return load_settings() if found is None else found.chosen


def installed(app: Celery) -> InstalledApp:
    """What `install` gave this app, or a message that says to call it."""
    found = _found(app)
    if found is None:
        raise BadInput("call mulligan.install(app) before the tasks of RepairingTask are used")
    return found


def _found(app: Any) -> InstalledApp | None:
    found = getattr(app, _ATTRIBUTE, None)
    return found if isinstance(found, InstalledApp) else None


def _app_is_complete(sender: Any, **_: Any) -> None:
    if (found := _found(sender)) is not None:
        found.configure()


def _worker_begins(instance: Any, **_: Any) -> None:
    """Before the worker connects, and before it starts a beat of its own."""
    _app_is_complete(instance.app)


def _beat_begins(sender: Any, **_: Any) -> None:
    """Its scheduler has read the schedule already: one that was replaced since is told again."""
    found = _found(sender.app)
    if found is None:
        return
    found.configure()
    if SWEEP not in sender.scheduler.schedule:
        sender.scheduler.update_from_dict({SWEEP: sender.app.conf.beat_schedule[SWEEP]})


def _add_repair_lanes(instance: Any, **_: Any) -> None:
    """A worker serves the repair lane of each of its queues, before the queue itself."""
    if _found(instance.app) is None:
        return
    queues = instance.app.amqp.queues
    served = list(queues.consume_from)
    lanes = [f"{name}{LANE}" for name in served if not name.endswith(LANE)]
    for lane in lanes:
        queues.select_add(lane)
    queues.select([*lanes, *(name for name in served if name not in lanes)])


def _empty(app: Celery, queues: Sequence[str]) -> list[str]:
    """The queues of the ledger's own names that hold nothing; one that is not there is empty."""
    found = []
    for queue in queues:
        try:
            found += empty_queues(app, [queue])
        except NotFound:  # AMQP says so instead of counting
            found.append(queue)
    return found
