"""Sends entries through Celery. Task ids are deterministic, with parent and root, so that Flower
shows their lineage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol

from celery import Celery

from mulligan.policies.jobs.job import OnDone
from mulligan.policies.jobs.routing import MOST_URGENT
from mulligan.tasks.ports.clock import SYSTEM_CLOCK, Clock
from mulligan.tasks.ports.ledger import Entry, JobView, Publication
from mulligan.tasks.ports.message_broker import BrokerAway, LeftForOthers
from mulligan.tasks.user_tasks.task_route import TaskRoute
from mulligan.workers.celery.broker.away_broker import (
    AwayBroker,
    BrokerUnreachable,
    connect_once,
    describe_error,
)
from mulligan.workers.celery.broker.broker_errors import lost_connection, takes_no_messages
from mulligan.workers.celery.broker.queue_depth import SENT_HEADER
from mulligan.workers.celery.flower_format import describe, describe_entry
from mulligan.workers.ledger.stored import job_ids, rows
from mulligan.workers.ledger.stored.schema import CURRENT
from mulligan.workers.user_tasks.messages import REPAIR_SUFFIX, sent_arguments, sent_following

#: The header with the entry of a message to a user's task.
ENTRY_HEADER = "mulligan_entry"
#: The header of a retry with the id of the first message, whose result callers wait for.
FIRST_HEADER = "mulligan_first"
TASKS = {
    "attempt": "mulligan.attempt",
    "verification": "mulligan.verify",
    "cycle": "mulligan.recheck",
    "loop": "mulligan.plan",
}


def task_id(entry: Entry) -> str:
    """Return the Celery id of an entry, the same however often it is published."""
    match entry.kind:
        case "attempt":
            return f"{entry.job_id}-{entry.attempt}"
        case "verification":
            return f"{entry.job_id}-{entry.attempt}-v{entry.index}"
        case "loop":
            return f"{entry.job_id}-plan"
        case _:
            return f"{entry.job_id}-{entry.attempt}-c{entry.index}"


def lineage(entry: Entry) -> dict[str, str]:
    if entry.kind == "loop":
        return {}
    root = f"{entry.job_id}-1"
    if entry.kind != "attempt":
        return {"root_id": root, "parent_id": f"{entry.job_id}-{entry.attempt}"}
    if entry.attempt == 1:
        return {"root_id": root}
    return {"root_id": root, "parent_id": f"{entry.job_id}-{entry.attempt - 1}"}


@contextmanager
def _reconnecting(producer: Any) -> Iterator[None]:
    """Close the connection of a broker that refuses: after a failover, a new one may lead to
    another server."""
    try:
        yield
    except Exception as error:
        if takes_no_messages(error):
            with suppress(Exception):  # each transport has its own exceptions
                producer.connection.collect()
        raise


class UnreadableJob(Exception):
    """The stored job cannot be read by any release that this one knows of."""


class OutcomeNotAllowed(Exception):
    """The configuration does not allow this task and queue for outcomes."""


class SentJobs(Protocol):
    """What sending needs of the ledger: messages carry an outcome, or a user's arguments."""

    def job(self, job_id: str) -> JobView | None: ...

    def cancel(self, job_id: str, *, detail: str = "") -> str: ...


class CeleryBroker:
    """Sends messages through a Celery app. See tasks.ports.message_broker for the contract."""

    def __init__(
        self,
        app: Celery,
        ledger: SentJobs,
        *,
        outcome_problem: Callable[[OnDone], str | None] = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._app = app
        self._outcome_problem = outcome_problem
        self._ledger = ledger
        self._away = AwayBroker(clock)

    def send_batch(self, publications: Sequence[Publication]) -> list[Publication]:
        with self._sending() as producer, producer.batch(len(publications)):
            return [self._send(producer, publication) for publication in publications]

    def send(self, publication: Publication) -> Publication:
        with self._sending() as producer:
            return self._send(producer, publication)

    @contextmanager
    def _sending(self) -> Iterator[Any]:
        """Yield a producer. Raises BrokerAway if the broker is at fault, and not the message.

        A message can make the broker close the connection. So a lost connection counts against the
        broker only if it does not answer a new one either.
        """
        with self._away.noticed_once():
            try:
                with self._app.producer_or_acquire() as producer:
                    connect_once(producer.connection)
                    with _reconnecting(producer):
                        yield producer
            except BrokerUnreachable:
                raise
            except Exception as error:
                if takes_no_messages(error):
                    raise BrokerAway(describe_error(error)) from error
                if lost_connection(error) and not self._answers():
                    raise BrokerUnreachable(describe_error(error)) from error
                raise

    def _answers(self) -> bool:
        """Whether the broker accepts a new connection."""
        try:
            with self._app.connection_for_write() as connection:
                connect_once(connection)
        except BrokerUnreachable:
            return False
        return True

    def _send(self, producer: Any, publication: Publication) -> Publication:
        entry = publication.entry
        if entry.kind == "done":
            self._send_outcome(producer, publication)
            return publication
        # The id of a hint is the name of a loop, which may look like anything.
        if entry.kind != "loop" and job_ids.is_user_task(entry.job_id):
            return self._send_user_task(producer, publication)
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
        return publication

    def _job(self, job_id: str) -> JobView | None:
        """Return a job whose body can be read, or raise."""
        view = self._ledger.job(job_id)
        if view is not None and view.unreadable:
            newer = view.needs_schema > CURRENT.number
            raise (LeftForOthers if newer else UnreadableJob)(view.unreadable)
        return view

    def _send_outcome(self, producer: Any, publication: Publication) -> None:
        """Send a job's outcome to a task of the producer's app, at least once."""
        job_id = publication.entry.job_id
        view = self._job(job_id)
        if view is None or view.job.on_done is None:
            return
        # A producer that writes to the ledger itself was not asked when it submitted the job.
        if problem := self._outcome_problem(view.job.on_done):
            raise OutcomeNotAllowed(problem)
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

    def _send_user_task(self, producer: Any, publication: Publication) -> Publication:
        """Send a retry of a user's task to the repair lane of its queue.

        A task that is only observed is never sent, and its record ends here.
        """
        entry = publication.entry
        view = self._job(entry.job_id)
        if view is None:
            return publication
        route = TaskRoute.of(view.job)
        if route.mode == "observe":
            # Only the sweep publishes such an entry, after its worker was lost.
            self._ledger.cancel(entry.job_id, detail="its worker was lost; it was only observed")
            return publication
        # Not by the publication's queue, which is the lane itself when this is sent again.
        mode = view.attempts[entry.attempt - 1].plan.mode
        urgent = entry.kind == "attempt" and mode == "immediate_retry"
        queue, root = f"{route.queue}{REPAIR_SUFFIX}" if urgent else route.queue, route.root
        args, kwargs = sent_arguments(route.args, route.kwargs)
        options = sent_following(route.following)
        lineage = {"root_id": options.get("root_id", root), "parent_id": options.get("parent_id")}
        name = root if entry.attempt == 1 else f"{root}-{entry.attempt}"
        if entry.kind != "attempt":  # nothing follows a delayed verification
            name, options = f"{name}-c{entry.index}", {}
        headers = {**options.get("headers", {}), ENTRY_HEADER: str(entry), SENT_HEADER: time.time()}
        if entry.attempt > 1:
            lineage["parent_id"] = root if entry.attempt == 2 else f"{root}-{entry.attempt - 1}"
            if entry.kind == "attempt":
                headers[FIRST_HEADER] = root
        self._app.send_task(
            route.task,
            args=args,
            kwargs=kwargs,
            **{
                **options,
                **lineage,
                "argsrepr": describe(args),
                "kwargsrepr": describe(kwargs),
                "task_id": name,
                "queue": queue,
                "producer": producer,
                "retry": False,
                "headers": headers,
            },
        )
        # The user's priorities are not ours; among themselves, such messages are all the same.
        return replace(publication, queue=queue, priority=MOST_URGENT)
