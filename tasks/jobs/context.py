"""The ports and limits for running an attempt, passed in by the composition root."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from mulligan.policies.cycles.guardrail import Guardrail
from mulligan.policies.jobs.exemption import is_exempt
from mulligan.policies.jobs.job import Decoding, Job, Output, RunnerSpec, VerifierSpec
from mulligan.policies.repair.free_repair import RepairSyntax, quick_repair
from mulligan.tasks.ports.clock import SYSTEM_CLOCK, Clock
from mulligan.tasks.ports.leases import HeldLease
from mulligan.tasks.ports.ledger import Claim, Entry, Lease, Ledger, Publication
from mulligan.tasks.ports.repositories import Repository, no_repository
from mulligan.tasks.ports.runners import Request, Runner
from mulligan.tasks.ports.verifiers import Verifier


@dataclass(frozen=True, kw_only=True)
class ResolvedRunner:
    """A runner with its default timeout and decoding."""

    runner: Runner
    timeout: float
    decoding: Decoding


@dataclass(frozen=True, kw_only=True)
class AttemptContext:
    """The ports of one worker process."""

    ledger: Ledger
    #: Resolves a job's runner, or raises BadInput.
    runner: Callable[[RunnerSpec], ResolvedRunner]
    #: Builds a job's verifier, or raises BadInput.
    verifier: Callable[[VerifierSpec], Verifier]
    #: Publishes outbox entries and stamps them.
    publish: Callable[[Sequence[Publication]], None]
    #: Renews a lease while the context is open, up to a deadline in seconds.
    holding: Callable[[Lease, float], AbstractContextManager[HeldLease]]
    worker: str
    #: Read for every attempt: exemptions may change while a process runs.
    exempt_task_types: Iterable[str] = frozenset()
    #: Returns the tenant of a job, which one of its labels names.
    tenant: Callable[[Job], str | None] = lambda _job: None
    guardrail: Guardrail = field(default_factory=Guardrail)
    #: Whether the guardrail applies to each subject, and to each queued job. The retry after a low
    #: score is mandatory, so both are off by default.
    guard_subjects: bool = False
    guard_jobs: bool = False
    #: Seconds for which a subject may hold an external attempt.
    external_lease: float = 1800.0
    #: Returns the labels that figures are grouped by.
    report_labels: Callable[[], frozenset[str]] = frozenset
    #: Repairs the syntax of JSON in a task's answer.
    repair: RepairSyntax = quick_repair
    verifier_tries: int = 3
    #: Seconds after which no claim of a verification is renewed any more.
    hard_limit: float = 3600.0
    answer_cap: int = 4_000_000
    backoff_base: float = 1.0
    backoff_cap: float = 60.0
    clock: Clock = SYSTEM_CLOCK
    #: Returns a number in [0, 1) for jitter.
    randomness: Callable[[], float]
    #: Releases what waits for a provider, in a job's partition, after some seconds. Without it, the
    #: next sweep does.
    release_later: Callable[[str, str, float], None] = lambda _job, _provider, _seconds: None
    #: Returns the highest price of one token of a runner; None if it has none.
    price: Callable[[RunnerSpec], float | None] = lambda _runner: None
    #: Returns what an answer cost; None if that is unknown.
    cost: Callable[[Job, Output], float | None] = lambda _job, _output: None
    #: Opens the repository of a workspace, or raises BadInput.
    repository: Callable[[str], Repository] = no_repository
    #: Called with an answer that passed all its verifiers, before the attempt is settled. It may
    #: be called again. Raises WorkspaceUnavailable to be called later.
    on_passed: Callable[[Claim, Output], None] = lambda _claim, _output: None
    #: Asks a runner, in a checkout if the work is for the branch of a loop.
    answer: Callable[[Runner, Request], Output] = lambda runner, request: runner.answer(request)
    #: Removes this worker's paths from the text of an error.
    without_paths: Callable[[str], str] = str
    #: Called at named steps, where crash tests kill a process.
    step: Callable[[str, Entry], None] = lambda _name, _entry: None

    def is_exempt(self, job: Job) -> bool:
        """Whether this job has no mandatory retry after a low score."""
        return is_exempt(job.task_type, self.exempt_task_types)
