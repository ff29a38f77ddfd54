"""The factory of the Celery app. Messages are hints; the ledger holds the truth."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery import Celery, signals
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.exceptions import Reject
from celery.worker import state
from kombu.entity import Queue

from mulligan.extras import EDIT_PACKAGES, find_missing
from mulligan.policies.problem import Problem
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.jobs.context import AttemptContext
from mulligan.tasks.jobs.outcome import Outcome
from mulligan.tasks.jobs.read_job import read_jobs
from mulligan.tasks.jobs.recheck import run_recheck
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.tasks.jobs.verify import run_verification
from mulligan.tasks.loops.plan import run_plan
from mulligan.tasks.ports.errors import BadInput, LedgerRefused, StoreUnavailable, refuse
from mulligan.tasks.ports.ledger import ClaimRefused, Entry
from mulligan.workers.celery.autoscale import autoscaler
from mulligan.workers.celery.broker import bounded_inflating, guarded_transport, transport
from mulligan.workers.celery.broker.queues import (
    ATTEMPT_QUEUE,
    CONTROL_QUEUE,
    EDIT_QUEUE,
    NO_BROKER,
    QUEUES,
    SUBMIT_QUEUE,
    SUBMIT_TASK,
    edit_queue,
)
from mulligan.workers.celery.counted_run import counted_run
from mulligan.workers.celery.flower_format import REDACTED
from mulligan.workers.celery.guarded_consumer import HintConsumer, MessageGuard, guard_worker
from mulligan.workers.celery.lone_process import run_alone
from mulligan.workers.celery.periodic import PERIODIC, register_periodic, scheduler
from mulligan.workers.celery.repeated_lines import drop_repeated_lines
from mulligan.workers.celery.scheduler import Scheduler
from mulligan.workers.celery.state_task import StateTask
from mulligan.workers.celery.store_errors import StoreErrors
from mulligan.workers.celery.worker_heartbeat import WorkerHeartbeat
from mulligan.workers.celery.worker_process import WorkerProcess
from mulligan.workers.edits.sessions.edit_queue import advance_session
from mulligan.workers.ledger.connection.calls import SOCKET_TIMEOUT
from mulligan.workers.local.die_with_parent import kill_with_parent
from mulligan.workers.plain_logs import keep_logs_plain
from mulligan.workers.sandbox.hidden_process import hide_process
from mulligan.workers.services import Services
from mulligan.workers.settings.model import Settings

log = logging.getLogger(__name__)

#: Seconds before a submission that found no ledger is tried again.
RESUBMIT_SECONDS = 1.0


def _queues(*, hints: bool) -> list[Any]:
    """Return every queue. A submission is the only copy of a job, so its queue needs acks."""
    queue: Any = Queue  # kombu is untyped
    return [queue(name, no_ack=hints) for name in QUEUES] + [queue(SUBMIT_QUEUE)]


def configuration(settings: Settings) -> dict[str, Any]:
    """Return Celery's settings. docs/decisions/0003 explains which cost throughput and why."""
    broker = settings.broker_url or "memory://"
    on_redis = broker.startswith("redis")
    return {
        "broker_url": broker,
        "result_backend": None,
        "task_ignore_result": True,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,
        # A worker takes a message only when it has a free slot, with or without acks.
        "worker_disable_prefetch": on_redis,
        "task_queues": _queues(hints=on_redis),
        "task_default_queue": ATTEMPT_QUEUE,
        "task_default_priority": 5,
        # A redelivered message finds its attempt claimed, so the timeout only limits how long the
        # broker keeps a message whose worker died.
        "broker_transport_options": {
            "visibility_timeout": 900,
            "queue_order_strategy": "priority",
            # Keeps a hanging broker from blocking a worker or its shutdown.
            "socket_timeout": SOCKET_TIMEOUT,
        },
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        # A Redis that refuses (read-only after a failover, busy, without replicas) is asked again
        # on a new connection; otherwise the worker would end.
        "broker_channel_error_retry": on_redis,
        "worker_send_task_events": settings.task_events,
        "worker_soft_shutdown_timeout": 10,
        "worker_enable_soft_shutdown_on_idle": True,
        "worker_hijack_root_logger": False,
        # Used only with --autoscale.
        "worker_autoscaler": autoscaler(settings),
    }


def create_app(settings: Settings) -> Celery:
    """Create the app and register every task explicitly, under a name that never changes."""
    transport.install()
    app = Celery("mulligan", set_as_current=False)
    app.conf.update(configuration(settings))
    process = WorkerProcess(settings, app)
    guard = MessageGuard(refused=process.refused_messages, cap=settings.message_cap)
    guard_worker(app, guard, HintConsumer)
    errors = StoreErrors()
    _register(app, process, errors)
    register_periodic(app, process, errors, *PERIODIC)
    _connect_signals(app, process, WorkerHeartbeat(settings, app))
    return app


def _connect_signals(
    app: Celery, process: WorkerProcess, worker_heartbeat: WorkerHeartbeat
) -> None:
    """Follow the start and the end of a worker and of the processes of a prefork pool."""
    periodic: list[Scheduler] = []
    worker_pid = os.getpid()

    def begin(instance: Any, **_: Any) -> None:
        if instance.app is not app:
            return
        if process.settings.broker_url is None:
            log.critical(NO_BROKER)
            raise SystemExit(2)
        hide_process()
        drop_repeated_lines()
        # The workers of `control` need no beat. As a process of its own (-B) it would outlive a
        # worker that is killed.
        instance.prepare_args = lambda **options: {**options, "beat": False}
        guarded_transport.install(process.settings.message_cap)
        bounded_inflating.install(process.settings.message_cap)

    def child_ready(sender: str, **_: Any) -> None:
        if os.getpid() == worker_pid:  # Celery counts a solo worker as its own child
            return
        kill_with_parent(worker_pid)
        process.warm_up()
        worker_heartbeat.child_ready(sender, process.services)

    def ready(sender: Any, **_: Any) -> None:
        slots = sender.controller.concurrency or 1
        process.warm_up(slots=slots)
        threads = isinstance(sender.pool, ThreadPool)
        process.services.ledger.shares_process = threads and slots > 1
        worker_heartbeat.ready(sender, process.services)
        if sender.app is app and CONTROL_QUEUE in app.amqp.queues.consume_from:
            periodic.append(scheduler(process.services, app))
            periodic[-1].start()

    def ended(**_: Any) -> None:
        while periodic:
            periodic.pop().stop()
        worker_heartbeat.gone()

    def shutting_down(**_: Any) -> None:
        """Set flags, because this runs in a signal handler."""
        worker_heartbeat.shutting_down()
        process.stop_waiting()

    def set_up(instance: Any, **_: Any) -> None:
        keep_logs_plain()
        try:
            process.require_limits(instance)
        except BadInput as error:
            log.critical("The worker %s cannot start: %s", instance.hostname, error)
            raise SystemExit(2) from error
        _serve_edits_of_this_host(instance)
        _release_leases_at_shutdown(instance, process)

    signals.celeryd_init.connect(begin, weak=False)
    signals.celeryd_after_setup.connect(set_up, weak=False)
    signals.worker_process_init.connect(child_ready, weak=False)
    signals.worker_ready.connect(ready, weak=False)
    signals.worker_shutting_down.connect(shutting_down, weak=False)
    signals.worker_shutdown.connect(ended, weak=False)


def _serve_edits_of_this_host(worker: Any) -> None:
    """Add the host's own queue of edit sessions, because a tree belongs to one host."""
    queues = worker.app.amqp.queues
    if EDIT_QUEUE not in queues.consume_from:
        return
    if problem := find_missing(*EDIT_PACKAGES):
        log.critical("The worker of the queue %s cannot start: %s", EDIT_QUEUE, problem)
        raise SystemExit(2)
    queues.select_add(edit_queue(socket.gethostname()))


def _release_leases_at_shutdown(worker: Any, process: WorkerProcess) -> None:
    """Release leases when a cold shutdown begins.

    Celery's signal of it comes too late: after the soft timeout and the end of every thread. By
    then a supervisor has killed the worker.
    """
    wait_for_soft_shutdown = worker.wait_for_soft_shutdown

    def release_leases_first() -> None:
        process.release_leases()
        if isinstance(worker.pool, ThreadPool):
            # Celery would fail because it cannot kill threads. Their results are refused.
            worker.pool.terminate_job = lambda *_, **__: None
        wait_for_soft_shutdown()

    worker.wait_for_soft_shutdown = release_leases_first


def _may_hold(request: Any, error: StoreUnavailable) -> bool:
    """Whether a worker keeps a submission that the ledger refuses until it can be stored.

    A broker on the same Redis refuses to take the message back. It would return after the
    visibility timeout, if it is on record at all.
    """
    # Each is an exit code, which may be 0, when the worker stops.
    codes = (state.should_stop, state.should_terminate)
    stopping = any(code is not None and code is not False for code in codes)
    return isinstance(error, LedgerRefused) and not stopping and not request.is_eager


_POSITIONAL = Problem("a job's fields are keyword arguments: send kwargs={…}, without args")


def accept_message(
    services: Services, message: str, args: Sequence[Any], job: Mapping[str, Any]
) -> str:
    """Accept the job of a message and return its id. A refusal is recorded and raised."""
    # Without a key, the message's id serves: a redelivery creates no second job.
    raw = {**job, "idempotency_key": job.get("idempotency_key") or message}
    try:
        refuse([_POSITIONAL] if args else [])
        jobs = read_jobs([raw], services.intake.problems, single=True)
        return submit_jobs(services.intake, jobs)[0].id
    except BadInput as error:
        services.ledger.refused_submissions.note(
            error.problems, id=message, origin="celery", raw=raw
        )
        log.warning("The submission %.200r is refused: %.500r", message, str(error))
        raise
    except StoreUnavailable:
        raise
    except Exception as error:
        # The message is acknowledged. Without a record, nobody would learn of a defect in here.
        problem = Problem(f"internal error: {type(error).__name__}; the worker's log has more")
        services.ledger.refused_submissions.note([problem], id=message, origin="celery", raw=raw)
        raise


def _register(app: Celery, process: WorkerProcess, errors: StoreErrors) -> None:
    def run(task: StateTask, entry: str, step: Callable[[AttemptContext, Entry], Outcome]) -> str:
        parsed = Entry.parse(entry)
        outcome = step(process.services.context, parsed)
        if outcome == ClaimRefused("alone"):
            run_alone(parsed)
        return task.report(parsed, outcome)

    def attempt(self: StateTask, entry: str) -> str:
        return run(self, entry, run_attempt)

    def verify(self: StateTask, entry: str) -> str:
        return run(self, entry, run_verification)

    def recheck(self: StateTask, entry: str) -> str:
        return run(self, entry, run_recheck)

    def plan(entry: str) -> str:
        services, loop = process.services, Entry.parse(entry).loop
        # One more than lost ones, because others may plan it at the same time.
        with counted_run(services, entry, most=services.settings.max_claims + 1):
            return run_plan(services.loops, loop).result

    def edit(session: str) -> str:
        return advance_session(process.services, session)

    def submit_job(self: StateTask, *args: Any, **job: Any) -> str:
        while True:
            try:
                services, message = process.services, self.request.id
                if not (self.request.delivery_info or {}).get("redelivered"):
                    return accept_message(services, message, args, job)
                # Its first worker may have been lost, too.
                with counted_run(services, message, most=max(1, services.settings.max_claims - 1)):
                    return accept_message(services, message, args, job)
            except StoreUnavailable as error:
                # The message is the only copy of the job: it goes back to the queue, after a pause.
                log.error("A job stays on %s and will be tried again: %s", SUBMIT_QUEUE, error)  # noqa: TRY400 - not a bug, so no traceback
                time.sleep(RESUBMIT_SECONDS)
                if not _may_hold(self.request, error):
                    raise Reject(error, requeue=True) from error

    for name, function in (("attempt", attempt), ("verify", verify), ("recheck", recheck)):
        quiet = errors.quiet(function)
        app.task(name=f"mulligan.{name}", bind=True, base=StateTask, shared=False)(quiet)
    redacted = {"bind": True, "base": StateTask, "shared": False, "Request": REDACTED}
    # A refusal is on record and has a line in the log, which needs no traceback of it.
    app.task(name=SUBMIT_TASK, throws=(BadInput,), **redacted)(submit_job)
    app.task(name="mulligan.edit", ignore_result=True, shared=False)(errors.quiet(edit))
    planning = {"ignore_result": True, "shared": False, "throws": (BadInput,)}
    app.task(name="mulligan.plan", **planning)(errors.quiet(plan))
