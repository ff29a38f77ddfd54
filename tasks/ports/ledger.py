"""The ledger: the truth about every job. Messages are hints; what counts is written here.

Two implementations pass one contract test: Redis with Lua (workers.redis_ledger) and an
in-memory one for tests (workers.memory_ledger).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from mulligan.policies.cycles.cycle import SelfRepairCycle
from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.failures.memory import RetryMemory
from mulligan.policies.jobs.job import AttemptPlan, Decoding, Job, Output

#: ``done`` tells a producer how its job ended.
EntryKind = Literal["attempt", "verification", "cycle", "done"]
_KINDS: dict[str, EntryKind] = {"a": "attempt", "v": "verification", "c": "cycle", "d": "done"}


@dataclass(frozen=True)
class Entry:
    """Something to be done, as the outbox, the leases and the messages name it."""

    kind: EntryKind
    job_id: str
    attempt: int
    #: The verifier's place in the job, or the cycle's loop index.
    index: int | None = None

    def __str__(self) -> str:
        if self.kind == "attempt":
            return f"a:{self.job_id}/{self.attempt}"
        if self.kind == "verification":
            return f"v:{self.job_id}/{self.attempt}/{self.index}"
        if self.kind == "done":
            return f"d:{self.job_id}/{self.attempt}"
        return f"c:{self.cycle_id}"

    @property
    def cycle_id(self) -> str:
        return f"{self.job_id}:{self.attempt}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> Entry:
        tag, _, rest = text.partition(":")
        parts = rest.replace("/", ":").split(":")
        index = int(parts[2]) if len(parts) > 2 else None
        return cls(_KINDS[tag], parts[0], int(parts[1]), index)


@dataclass(frozen=True)
class Publication:
    """An outbox entry to be published, and where."""

    entry: Entry
    queue: str
    priority: int


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A validated job on its way into the ledger."""

    id: str
    job: Job


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """``accepted``: new. ``seen``: the same job came before under this key."""

    id: str
    status: Literal["accepted", "seen"]
    publication: Publication | None = None


@dataclass(frozen=True)
class Lease:
    """The right to write about one entry, until it expires or is lost."""

    entry: Entry
    token: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """An attempt in hand: what is needed to run it, verify it and settle it."""

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


@dataclass(frozen=True)
class ClaimRefused:
    """Nothing to do for this message. ``reason`` says why; ``detail`` an escalation's cause."""

    reason: Literal[
        "gone",
        "finished",
        "held",
        "verifying",
        "paused",
        "over_quota",
        "early",
        "escalated",
        "stored",
        "lost",
    ]
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class CyclePlan:
    """A cycle to be opened by a settlement."""

    id: str
    loop_index: int
    status: Literal["pending_immediate_retry", "escalated"]
    metadata: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class NextAttempt:
    plan: AttemptPlan
    queue: str
    priority: int
    delay: float = 0.0


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

    #: The verdict, JSON-ready: results, score, success, failure, instruction, decision.
    verdict: Mapping[str, Any]
    score: float | None
    success: bool
    kind: str | None = None
    signatures: tuple[str, ...] = ()
    then: NextAttempt | Finish
    #: The cycle whose mandatory retry this attempt was.
    cycle_done: str | None = None
    verify_after: float = 600.0
    #: Where its delayed verification runs: a queue, or ``lane`` for work done elsewhere.
    verify_on: str = "verify"
    cycle: CyclePlan | None = None
    remedy: Remedy | None = None
    #: What figures are made of, told with the event. Never text of a prompt or an answer.
    facts: Mapping[str, Any] = field(default_factory=dict)
    #: The coarse signature that escalations alike are grouped by.
    about: str | None = None
    #: A line in the session of the subject: work done elsewhere has guardrails by it.
    session: SessionNote | None = None


@dataclass(frozen=True, kw_only=True)
class CycleClaim:
    """A delayed verification in hand: the job's best stored answer."""

    lease: Lease
    cycle_id: str
    claim: Claim
    #: What was answered in other words, if it is stored already.
    output: Output | None = None


@dataclass(frozen=True, kw_only=True)
class ParkedCounts:
    """What a subject is to do next. With a token: it holds it already, until ``expires_at``."""

    entry: Entry
    token: str | None = None
    expires_at: float | None = None


EscalationState = Literal["open", "resolved", "requeued", "cancelled"]
EscalationEnd = Literal["resolved", "requeued", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class Escalation:
    """Something a person must look at, and who ended it."""

    id: str
    job_id: str
    attempt: int
    #: Set if a cycle's delayed verification is what went wrong.
    cycle_id: str | None
    signature: str
    reason: str
    kind: str | None
    task_type: str
    detail: str
    tenant: str | None
    at: float
    state: EscalationState
    ended_at: float | None
    ended_by: str | None
    note: str | None


@dataclass(frozen=True, kw_only=True)
class EscalationGroup:
    """Escalations alike, by their signature. The counts by task type and tenant are open ones."""

    signature: str
    reason: str
    kind: str | None
    detail: str
    example: str
    task_types: Mapping[str, int]
    tenants: Mapping[str, int]
    open: int
    total: int
    first_at: float
    last_at: float
    muted_until: float | None
    alerted_at: float | None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """An escalation was ended; a requeued job has an attempt to publish."""

    state: EscalationEnd
    publication: Publication | None = None


@dataclass(frozen=True, kw_only=True)
class AttemptView:
    """One attempt as people see it."""

    plan: AttemptPlan
    state: str
    output: Output | None
    verdict: Mapping[str, Any]
    queued_at: float | None
    started_at: float | None
    settled_at: float | None
    worker: str | None
    claims: int
    faults: int
    last_fault: str | None


@dataclass(frozen=True, kw_only=True)
class JobView:
    """One job as people see it."""

    id: str
    job: Job
    state: str
    waiting_for: str | None
    reason: str | None
    detail: str | None
    created_at: float
    finished_at: float | None
    best_attempt: int | None
    #: What its attempts used, as far as it was told; None while nobody told any usage.
    tokens: int | None
    seconds: float
    tenant: str | None = None
    attempts: tuple[AttemptView, ...] = ()
    cycles: tuple[SelfRepairCycle, ...] = ()


class Ledger(Protocol):
    """Every method is one round trip. Writes need the lease's token; a lost lease is refused."""

    def accept(self, submissions: Sequence[Submission]) -> list[Accepted | KeyConflict]:
        """Write jobs and the outbox entries of their first attempts, each atomically."""

    def conflicts(self, submissions: Sequence[Submission]) -> set[str]:
        """The ids of those that ``accept`` would answer with Conflict now. Writes nothing."""

    def claim(
        self, entry: Entry, *, worker: str, lease: float | None = None, made: bool = False
    ) -> Claim | ClaimRefused:
        """Take an attempt. ``lease`` is for whoever does not renew it.

        ``made`` is for one that was made already: no pause and no quota is in its way.
        """

    def claim_verification(self, entry: Entry, *, worker: str) -> Claim | ClaimRefused:
        """Take one slow verification of an attempt."""

    def renew(self, leases: Sequence[Lease]) -> set[Entry]:
        """Renew leases; answers with the ones that are lost."""

    def store_output(
        self,
        lease: Lease,
        output: Output,
        *,
        verifications: Sequence[int] = (),
        given: Sequence[VerificationResult] = (),
        priority: int = 5,
    ) -> list[Publication] | ClaimRefused:
        """Keep an answer; hand slow verifications over, which ends the lease.

        ``given`` is what was found already, by whoever made the answer.
        """

    def store_result(
        self, lease: Lease, result: VerificationResult, *, elapsed: float
    ) -> Claim | ClaimRefused:
        """Keep a slow verification's result; the last one is given the attempt to settle."""

    def settle(self, lease: Lease, settlement: Settlement) -> list[Publication] | ClaimRefused:
        """Record a verdict with all that follows from it; what is to be published now."""

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
    ) -> Publication | ClaimRefused | None:
        """Give an entry back to be tried again; past ``limit`` of ``counter``, escalate."""

    def claim_cycle(
        self, entry: Entry, *, worker: str, lease: float | None = None
    ) -> CycleClaim | ClaimRefused:
        """Take a delayed verification that is due."""

    def store_cycle_output(self, lease: Lease, output: Output) -> bool:
        """Keep what a delayed verification answered in other words; whether the lease held."""

    def refuse_verification(self, lease: Lease, *, reason: str) -> bool:
        """Note that a delayed verification does not count; it may be done again."""

    def settle_cycle(
        self, lease: Lease, *, status: str, score: float | None, reason: str, valid: bool = True
    ) -> bool:
        """End a cycle by its delayed verification."""

    def next_of(self, subject: str, *, tenant: str | None = None) -> ParkedCounts | None:
        """What a subject is to do next: what it holds, else the mandatory retry first.

        What a pause or a quota holds back is passed over, and its job waits for that.
        """

    def hold(self, lease: Lease) -> Claim | CycleClaim | ClaimRefused:
        """What a subject holds by this token, to write about it."""

    def session(self, subject: str, *, tenant: str | None = None) -> list[SessionNote]:
        """What a subject did in its session, oldest first."""

    def stamp(self, entries: Sequence[Entry]) -> None:
        """Note that entries were published."""

    def sweep(self, *, empty_queues: Sequence[str]) -> list[Publication]:
        """What must be published now; also brings back expired leases."""

    def cancel(self, job_id: str, *, detail: str = "") -> str:
        """Cancel; answers with the state the job is then in, or ``gone``."""

    def groups(
        self, *, only_open: bool = True, tenant: str | None = None, limit: int = 100
    ) -> list[EscalationGroup]:
        """Escalations grouped by signature, the newest first."""

    def group(self, signature: str) -> EscalationGroup | None: ...

    def escalation(self, escalation_id: str) -> Escalation | None: ...

    def escalations(
        self,
        *,
        signature: str | None = None,
        only_open: bool = True,
        tenant: str | None = None,
        limit: int = 50,
    ) -> list[Escalation]:
        """Escalations, the newest first. Without a signature: of every group."""

    def end_escalation(
        self,
        escalation_id: str,
        *,
        how: EscalationEnd,
        by: str,
        note: str = "",
        prompt: str | None = None,
        decoding: Decoding | None = None,
    ) -> Ended | ClaimRefused:
        """End an escalation. ``requeued`` starts the job anew, with other words if given."""

    def mute(self, signature: str, *, until: float | None) -> bool:
        """No alerts of a group until then; whether there is such a group."""

    def pause(self, what: str) -> None:
        """Pause ``queue:NAME``, ``task_type:NAME`` or ``provider:NAME``."""

    def resume(self, what: str) -> None:
        """Lift a pause; the sweep lets the parked work go."""

    def paused(self) -> list[str]: ...

    def remedies(self, job_id: str, coarse: str) -> Mapping[str, tuple[int, int]]:
        """What was tried against a coarse signature: technique to (worked, tried)."""

    def job(self, job_id: str) -> JobView | None: ...

    def jobs(self, *, state: str | None = None, limit: int = 50) -> list[JobView]:
        """The newest jobs first, without their attempts."""

    def cycles(self, *, since: float, limit: int) -> list[SelfRepairCycle]:
        """The newest cycles of a window first."""

    def events(self, *, after: str = "0", block: float | None = None) -> Iterator[Event]:
        """Events after an id, waiting up to ``block`` seconds for the first."""

    def now(self) -> float:
        """The ledger's own clock, which every stamp and lease is measured by."""


@dataclass(frozen=True, kw_only=True)
class KeyConflict:
    """The same idempotency key with another payload."""

    id: str


@dataclass(frozen=True, kw_only=True)
class Event:
    id: str
    type: str
    job_id: str
    data: Mapping[str, Any]
