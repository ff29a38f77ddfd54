"""Where a client hands its jobs in: a fleet behind a broker or a console, or a stack of its own."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from mulligan.client.build_jobs import contract_by_reference
from mulligan.client.completion import EventFeed, LedgerFeed, events_of
from mulligan.policies.jobs.job import Job
from mulligan.tasks.jobs.submit import Intake, key_problems, store_jobs
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import Accepted, Event, JobView, KeyConflict, Ledger
from mulligan.workers.contract_models import CONTRACT, ContractModels
from mulligan.workers.settings.model import Settings, load_settings

if TYPE_CHECKING:
    from mulligan.workers.local.embedded_redis import EmbeddedRedis
    from mulligan.workers.local.local_stack import LocalStack


@dataclass(frozen=True, kw_only=True)
class SubmitResult:
    """What became of jobs that were handed in."""

    #: Those that are stored, by their places.
    accepted: Mapping[int, Accepted]
    #: What is wrong with others, if it showed only when some were stored.
    problems: Sequence[str] = ()


class Backend(Protocol):
    """Takes jobs and knows what became of them."""

    #: Who answers a job that does not say; None if it must.
    runner: Any

    def contract(self, returns: Any) -> dict[str, Any]:
        """The verifier spec that makes an answer what the caller wants back."""

    def submit(self, jobs: Sequence[Job], *, stored: Callable[[int], None]) -> SubmitResult:
        """Hand jobs in. BadInput names every problem, and then none of them is stored.

        ``stored`` is told how many more are.
        """

    def job(self, job_id: str) -> JobView | None: ...

    def states(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """What state each job is in; one that there is not is left out."""

    def cancel(self, job_id: str) -> str:
        """The state that the job is then in, or ``gone``."""

    def feed(self) -> EventFeed:
        """What happens to all jobs from now on."""

    def events_of(self, job_id: str) -> Iterator[Event | None]:
        """One job's events to its end; None now and then while nothing happens."""

    def start(self) -> None:
        """See to it that waiting work is done."""

    def close(self) -> None: ...


def open_backend(overrides: Mapping[str, Any], *, slots: int) -> Backend:
    """The configured broker, or else a stack of this process in its home directory."""
    settings = load_settings(**overrides)
    if settings.broker_url is not None:
        return BrokerBackend(settings)
    if settings.ledger_url is not None:
        raise BadInput("broker_url: a ledger without a broker: set MULLIGAN_BROKER_URL too")
    return EmbeddedBackend.shared(settings, overrides, slots=slots)


class LedgerBackend:
    """What every desk does that has a ledger and an intake at hand."""

    def __init__(self, ledger: Ledger, intake: Intake) -> None:
        self._ledger = ledger
        self._intake = intake

    def submit(self, jobs: Sequence[Job], *, stored: Callable[[int], None]) -> SubmitResult:
        answers = dict(enumerate(store_jobs(self._intake, jobs, stored=stored)))
        refused = [place for place, answer in answers.items() if isinstance(answer, KeyConflict)]
        if len(refused) == len(jobs):
            raise BadInput(*key_problems(jobs, refused))
        return SubmitResult(
            accepted={i: each for i, each in answers.items() if isinstance(each, Accepted)},
            problems=key_problems(jobs, refused),
        )

    def job(self, job_id: str) -> JobView | None:
        return self._ledger.job(job_id)

    def states(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        found = ((job_id, self._ledger.job(job_id)) for job_id in job_ids)
        return {job_id: view.state for job_id, view in found if view is not None}

    def cancel(self, job_id: str) -> str:
        return self._ledger.cancel(job_id, detail="cancelled by a client")

    def feed(self) -> EventFeed:
        return LedgerFeed(self._ledger)

    def events_of(self, job_id: str) -> Iterator[Event | None]:
        return events_of(self._ledger, job_id)


class BrokerBackend(LedgerBackend):
    """A fleet. Jobs are written to its ledger, and its workers are told through its broker."""

    def __init__(self, settings: Settings) -> None:
        from mulligan.workers.celery.producer import producer_intake
        from mulligan.workers.ledger.open_ledger import open_ledger

        self._models = ContractModels(settings.model_modules)
        ledger = open_ledger(settings, patience=settings.submit_patience)
        super().__init__(ledger, producer_intake(settings, ledger, models=self._models))
        self.runner: Any = settings.default_runner

    def contract(self, returns: Any) -> dict[str, Any]:
        """A model of an allow-listed module by its name too; the workers check its validators."""
        return contract_by_reference(returns, self._models)

    def start(self) -> None:
        """The fleet's own affair."""

    def close(self) -> None:
        """Nothing was started."""


class LocalBackend(LedgerBackend):
    """Threads of this process do the work. Whoever made the stack closes it."""

    def __init__(self, stack: LocalStack) -> None:
        check = stack.intake.check
        intake = replace(stack.intake, check=lambda job: _undeliverable(job) + check(job))
        super().__init__(stack.ledger, intake)
        self._stack = stack
        self.runner: Any = stack.settings.default_runner

    def contract(self, returns: Any) -> dict[str, Any]:
        """The schema, and by which key the workers of this process know the model itself."""
        if isinstance(returns, Mapping):
            return {"id": CONTRACT, "schema": dict(returns)}
        return self._stack.models.contract(returns)

    def start(self) -> None:
        self._stack.workers.start()

    def close(self) -> None:
        """Others may still use the stack."""


class EmbeddedBackend(LocalBackend):
    """A durable ledger in the home directory, and threads of this process that do the work.

    All clients of one process with the same settings share it. It ends when the last of them is
    closed, and at the latest with the process.
    """

    def __init__(self, stack: LocalStack, redis: EmbeddedRedis) -> None:
        super().__init__(stack)
        self._redis = redis
        self._lock = threading.Lock()
        self._has_model = False
        self.users = 0
        self.runner = self.runner or {"kind": "local"}

    @classmethod
    def shared(
        cls, settings: Settings, overrides: Mapping[str, Any], *, slots: int
    ) -> EmbeddedBackend:
        key = (os.getpid(), f"{settings.home.resolve()}|{slots}|{settings.model_dump_json()}")
        with _LOCK:
            if key not in _OPEN:
                _OPEN[key] = _open_embedded(settings, overrides, slots=slots)
            _OPEN[key].users += 1
            return _OPEN[key]

    def submit(self, jobs: Sequence[Job], *, stored: Callable[[int], None]) -> SubmitResult:
        for job in jobs:
            self._expect(job)
        return super().submit(jobs, stored=stored)

    def _expect(self, job: Job) -> None:
        """Have the bundled model's server ready if the job is for it, and keep it for us."""
        profile = self._stack.settings.runners.get(job.runner.profile or "", {})
        if "local" not in (job.runner.kind, profile.get("kind")):
            return
        from mulligan.workers.runners.blocking import blocked
        from mulligan.workers.runners.local_state import ensure_local_server

        if blocked("local"):
            return

        with self._lock:
            if not self._has_model:
                ensure_local_server(owner_pid=os.getpid())
                self._has_model = True

    def close(self) -> None:
        """Leave; whoever leaves last stops the work and gives back what is unfinished."""
        with _LOCK:
            self.users -= 1
            if self.users > 0:
                return
            for key in [key for key, backend in _OPEN.items() if backend is self]:
                del _OPEN[key]
        self.shut_down()

    def shut_down(self) -> None:
        self._stack.close()
        if self._has_model:
            from mulligan.workers.runners.local_state import stop_local_server

            stop_local_server(owner_pid=os.getpid())
        self._redis.stop()


def _undeliverable(job: Job) -> list[str]:
    if job.on_done is None:
        return []
    return ["on_done: there is no broker to send it through; set broker_url"]


_LOCK = threading.Lock()
_OPEN: dict[tuple[int, str], EmbeddedBackend] = {}


def _open_embedded(
    settings: Settings, overrides: Mapping[str, Any], *, slots: int
) -> EmbeddedBackend:
    from mulligan.console.cli.home import is_up
    from mulligan.workers.ledger.open_ledger import open_ledger
    from mulligan.workers.local.embedded_redis import EmbeddedRedis
    from mulligan.workers.local.local_stack import local_stack

    # The workers of `mulligan up` would refuse what our jobs define themselves: keep apart.
    home = settings.home / "run" if is_up(settings.home) else settings.home
    redis = EmbeddedRedis(home)
    redis.start()
    own = load_settings(
        **{**overrides, "broker_url": redis.url, "home": home.resolve(), "allow_inline": True}
    )
    ledger = open_ledger(own, patience=own.submit_patience)
    return EmbeddedBackend(local_stack(own, ledger, slots=slots), redis)


@atexit.register
def _at_exit() -> None:
    """A process that ends without closing leaves nothing running and loses nothing."""
    for key, backend in list(_OPEN.items()):
        if key[0] == os.getpid():
            backend.shut_down()
    _OPEN.clear()
