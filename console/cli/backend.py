"""Where a command's jobs are run: a stack of its own, or the broker and workers that exist."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from celery import Celery

from mulligan.console.cli.exit_codes import NoBroker
from mulligan.console.cli.home import SupervisedRedis, embedded_redis, is_up
from mulligan.console.cli.output import screen
from mulligan.console.cli.stopping import stop, unhurried
from mulligan.console.jobfiles.job_file import FoundJob, check_jobs
from mulligan.policies.jobs.job import Job
from mulligan.tasks.jobs.submit import problems
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.celery.factory import create_app
from mulligan.workers.celery.heartbeat import fleet
from mulligan.workers.celery.publisher import Publisher
from mulligan.workers.celery.queues import ATTEMPT_QUEUE, run_pools
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.local.embedded_redis import EmbeddedRedis
from mulligan.workers.local.supervisor import Stack, child_environment
from mulligan.workers.services import Services, build_services
from mulligan.workers.settings.model import Settings, load_settings

#: Where `run` keeps its own stack while `mulligan up` has the home directory.
_APART = "run"


@dataclass(frozen=True, kw_only=True)
class CliBackend:
    """A place that takes jobs, as one command sees it."""

    settings: Settings
    services: Services
    #: The Celery app, for what only the broker and the workers can tell.
    app: Celery
    #: How long jobs under way are followed while the ledger is away, in seconds.
    patience: float
    #: The children of this command; None if the workers are somebody else's.
    stack: Stack | None = None
    #: The embedded Redis of this command.
    redis: SupervisedRedis | None = None

    @property
    def ledger(self) -> RedisLedger:
        return self.services.ledger

    @property
    def home_to_name(self) -> Path | None:
        """Where to look for the jobs afterwards, if it is not where everybody looks."""
        return self.stack.home if self.stack and self.stack.home.name == _APART else None

    def watch(self) -> None:
        """Start again what died of this command's own; call it now and then."""
        if self.redis is not None:
            self.redis.look()
        if self.stack is not None:
            self.stack.watch()

    def who_is_missing(self) -> str | None:
        """Why nobody will run a job that waits, and what to do; None if somebody will."""
        if self.stack is not None:
            return None
        beats = fleet(self.ledger.calls, self.settings.key_prefix, self.ledger.now())
        if not beats:
            return "no worker answers: start `mulligan up`; the jobs wait in the ledger"
        if not any(ATTEMPT_QUEUE in beat.queues for beat in beats):
            return "no worker serves the queue `attempt`: start `mulligan up`, or one that does"
        return None

    def check(self, job: Job) -> list[str]:
        return problems(self.services.intake, job)


def reach(settings: Settings) -> CliBackend:
    """The broker and ledger of these settings. Nothing is contacted yet."""
    # A person waits: for seconds, not for as long as a worker would.
    hasty = settings.model_copy(update={"worker_patience": settings.submit_patience})
    app = create_app(hasty)
    _check_transport(app)
    services = build_services(hasty, app, patience=hasty.submit_patience, local_paths=True)

    publisher = Publisher(app, services.ledger, on_away=_tell_away)
    intake = replace(services.intake, publish=publisher.publish)
    return CliBackend(
        settings=hasty,
        services=replace(services, intake=intake),
        app=app,
        patience=settings.worker_patience,
    )


def _check_transport(app: Celery) -> None:
    """BadInput if the broker's client is not installed: before a job is accepted, not after."""
    try:
        _ = app.connection_for_write().transport
    except Exception as error:  # each transport says in its own way what it lacks
        raise BadInput(
            f"broker_url: the client of this broker cannot be loaded ({error}); install it, or use"
            " redis://… or amqp://…"
        ) from None


def _tell_away(error: Exception) -> None:
    screen.note(
        f"accepted, but the broker is away ({error}): the sweep publishes it later",
        style="yellow",
    )


def broker_errors() -> tuple[type[Exception], ...]:
    """What a broker that is away raises, whatever its kind."""
    from kombu.exceptions import OperationalError
    from redis.exceptions import RedisError

    return (OperationalError, RedisError, OSError)


@contextmanager
def existing(settings: Settings) -> Iterator[CliBackend]:
    """The configured broker, or the `mulligan up` of this home directory; else NoBroker."""
    if settings.broker_url is not None:
        yield reach(settings)
        return
    if not is_up(settings.home):
        raise NoBroker("no broker: start it with `mulligan up`, or set MULLIGAN_BROKER_URL")
    with embedded_redis(settings.home) as redis:
        yield reach(load_settings(broker_url=redis.url))


@contextmanager
def working(settings: Settings, found: Sequence[FoundJob]) -> Iterator[CliBackend]:
    """A station with workers for these jobs: the configured ones, or a stack of our own."""
    if settings.broker_url is not None:
        yield reach(settings)
    elif is_up(settings.home) and not _needs_inline(settings, found):
        with existing(settings) as backend:
            yield backend
    else:
        with _own_stack(settings, found) as backend:
            yield backend


def _needs_inline(settings: Settings, found: Sequence[FoundJob]) -> bool:
    """Whether the workers of `mulligan up` would refuse what these jobs define themselves."""
    commands = (spec.options.get("argv") for each in found for spec in each.job.verifiers)
    inline = any(each.job.runner.kind for each in found) or any(commands)
    return inline and not settings.allow_inline


@contextmanager
def _own_stack(settings: Settings, found: Sequence[FoundJob]) -> Iterator[CliBackend]:
    home = settings.home / _APART if is_up(settings.home) else settings.home
    url = EmbeddedRedis(home).url
    own = load_settings(broker_url=url, home=home, allow_inline=True)
    backend = reach(own)
    # Before anything is started: a person waits, and would rather mend than watch it back off.
    check_jobs(found, backend.check)
    check_jobs(found, lambda job: _unreachable(backend, job))
    with ExitStack() as leaving:
        if any(_is_local(settings, each.job) for each in found):
            leaving.enter_context(_local_model())
        server = leaving.enter_context(embedded_redis(home))
        environment = child_environment(
            own, broker_url=url, MULLIGAN_ALLOW_INLINE="true", MULLIGAN_TASK_EVENTS="false"
        )
        stack = Stack(home, environment, on_death=_mourn(home))
        leaving.callback(stop, stack)
        for pool in run_pools(own):
            stack.add(pool.name, pool.argv())
        kept = SupervisedRedis(server, say=lambda told: screen.note(told, style="yellow"))
        yield replace(backend, stack=stack, redis=kept)


def _unreachable(backend: CliBackend, job: Job) -> list[str]:
    """Why a job's runner could not answer now, if it can tell."""
    runner = backend.services.runners.resolve(job.runner, allow_inline=True)
    probe: Callable[[], str | None] = getattr(runner, "probe", lambda: None)
    problem = probe()
    return [f"runner.{problem}"] if problem else []


def _mourn(home: Path) -> Callable[[str, int, float], None]:
    def tell(name: str, code: int, delay: float) -> None:
        log = home / "logs" / f"{name}.log"
        screen.note(
            f"the worker {name} {how_it_ended(code)}; restarting it in {delay:g} s (log: {log})",
            style="yellow",
        )

    return tell


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"


def _is_local(settings: Settings, job: Job) -> bool:
    profile = settings.runners.get(job.runner.profile or "", {})
    return "local" in (job.runner.kind, profile.get("kind"))


@contextmanager
def _local_model() -> Iterator[None]:
    """The bundled model's server, for as long as the block lasts."""
    from mulligan.workers.runners.local import ensure_local_server, stop_local_server

    owner = os.getpid()
    try:
        ensure_local_server(owner_pid=owner)
        yield
    finally:
        with unhurried():
            stop_local_server(owner_pid=owner)
