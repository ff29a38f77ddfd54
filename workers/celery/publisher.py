"""Publishing hints: deterministic task ids with parent and root, so that Flower shows lineage."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError

from mulligan.tasks.ports.ledger import Entry, Ledger, Publication
from mulligan.tasks.user_tasks.task_route import TaskRoute
from mulligan.workers.celery.flower_format import describe, describe_entry
from mulligan.workers.celery.queue_depth import SENT_HEADER
from mulligan.workers.celery.queues import REPAIR_QUEUE
from mulligan.workers.ledger import job_ids, rows
from mulligan.workers.user_tasks.messages import REPAIR_SUFFIX, sent_arguments

log = logging.getLogger(__name__)

#: Messages per round trip to the broker when many are published at once.
_BATCH = 100
#: The header with the entry of a message to a user's task.
ENTRY_HEADER = "mulligan_entry"
TASKS = {
    "attempt": "mulligan.attempt",
    "verification": "mulligan.verify",
    "cycle": "mulligan.recheck",
}


def task_id(entry: Entry) -> str:
    """Return the Celery id of an entry, the same however often it is published."""
    match entry.kind:
        case "attempt":
            return f"{entry.job_id}-{entry.attempt}"
        case "verification":
            return f"{entry.job_id}-{entry.attempt}-v{entry.index}"
        case _:
            return f"{entry.job_id}-{entry.attempt}-c{entry.index}"


def lineage(entry: Entry) -> dict[str, str]:
    root = f"{entry.job_id}-1"
    if entry.kind != "attempt":
        return {"root_id": root, "parent_id": f"{entry.job_id}-{entry.attempt}"}
    if entry.attempt == 1:
        return {"root_id": root}
    return {"root_id": root, "parent_id": f"{entry.job_id}-{entry.attempt - 1}"}


def _log_unreachable(error: Exception) -> None:
    log.warning("The broker cannot be reached (%s); the sweep will publish.", error)


class Publisher:
    """Publishes entries and stamps them in the ledger."""

    def __init__(
        self,
        app: Celery,
        ledger: Ledger,
        *,
        step: Callable[[str, Entry], None] = lambda _name, _entry: None,
        on_unreachable: Callable[[Exception], None] = _log_unreachable,
    ) -> None:
        self._app = app
        self._ledger = ledger
        self._step = step
        self._on_unreachable = on_unreachable

    def publish(self, publications: Sequence[Publication]) -> None:
        """Publish at once. If the broker is unreachable, the sweep publishes later."""
        if not publications:
            return
        try:
            with self._app.producer_or_acquire() as producer, producer.batch(_BATCH):
                for publication in publications:
                    self._send(producer, publication)
                    self._step("published", publication.entry)
        except (OperationalError, OSError) as error:
            self._on_unreachable(error)
            return
        self._ledger.stamp([publication.entry for publication in publications])

    def _send(self, producer: Any, publication: Publication) -> None:
        entry = publication.entry
        if entry.kind == "done":
            self._send_outcome(producer, publication)
            return
        if job_ids.is_user_task(entry.job_id):
            self._send_user_task(producer, publication)
            return
        self._app.send_task(
            TASKS[entry.kind],
            args=(str(entry),),
            argsrepr=describe_entry(entry, publication.queue),
            task_id=task_id(entry),
            queue=publication.queue,
            priority=publication.priority,
            producer=producer,
            retry=False,
            headers={SENT_HEADER: time.time()},
            **lineage(entry),
        )

    def _send_outcome(self, producer: Any, publication: Publication) -> None:
        """Send a job's outcome to a task of the producer's app, at least once."""
        job_id = publication.entry.job_id
        view = self._ledger.job(job_id)
        if view is None or view.job.on_done is None:
            return
        self._app.send_task(
            view.job.on_done.task,
            kwargs={"outcome": rows.outcome(view)},
            kwargsrepr=f"{{'outcome': 'of {job_id}, {view.state}'}}",
            task_id=f"{job_id}-done",
            queue=publication.queue,
            producer=producer,
            retry=False,
            headers={SENT_HEADER: time.time()},
            root_id=f"{job_id}-1",
            parent_id=f"{job_id}-{len(view.attempts)}",
        )

    def _send_user_task(self, producer: Any, publication: Publication) -> None:
        """Send a retry of a user's task to the repair lane of its queue.

        A task that is only observed is never sent, and its record ends here.
        """
        entry = publication.entry
        view = self._ledger.job(entry.job_id)
        if view is None:
            return
        route = TaskRoute.of(view.job)
        if route.mode == "observe":
            # Only the sweep publishes such an entry, after its worker was lost.
            self._ledger.cancel(entry.job_id, detail="its worker was lost; it was only observed")
            return
        queue, root = route.queue, route.root
        args, kwargs = sent_arguments(route.args, route.kwargs)
        name = root if entry.attempt == 1 else f"{root}-{entry.attempt}"
        previous = root if entry.attempt == 2 else f"{root}-{entry.attempt - 1}"
        self._app.send_task(
            route.task,
            args=args,
            kwargs=kwargs,
            argsrepr=describe(args),
            kwargsrepr=describe(kwargs),
            task_id=name if entry.kind == "attempt" else f"{name}-c{entry.index}",
            queue=f"{queue}{REPAIR_SUFFIX}" if publication.queue == REPAIR_QUEUE else queue,
            producer=producer,
            retry=False,
            headers={ENTRY_HEADER: str(entry), SENT_HEADER: time.time()},
            root_id=root,
            parent_id=previous if entry.attempt > 1 else None,
        )
