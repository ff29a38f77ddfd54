"""Connect a command to where its jobs run; `mulligan.workers.backends.placement` chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from celery import Celery

from mulligan.console.cli.exit_codes import NoBroker
from mulligan.console.cli.open_ledgers import locate_ledger
from mulligan.console.cli.output import screen
from mulligan.console.jobfiles.job_file import FoundJob, check_jobs
from mulligan.policies.jobs.job import Job
from mulligan.policies.problem import Problem
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.backends.local_model import LocalModel
from mulligan.workers.backends.placement import BESIDE_UP, Placement, place_jobs
from mulligan.workers.celery.broker.queues import (
    AGENT_QUEUE,
    ATTEMPT_QUEUE,
    required_queues,
    run_pools,
)
from mulligan.workers.celery.factory import create_app
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.local.home import SupervisedRedis, embedded_redis
from mulligan.workers.local.stopping import stop_stack
from mulligan.workers.local.supervisor import Child, Stack, child_environment
from mulligan.workers.services import Services, app_services
from mulligan.workers.settings.model import Settings, load_settings


@dataclass(frozen=True, kw_only=True)
class CliBackend:
    """The broker, ledger and workers that a command uses."""

    settings: Settings
    services: Services
    #: The Celery app, for questions that only the broker and the workers can answer.
    app: Celery
    #: Seconds to wait for a ledger that cannot be reached while jobs are followed.
    patience: float
    #: The worker processes that this command started; None if others run the jobs.
    stack: Stack | None = None
    #: The embedded Redis that this command started.
    redis: SupervisedRedis | None = None

    @property
    def ledger(self) -> RedisLedger:
        return self.services.ledger

    @property
    def unusual_home(self) -> Path | None:
        """The home directory to look for the jobs in, if it is not the configured one."""
        return self.stack.home if self.stack and self.stack.home.name == BESIDE_UP else None

    def restart_dead(self) -> None:
        """Restart the processes of this command that died; call it often.

        Raises BadInput if one cannot start.
        """
        if self.redis is not None:
            self.redis.keep_running()
        if self.stack is not None:
            self.stack.watch()
            for child in self.stack.children:
                if child.given_up:
                    raise BadInput(f"the worker {child.name} cannot start: {child.last_line}")

    def missing_worker(self) -> str | None:
        """Return why no worker will run a waiting job and what to do, or None."""
        if self.stack is not None:
            return None
        beats = self.ledger.beats.live(now=self.ledger.now())
        if not beats:
            return "no worker answers: start `mulligan up`; the jobs wait in the ledger"
        served = {queue for beat in beats for queue in beat.queues}
        for queue in (ATTEMPT_QUEUE, AGENT_QUEUE):
            if queue not in served and queue in required_queues(self.services.settings):
                return (
                    f"no worker serves the queue `{queue}`: start `mulligan up`, or one that does"
                )
        return None

    def check(self, job: Job) -> list[Problem]:
        return self.services.intake.problems(job)


def connect(settings: Settings) -> CliBackend:
    """Return the backend of these settings without contacting anything yet."""
    # A person waits for seconds, not for as long as a worker would.
    hasty = settings.model_copy(update={"worker_patience": settings.submit_patience})
    app = create_app(hasty)
    _check_transport(app)
    services = app_services(
        hasty,
        app,
        patience=hasty.submit_patience,
        local_paths=True,
        on_unreachable=_note_unpublished,
    )
    return CliBackend(
        settings=hasty,
        services=services,
        app=app,
        patience=settings.worker_patience,
    )


@contextmanager
def open_ledger_backend() -> Iterator[CliBackend]:
    """Open the existing broker and ledger, or raise NoBroker."""
    with locate_ledger(load_settings()) as settings:
        yield connect(settings)


def _check_transport(app: Celery) -> None:
    """Raise BadInput if the broker's client is not installed, before a job is accepted."""
    try:
        _ = app.connection_for_write().transport
    except Exception as error:  # each transport raises its own errors
        raise BadInput.at(
            "broker_url",
            f"the client of this broker cannot be loaded ({error}); install it, or use"
            " redis://… or amqp://…",
        ) from None


def _note_unpublished(error: Exception) -> None:
    screen.note(
        f"accepted, but the broker cannot be reached ({error}): the sweep publishes it later",
        style="yellow",
    )


@contextmanager
def open_running_backend(settings: Settings) -> Iterator[CliBackend]:
    """Open the configured broker or that of `mulligan up` in the home directory; else NoBroker."""
    placement = place_jobs(settings, private=False)
    if placement.workers == "own":
        raise NoBroker("no broker: start it with `mulligan up`, or set MULLIGAN_BROKER_URL")
    with placement.opened(settings) as found:
        yield connect(found)


@contextmanager
def open_backend_for(settings: Settings, found: Sequence[FoundJob]) -> Iterator[CliBackend]:
    """Open a backend for these jobs, with running workers or with workers of this command."""
    placement = place_jobs(settings, private=_needs_inline(settings, found))
    if placement.workers == "own":
        with _start_stack(placement, settings, found) as backend:
            yield backend
    else:
        with placement.opened(settings) as reachable:
            yield connect(reachable)


def _needs_inline(settings: Settings, found: Sequence[FoundJob]) -> bool:
    """Return whether the workers of `mulligan up` would refuse what these jobs define."""
    commands = (spec.options.get("argv") for each in found for spec in each.job.verifiers)
    inline = any(each.job.runner.kind for each in found) or any(commands)
    return inline and not settings.allow_inline


@contextmanager
def _start_stack(
    placement: Placement, settings: Settings, found: Sequence[FoundJob]
) -> Iterator[CliBackend]:
    own = placement.adapt(settings)
    backend = connect(own)
    # Check before starting anything, so that a mistake in a file is reported at once.
    check_jobs(found, backend.check)
    check_jobs(found, lambda job: _unreachable(backend, job))
    with ExitStack() as resources:
        model = LocalModel()
        resources.callback(model.stop)
        for each in found:
            model.start_for(each.job, settings)
        server = resources.enter_context(
            embedded_redis(own.home, hung_after=own.embedded_hung_after)
        )
        environment = child_environment(
            own, broker_url=server.url, MULLIGAN_ALLOW_INLINE="true", MULLIGAN_TASK_EVENTS="false"
        )

        def note_death(child: Child, code: int, delay: float | None) -> None:
            screen.note(f"the worker {describe_death(child, code, delay)}", style="yellow")

        stack = Stack(own.home, environment, on_death=note_death)
        resources.callback(stop_stack, stack)
        for pool in run_pools(own):
            stack.add(pool.name, pool.argv())
        redis = SupervisedRedis(server, say=lambda text: screen.note(text, style="yellow"))
        yield replace(backend, stack=stack, redis=redis)


def _unreachable(backend: CliBackend, job: Job) -> list[Problem]:
    """Return why a job's runner could not answer now, if the runner has a probe."""
    runner = backend.services.runners.resolve(job.runner, allow_inline=True)
    probe: Callable[[], Problem | None] = getattr(runner, "probe", lambda: None)
    problem = probe()
    return [problem.below("runner")] if problem else []


def describe_death(child: Child, code: int, delay: float | None) -> str:
    """Return the message about a child process that died. Without a delay it stays dead."""
    ended = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    reason = f": {child.last_line}" if code > 0 and child.last_line else ""
    if delay is None:
        return f"{child.name} cannot start and is not started again{reason} (log: {child.log})"
    return f"{child.name} {ended}; restarting it in {delay:g} s{reason} (log: {child.log})"
