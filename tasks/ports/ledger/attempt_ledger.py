"""The part of the ledger for attempts and their verifications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.failures.memory import RetryMemory
from mulligan.policies.jobs.job import AttemptPlan, Job, Output, TerminalState
from mulligan.policies.jobs.routing import (
    MOST_URGENT,
    VerificationPlace,
    priority_of,
)
from mulligan.policies.loops.budget import Resource
from mulligan.policies.repair.verdict import Verdict
from mulligan.tasks.ports.errors import TransportFault
from mulligan.tasks.ports.ledger.entries import (
    ClaimRefused,
    Entry,
    EntryRequeued,
    Lease,
    Publication,
)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claimed attempt, with all data to run, verify and settle it."""

    lease: Lease
    job: Job
    plan: AttemptPlan
    output: Output | None = None
    #: Stored results of slow verifications, by the verifier's index.
    results: Mapping[int, VerificationResult] = field(default_factory=dict)
    memory: RetryMemory = field(default_factory=RetryMemory)
    tokens_used: int = 0
    seconds_used: float = 0.0
    #: The number of cycles that this job has opened.
    loops: int = 0
    #: Transport faults of this attempt so far.
    faults: int = 0
    #: Total running time of the repair attempts.
    repair_seconds: float = 0.0
    money_used: float = 0.0
    #: What this attempt may use at most, by the budget of its loop.
    allowance: Mapping[Resource, float] = field(default_factory=dict)
    #: The provider of which it has a slot; empty if the ledger does not know the provider yet.
    provider: str = ""

    @property
    def job_id(self) -> str:
        return self.lease.entry.job_id

    @property
    def budget_used_up(self) -> bool:
        reason = self.job.budget.exhausted(
            tokens=self.tokens_used, seconds=self.seconds_used, money=self.money_used
        )
        return reason is not None


@dataclass(frozen=True, kw_only=True)
class CyclePlan:
    """A cycle that a settlement opens."""

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
    def priority(self) -> int:
        return priority_of(self.plan.mode, MOST_URGENT)


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The end of a job."""

    #: ``cancelled`` ends a job that was only observed.
    state: TerminalState
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """Whether a technique repaired a coarse signature. The fleet remembers it."""

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
    """Everything that follows from one attempt, recorded in one atomic step."""

    verdict: Verdict
    #: The failures that the memory counts; none for an observed task.
    signatures: tuple[str, ...] = ()
    then: NextAttempt | Finish
    #: Whether the attempt ended before its runner was asked, so that it costs nothing.
    unasked: bool = False
    #: The cycle whose mandatory retry this attempt was.
    cycle_done: str | None = None
    verify_after: float = 600.0
    #: Where the delayed verification runs: a queue, or ``lane`` for external work.
    verify_on: VerificationPlace = "verify"
    cycle: CyclePlan | None = None
    remedy: Remedy | None = None
    #: Part of the event; figures are counted from it. Never text of a prompt or an answer.
    facts: Mapping[str, Any] = field(default_factory=dict)
    #: The coarse signature that groups escalations.
    group_signature: str | None = None
    #: A note for the guardrails of external work.
    session: SessionNote | None = None


class AttemptLedger(Protocol):
    """Claiming an attempt and recording its outcome."""

    def claim(
        self,
        entry: Entry,
        *,
        worker: str,
        lease: float | None = None,
        holder: str | None = None,
    ) -> Claim | ClaimRefused:
        """Claim an attempt. A caller that does not renew its lease gives its length in seconds.

        ``holder``: the producer that claims external work; its subject then holds it for it alone.
        """

    def take_over(self, entry: Entry, *, worker: str) -> Claim | ClaimRefused:
        """Return the claim that a worker holds, for the process that ends this worker."""

    def name_provider(self, lease: Lease, provider: str) -> ClaimRefused | None:
        """Say which provider a claimed entry asks, if that is not the one of its claim.

        The entry takes a slot of that provider; refused if it has to wait for one.
        """

    def renew(self, leases: Sequence[Lease]) -> set[Entry]:
        """Renew leases. Return the entries whose lease is lost."""

    def store_output(
        self,
        lease: Lease,
        output: Output,
        *,
        verifications: Sequence[int] = (),
        given: Sequence[VerificationResult] = (),
        priority: int = 5,
        report: str | None = None,
        money: float | None = None,
    ) -> list[Publication] | ClaimRefused:
        """Store an answer and queue its slow verifications, which ends the lease.

        Return what to publish now: the verifications, and what waited for the provider.

        ``given``: results that were reported with the answer. ``report``: the digest of a subject's
        report; another one with the same token is refused. Its lease is then that of a worker.
        ``money``: what the answer cost; None if that is unknown.
        """

    def settle(self, lease: Lease, settlement: Settlement) -> list[Publication] | ClaimRefused:
        """Record a verdict and all that follows from it. Return what to publish now."""

    def requeue(
        self,
        lease: Lease,
        *,
        delay: float,
        detail: str,
        counter: str | None = None,
        limit: int | None = None,
        reason: str = "",
        fault: TransportFault | None = None,
        unasked: bool = False,
    ) -> EntryRequeued | ClaimRefused:
        """Requeue an entry; escalate when ``counter`` has passed ``limit``.

        The ledger learns from a ``fault`` about its provider. One that the provider refused waits
        for the provider instead of ``delay``. No deadline ends a job before it has passed.
        ``unasked``: the runner was not asked, so the claim costs nothing. What the lease has
        metered is charged in any case.
        """

    def release(self, job_id: str, provider: str) -> list[Publication]:
        """Release what waits for a provider in the job's partition, as far as it takes calls now.

        Return what to publish.
        """

    def remedies(self, job_id: str, coarse: str) -> Mapping[str, tuple[int, int]]:
        """Return what was tried against a coarse signature: technique → (worked, tried)."""


class VerificationLedger(Protocol):
    """Slow verifications, each claimed separately."""

    def begin_merge(
        self, lease: Lease, results: Mapping[int, VerificationResult], *, index: int, priority: int
    ) -> list[Publication] | ClaimRefused:
        """Hand an attempt over to its merge, the verification at ``index``; ends the lease.

        ``results``: those of all other verifiers, by index. Return what to publish now. Only one
        merge of a group of a loop's items can be claimed at a time.
        """

    def claim_verification(self, entry: Entry, *, worker: str) -> Claim | ClaimRefused:
        """Claim one slow verification of an attempt."""

    def store_result(
        self, lease: Lease, result: VerificationResult, *, elapsed: float
    ) -> Claim | ClaimRefused:
        """Store the result of a slow verification. The last one claims the attempt to settle."""
