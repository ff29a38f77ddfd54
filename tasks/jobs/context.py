"""What running an attempt needs: ports and limits, passed in by the composition root."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from mulligan.policies.cycles.guardrail import Guardrail
from mulligan.policies.jobs.job import Decoding, Job, RunnerSpec, VerifierSpec
from mulligan.tasks.ports.errors import TransportFault
from mulligan.tasks.ports.ledger import Entry, Lease, Ledger, Publication
from mulligan.tasks.ports.runners import Runner
from mulligan.tasks.ports.verifiers import Verifier


@dataclass(frozen=True, kw_only=True)
class ProviderHold:
    """A provider is to be left alone for so many seconds."""

    seconds: float
    waiting_for: Literal["breaker", "pause"] = "breaker"


class Breakers(Protocol):
    """One circuit breaker per provider, shared by the fleet; and the pauses of providers."""

    def wait(self, provider: str) -> ProviderHold | None:
        """How long to stay away and why, or None to go ahead (perhaps as the one probe)."""

    def fault(self, fault: TransportFault) -> None: ...

    def success(self, provider: str) -> None: ...


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
    #: Resolve a job's runner, or BadInput.
    runner: Callable[[RunnerSpec], ResolvedRunner]
    #: Build one of a job's verifiers, or BadInput.
    verifier: Callable[[VerifierSpec], Verifier]
    #: Publish outbox entries at once, and stamp them.
    publish: Callable[[Sequence[Publication]], None]
    #: Keep a lease renewed while the context is open; the float is a hard deadline in seconds.
    holding: Callable[[Lease, float], AbstractContextManager[None]]
    breakers: Breakers
    worker: str
    #: Asked anew for every attempt: exemptions may change while a process runs.
    exempt_task_types: Container[str] = frozenset()
    #: Whose a job is, by the label that says so.
    tenant: Callable[[Job], str | None] = lambda _job: None
    guardrail: Guardrail = field(default_factory=Guardrail)
    #: Whether jobs of the queue have guardrails too, each for itself.
    guard_jobs: bool = False
    #: How long somebody elsewhere may keep an attempt.
    external_lease: float = 1800.0
    #: Labels that figures are kept by.
    report_labels: Callable[[], frozenset[str]] = frozenset
    verifier_tries: int = 3
    answer_cap: int = 4_000_000
    backoff_base: float = 1.0
    backoff_cap: float = 60.0
    #: A number in [0, 1): the randomness of jitter.
    randomness: Callable[[], float]
    #: Called at named steps: where crash tests kill a process.
    step: Callable[[str, Entry], None] = lambda _name, _entry: None

    def is_exempt(self, job: Job) -> bool:
        """Whether a low score of this job is not followed by the mandatory retry."""
        return job.task_type in self.exempt_task_types
