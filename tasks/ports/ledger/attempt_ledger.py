"""Attempts: claimed, run, verified and settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.failures.memory import RetryMemory
from mulligan.policies.jobs.job import AttemptPlan, Job, Output
from mulligan.policies.jobs.routing import (
    MOST_URGENT,
    AttemptQueue,
    VerificationPlace,
    priority_of,
    queue_of,
)
from mulligan.policies.repair.verdict import Verdict
from mulligan.tasks.ports.ledger.entries import ClaimRefused, Entry, Lease, Publication


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claimed attempt: what is needed to run, verify and settle it."""

    lease: Lease
    job: Job
    plan: AttemptPlan
    output: Output | None = None
    #: Results of slow verifications that are already stored, by the verifier's place.
    results: Mapping[int, VerificationResult] = field(default_factory=dict)
    memory: RetryMemory = field(default_factory=RetryMemory)
    tokens_used: int = 0
    seconds_used: float = 0.0
    #: How many cycles this job has opened.
    loops: int = 0
    #: Transport faults of this attempt so far.
    faults: int = 0
    #: Running time of the attempts that were repairs.
    repair_seconds: float = 0.0

    @property
    def job_id(self) -> str:
        return self.lease.entry.job_id


@dataclass(frozen=True, kw_only=True)
class CyclePlan:
    """A cycle to be opened by a settlement."""

    id: str
    loop_index: int
    status: Literal["pending_immediate_retry", "escalated"]
    metadata: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class NextAttempt:
    """A retry, published at once or after a delay."""

    plan: AttemptPlan
    delay: float = 0.0

    @property
    def queue(self) -> AttemptQueue:
        return queue_of(self.plan.mode)

    @property
    def priority(self) -> int:
        return priority_of(self.plan.mode, MOST_URGENT)


@dataclass(frozen=True, kw_only=True)
class Finish:
    #: ``cancelled`` ends a job that was only observed.
    state: Literal["succeeded", "escalated", "cancelled"]
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """Whether a technique cured a coarse signature: what the fleet learns."""

    coarse: str
    technique: str
    worked: bool


@dataclass(frozen=True, kw_only=True)
class SessionNote:
    """One settled attempt of a subject, kept for the length of its session."""

    entry: str
    task_type: str
    mode: str
    seconds: float
    #: Whether it opened a repair loop.
    loop: bool
    #: How long a session lasts.
    window: float


@dataclass(frozen=True, kw_only=True)
class Settlement:
    """Everything that follows from one attempt; recorded whole or not at all."""

    verdict: Verdict
    #: The failures that the memory counts. An observed task has none that count.
    signatures: tuple[str, ...] = ()
    then: NextAttempt | Finish
    #: The cycle whose mandatory retry this attempt was.
    cycle_done: str | None = None
    verify_after: float = 600.0
    #: Where its delayed verification runs: a queue, or ``lane`` for external work.
    verify_on: VerificationPlace = "verify"
    cycle: CyclePlan | None = None
    remedy: Remedy | None = None
    #: What figures are counted from; part of the event. Never text of a prompt or an answer.
    facts: Mapping[str, Any] = field(default_factory=dict)
    #: The coarse signature by which escalations are grouped.
    group_signature: str | None = None
    #: A line in the session of the subject, which the guardrails of external work read.
    session: SessionNote | None = None


class AttemptLedger(Protocol):
    """Taking an attempt and recording what became of it."""

    def claim(
        self, entry: Entry, *, worker: str, lease: float | None = None, already_run: bool = False
    ) -> Claim | ClaimRefused:
        """Take an attempt. A caller that does not renew its lease gives the seconds of it.

        ``already_run``: the attempt was made elsewhere, so neither a pause nor a quota stops it.
        """

    def renew(self, leases: Sequence[Lease]) -> set[Entry]:
        """Renew leases. Returns the entries whose lease is lost."""

    def store_output(
        self,
        lease: Lease,
        output: Output,
        *,
        verifications: Sequence[int] = (),
        given: Sequence[VerificationResult] = (),
        priority: int = 5,
    ) -> list[Publication] | ClaimRefused:
        """Store an answer and hand over its slow verifications, which ends the lease.

        ``given``: results that came with the answer.
        """

    def settle(self, lease: Lease, settlement: Settlement) -> list[Publication] | ClaimRefused:
        """Record a verdict with all that follows from it. Returns what to publish now."""

    def requeue(
        self,
        lease: Lease,
        *,
        delay: float,
        detail: str,
        waiting_for: str = "delay",
        counter: str | None = None,
        limit: int | None = None,
        reason: str = "",
    ) -> ClaimRefused | None:
        """Give an entry back to be tried again; past ``limit`` of ``counter``, escalate."""

    def remedies(self, job_id: str, coarse: str) -> Mapping[str, tuple[int, int]]:
        """What was tried against a coarse signature: technique to (worked, tried)."""


class VerificationLedger(Protocol):
    """Slow verifications, which are claimed one by one."""

    def claim_verification(self, entry: Entry, *, worker: str) -> Claim | ClaimRefused:
        """Take one slow verification of an attempt."""

    def store_result(
        self, lease: Lease, result: VerificationResult, *, elapsed: float
    ) -> Claim | ClaimRefused:
        """Store the result of a slow verification. The last one claims the attempt to settle."""
