"""Where a client submits its jobs: to a fleet behind a broker, or to threads of its own process."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from mulligan.client.build_jobs import JobDraft, contract_by_reference
from mulligan.policies.jobs.job import Job
from mulligan.policies.problem import Problem
from mulligan.tasks.jobs.read_job import inspect_job
from mulligan.tasks.jobs.submit import Intake, key_problems, store_jobs
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import Accepted, JobView, KeyConflict
from mulligan.workers.backends.follow import EventFeed, JobReader, LedgerFeed
from mulligan.workers.contract_models import CONTRACT, ContractModels
from mulligan.workers.settings.model import Settings, load_settings

if TYPE_CHECKING:
    from mulligan.workers.backends.placement import Placement
    from mulligan.workers.ledger.redis_ledger import RedisLedger
    from mulligan.workers.local.local_stack import LocalStack


@dataclass(frozen=True, kw_only=True)
class SubmitResult:
    """The result of submitting jobs."""

    #: The stored jobs, by their index.
    accepted: Mapping[int, Accepted]
    #: Problems found after some jobs were stored.
    problems: Sequence[Problem] = ()


class Backend(JobReader, Protocol):
    """Takes jobs and reports their states and results."""

    #: The runner of a job that names none; None if each must name one.
    runner: Any

    def contract(self, returns: Any) -> dict[str, Any]:
        """Return the verifier spec for the type that the caller wants back."""

    def check(self, drafts: Sequence[JobDraft]) -> list[Problem]:
        """Return every problem of jobs of which one is malformed, each with its index."""

    def submit(self, jobs: Sequence[Job], *, stored: Callable[[int], None]) -> SubmitResult:
        """Store jobs, or none of them and raise BadInput with every problem.

        ``stored`` is called with the number of jobs in each batch that was stored.
        """

    def cancel(self, job_id: str) -> str:
        """The job's state afterwards, or ``gone``."""

    def start(self) -> None:
        """Start the workers, if they are this process's own."""

    def close(self) -> None: ...


def open_backend(overrides: Mapping[str, Any], *, slots: int) -> Backend:
    """Open the configured broker, or else threads of this process and a ledger in its home."""
    from mulligan.workers.backends.placement import place_jobs

    settings = load_settings(**overrides)
    # The program may change its working directory later.
    settings = settings.model_copy(update={"home": settings.home.resolve()})
    # Python models that check answers exist only in this process.
    placement = place_jobs(settings, private=True)
    if placement.workers == "fleet":
        return BrokerBackend(settings)
    return EmbeddedBackend.shared(settings, placement, slots=slots)


class LedgerBackend:
    """The base of backends that use the ledger directly."""

    def __init__(self, ledger: RedisLedger, intake: Intake) -> None:
        self._ledger = ledger
        self._intake = intake

    def check(self, drafts: Sequence[JobDraft]) -> list[Problem]:
        return [
            problem.of_job(index)
            for index, draft in enumerate(drafts)
            for problem in inspect_job(draft.raw, self._intake.problems)[1]
        ]

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
        return self._ledger.job_states(job_ids)

    def cancel(self, job_id: str) -> str:
        return self._ledger.cancel(job_id, detail="cancelled by a client")

    def feed(self, _job_id: str | None = None, *, after: str | None = None) -> EventFeed:
        return LedgerFeed(self._ledger, after=after)


class BrokerBackend(LedgerBackend):
    """A fleet: jobs are written to its ledger, and its broker sends the hints to its workers."""

    def __init__(self, settings: Settings) -> None:
        from mulligan.workers.celery.broker.producer import producer_intake
        from mulligan.workers.ledger.open_ledger import open_ledger

        self._models = ContractModels(settings.model_modules)
        ledger = open_ledger(settings, patience=settings.submit_patience)
        super().__init__(ledger, producer_intake(settings, ledger, models=self._models))
        self.runner: Any = settings.default_runner

    def contract(self, returns: Any) -> dict[str, Any]:
        """Return the contract; also name the model if its module is allowed, for its validators."""
        return contract_by_reference(returns, self._models)

    def start(self) -> None:
        """Do nothing: the fleet's workers are already running."""

    def close(self) -> None:
        """Do nothing: nothing was started."""


class LocalBackend(LedgerBackend):
    """Threads of this process run the jobs. The caller owns and closes the stack."""

    def __init__(self, stack: LocalStack) -> None:
        check = stack.intake.check
        intake = replace(stack.intake, check=lambda job: _undeliverable(job) + check(job))
        super().__init__(stack.ledger, intake)
        self._stack = stack
        self.runner: Any = stack.services.settings.default_runner

    def contract(self, returns: Any) -> dict[str, Any]:
        """The schema, and the key under which the workers of this process find the model."""
        if isinstance(returns, Mapping):
            return {"id": CONTRACT, "schema": dict(returns)}
        return self._stack.services.verifiers.models.contract(returns)

    def start(self) -> None:
        self._stack.workers.start()

    def close(self) -> None:
        """Others may still use the stack."""


class EmbeddedBackend(LocalBackend):
    """A durable ledger in the home directory, and threads of this process that do the work.

    All clients of one process with the same settings share it. It ends when the last of them is
    closed, or with the process.
    """

    def __init__(self, settings: Settings, placement: Placement, *, slots: int) -> None:
        from mulligan.workers.backends.local_model import LocalModel
        from mulligan.workers.ledger.open_ledger import open_ledger
        from mulligan.workers.local.local_stack import local_stack

        self._model = LocalModel()
        with ExitStack() as resources:
            own = resources.enter_context(placement.opened(settings))
            resources.callback(self._model.stop)
            ledger = open_ledger(own, patience=own.submit_patience)
            super().__init__(resources.enter_context(local_stack(own, ledger, slots=slots)))
            self._resources = resources.pop_all()
        self.users = 0
        self.runner = self.runner or {"kind": "local"}

    @classmethod
    def shared(cls, settings: Settings, placement: Placement, *, slots: int) -> EmbeddedBackend:
        key = (os.getpid(), f"{slots}|{settings.model_dump_json()}")
        with _LOCK:
            if key not in _OPEN:
                atexit.unregister(_at_exit)  # so that it is registered once
                atexit.register(_at_exit)
                _OPEN[key] = cls(settings, placement, slots=slots)
            _OPEN[key].users += 1
            return _OPEN[key]

    def submit(self, jobs: Sequence[Job], *, stored: Callable[[int], None]) -> SubmitResult:
        for job in jobs:
            self._model.start_for(job, self._stack.services.settings)
        return super().submit(jobs, stored=stored)

    def close(self) -> None:
        """Release the backend; the last release stops the work and requeues unfinished jobs."""
        with _LOCK:
            self.users -= 1
            if self.users > 0:
                return
            for key in [key for key, backend in _OPEN.items() if backend is self]:
                del _OPEN[key]
        self.shut_down()

    def shut_down(self) -> None:
        self._resources.close()


def _undeliverable(job: Job) -> list[Problem]:
    if job.on_done is None:
        return []
    message = "there is no broker to send it through; set broker_url"
    return [Problem.at("on_done", message, "not_allowed")]


_LOCK = threading.Lock()
_OPEN: dict[tuple[int, str], EmbeddedBackend] = {}


def _at_exit() -> None:
    """Shut down the backends of a process that did not close them, so that nothing is lost."""
    for key, backend in list(_OPEN.items()):
        if key[0] == os.getpid():
            backend.shut_down()
    _OPEN.clear()
