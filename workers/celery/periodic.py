"""The periodic tasks, which each worker of the queue `control` runs by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from celery import Celery

from mulligan.tasks.jobs.sweep import run_sweep
from mulligan.tasks.loops.monitor import run_monitor
from mulligan.workers.celery.broker.queue_depth import empty_queues, serves_by_priority
from mulligan.workers.celery.broker.queues import QUEUES
from mulligan.workers.celery.scheduler import ScheduledTask, Scheduler
from mulligan.workers.celery.store_errors import StoreErrors
from mulligan.workers.celery.worker_process import WorkerProcess
from mulligan.workers.edits.sessions.edit_queue import send_session_hints
from mulligan.workers.figures.fold import Fold
from mulligan.workers.ledger.stores.bulk_actions import run_bulks
from mulligan.workers.services import Services
from mulligan.workers.settings.model import Settings


@dataclass(frozen=True)
class PeriodicTask:
    """A periodic task. ``run`` returns how much it found to do."""

    name: str
    #: Seconds between two runs, or a function that reads them from the settings.
    interval: float | Callable[[Settings], float]
    run: Callable[[Services, Celery], int]

    def seconds(self, settings: Settings) -> float:
        return self.interval(settings) if callable(self.interval) else self.interval


def _sweep(services: Services, app: Celery) -> int:
    """Publish what is due or was lost: see tasks/jobs/sweep.py."""
    ledger = services.ledger
    return run_sweep(
        ledger,
        empty_queues=lambda: empty_queues(app, sorted({*QUEUES, *ledger.published_queues()})),
        publish=services.publish,
        by_priority=serves_by_priority(app),
    )


def _fold(services: Services, _app: Celery) -> int:
    """Add events to the figures, and note changes of the configuration."""
    services.ledger.config_changes.note(services.live.current(), now=time.time())
    return Fold(services.ledger).run()


def _bulk(services: Services, _app: Celery) -> int:
    return run_bulks(services.ledger, services.ledger.bulk_actions, services.publish)


def _webhooks(services: Services, _app: Celery) -> int:
    return services.webhooks.tick()


def _repositories(services: Services, _app: Celery) -> int:
    return services.repository_sweep.run()


def _deliver(services: Services, _app: Celery) -> int:
    return services.repository_sweep.deliver()


def _monitor(services: Services, _app: Celery) -> int:
    """Look at the health of all loops, and respond: see tasks/loops/monitor.py."""
    return run_monitor(services.loops)


SWEEP = PeriodicTask("sweep", lambda settings: settings.sweep_interval, _sweep)
PERIODIC = (
    SWEEP,
    PeriodicTask("fold", 1.0, _fold),
    PeriodicTask("bulk", 1.0, _bulk),
    PeriodicTask("edits", 1.0, send_session_hints),
    PeriodicTask("webhooks", 2.0, _webhooks),
    PeriodicTask("repositories", 2.0, _repositories),
    PeriodicTask("deliver", 2.0, _deliver),
    PeriodicTask("monitor", 10.0, _monitor),
)


def scheduler(services: Services, app: Celery) -> Scheduler:
    """Return the scheduler of a worker that serves the queue `control`."""
    return Scheduler([scheduled(task, services, app) for task in PERIODIC])


def scheduled(task: PeriodicTask, services: Services, app: Celery) -> ScheduledTask:
    seconds = task.seconds(services.settings)
    return ScheduledTask(task.name, seconds, lambda: run_if_due(task, services, app))


def run_if_due(task: PeriodicTask, services: Services, app: Celery) -> int:
    """Run a task, unless any worker of the fleet has run it within its interval."""
    seconds = task.seconds(services.settings)
    if not services.ledger.periodic_turns.take(task.name, seconds=seconds):
        return 0
    return task.run(services, app)


def register_periodic(
    app: Celery, process: WorkerProcess, errors: StoreErrors, *tasks: PeriodicTask
) -> None:
    """Register the periodic tasks for beats of earlier versions, whose messages still arrive."""
    for task in tasks:
        _register(app, process, task, errors)


def _register(app: Celery, process: WorkerProcess, task: PeriodicTask, errors: StoreErrors) -> None:
    @errors.quiet
    def run() -> int:
        return run_if_due(task, process.services, app)

    # Several run each second; their events would push the jobs out of Flower.
    silent = {"ignore_result": True, "send_events": False, "shared": False}
    app.task(name=f"mulligan.{task.name}", **silent)(run)
