"""The vocabulary of the ledger's stories: jobs, settlements, and a stage to play them on.

``from support import …`` works in every test: conftest.py puts this folder on the path.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from mulligan.policies.cycles.cycle import SelfRepairCycle, cycle_id
from mulligan.policies.failures.failure import (
    FailureKind,
    FailureRecord,
    VerificationResult,
    VerificationStatus,
)
from mulligan.policies.jobs.job import AttemptPlan, Decoding, Job, Mode, Output, Usage
from mulligan.policies.repair.verdict import Verdict
from mulligan.tasks.jobs.context import AttemptContext, ResolvedRunner
from mulligan.tasks.jobs.submit import Intake
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.ledger import (
    Accepted,
    AttemptView,
    Claim,
    ClaimRefused,
    CycleClaim,
    CyclePlan,
    Ended,
    Entry,
    EscalationEnd,
    Finish,
    JobView,
    KeyConflict,
    NextAttempt,
    Publication,
    Settlement,
    Submission,
)
from mulligan.tasks.ports.runners import Request
from mulligan.workers.ledger import job_ids, keys, rows
from mulligan.workers.ledger.fake_redis import fake_client
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stores.blobs import blob_store
from mulligan.workers.settings.model import Settings
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry


def until(condition: Callable[[], Any], *, timeout: float = 60.0) -> None:
    """Wait for something that is bound to happen; fail if it does not."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def make_job(**fields: Any) -> Job:
    defaults: dict[str, Any] = {
        "task_type": "extract",
        "prompt": "Extract the person.",
        "runner": {"kind": "scripted", "answers": ["{}"]},
        "verifiers": ["json.object"],
    }
    return Job.model_validate({**defaults, **fields})


def answer(text: str = "an answer", *, tokens: int | None = 10, seconds: float = 0.5) -> Output:
    return Output(text=text, usage=Usage(total_tokens=tokens), elapsed_seconds=seconds)


def passed(verifier: str = "json.object") -> VerificationResult:
    return VerificationResult(status=VerificationStatus.PASS, verifier_id=verifier, score=100)


# -- settlements -----------------------------------------------------------------------------------


def succeeds(claim: Claim, *, score: float = 100.0, **more: Any) -> Settlement:
    return _settlement(claim, Finish(state="succeeded"), score=score, success=True, **more)


def escalates(claim: Claim, reason: str = "max_attempts", **more: Any) -> Settlement:
    then = Finish(state="escalated", reason=reason, detail="it went wrong")
    return _settlement(claim, then, **more)


def retries_at_once(claim: Claim, **more: Any) -> Settlement:
    """A low score: the mandatory retry and its cycle."""
    loop = claim.loops + 1
    cycle = CyclePlan(
        id=cycle_id(claim.job_id, claim.plan.number, loop),
        loop_index=loop,
        status="pending_immediate_retry",
        metadata={"taskType": claim.job.task_type, "causeLabel": "json_invalid"},
    )
    then = _next(claim, "immediate_retry", cycle=cycle.id)
    return _settlement(claim, then, cycle=cycle, **more)


def cut_short(claim: Claim, reason: str = "per_skill_loop_cap", **more: Any) -> Settlement:
    """A low score whose mandatory retry a guardrail or a budget forbids."""
    loop = claim.loops + 1
    cycle = CyclePlan(
        id=cycle_id(claim.job_id, claim.plan.number, loop),
        loop_index=loop,
        status="escalated",
        metadata={"taskType": claim.job.task_type, "causeLabel": "json_invalid"},
    )
    then = Finish(state="escalated", reason=reason, detail="it went wrong")
    return _settlement(claim, then, cycle=cycle, **more)


def retries_by_policy(claim: Claim, *, delay: float = 0.0, **more: Any) -> Settlement:
    return _settlement(claim, _next(claim, "policy_retry", delay=delay), **more)


def _next(claim: Claim, mode: Mode, *, cycle: str | None = None, delay: float = 0.0) -> NextAttempt:
    plan = AttemptPlan(
        number=claim.plan.number + 1, mode=mode, prompt="Do it right.", cycle_id=cycle
    )
    return NextAttempt(plan=plan, delay=delay)


def _settlement(
    claim: Claim,
    then: NextAttempt | Finish,
    *,
    score: float = 40.0,
    success: bool = False,
    verdict: Verdict | None = None,
    **more: Any,
) -> Settlement:
    mandatory = claim.plan.mode == "immediate_retry"
    known = verdict or make_verdict(score=score, success=success)
    fields: dict[str, Any] = {
        "signatures": known.signatures,
        "cycle_done": claim.plan.cycle_id if mandatory else None,
    }
    return Settlement(then=then, verdict=known, **{**fields, **more})


def make_verdict(*, score: float = 40.0, success: bool = False) -> Verdict:
    """The verdict on a success, or on an answer that is no JSON."""
    if success:
        return Verdict(score=score, success=True)
    failure = FailureRecord(
        kind=FailureKind.JSON_INVALID,
        classification_signature="json_invalid|$",
        coarse_signature="json_invalid|$",
        message="it went wrong",
        source="verify",
    )
    return Verdict(score=score, failure=failure, signatures=(failure.classification_signature,))


def verdict_of(attempt: AttemptView) -> Verdict:
    assert attempt.verdict is not None
    return attempt.verdict


def failure_of(attempt: AttemptView) -> FailureRecord:
    failure = verdict_of(attempt).failure
    assert failure is not None
    return failure


def fake_ledger(
    settings: Settings | None = None, *, clock: MovableClock | None = None
) -> RedisLedger:
    """A new ledger on a fakeredis of its own."""
    return RedisLedger(fake_client(), settings or Settings(), patience=5.0, test_clock=clock)


def fake_blobs() -> BlobStore:
    """A new store of blobs on a fakeredis of its own."""
    return blob_store(Settings(), fake_ledger().calls)


# -- the stage -------------------------------------------------------------------------------------


class MovableClock:
    """The real time, plus what a test adds to it."""

    def __init__(self) -> None:
        self.shift = 0.0

    def __call__(self) -> float:
        return time.time() + self.shift


_SHORTEN_ENDS = """
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left >= 0 then redis.call('PEXPIRE', key, left - ARGV[1]) end
end
"""


@dataclass(frozen=True)
class Stage:
    """A ledger, and a clock that tests move instead of sleeping; without one, the real time."""

    ledger: RedisLedger
    settings: Settings
    clock: MovableClock | None = None

    def advance(self, seconds: float) -> None:
        """Move the clock of every script, and the end of every key that has one."""
        assert self.clock is not None, "this ledger runs on the real time"
        self.clock.shift += seconds
        self.ledger.calls.run("EVAL", _SHORTEN_ENDS, 0, round(seconds * 1000))

    def new_id(self, job: Job) -> str:
        return job_ids.job_id(
            partitions=self.settings.partitions,
            key=rows.key_of(job, self.settings),
            scope=rows.scope_of(job, self.settings),
        )

    def offer(self, job: Job) -> Accepted | KeyConflict:
        (told,) = self.ledger.accept([Submission(id=self.new_id(job), job=job)])
        return told

    def submit(self, **fields: Any) -> str:
        """A new job, accepted."""
        told = self.offer(make_job(**fields))
        assert isinstance(told, Accepted)
        assert told.status == "accepted"
        return told.id

    def submit_elsewhere(self, subject: str = "mia", **fields: Any) -> str:
        """A new job whose attempts are made elsewhere, accepted."""
        given: dict[str, Any] = {
            "subject": subject,
            "runner": {"kind": "external"},
            "verifiers": ["external.score"],
            "delayed_verification": {"mode": "reformulate"},
        }
        return self.submit(**{**given, **fields})

    def view(self, job_id: str) -> JobView:
        view = self.ledger.job(job_id)
        assert view is not None
        return view

    def attempt(self, job_id: str, number: int = 1) -> AttemptView:
        return self.view(job_id).attempts[number - 1]

    def cycle(self, job_id: str) -> SelfRepairCycle:
        """The only cycle of a job."""
        (cycle,) = self.view(job_id).cycles
        return cycle

    def cycle_row(self, cycle_id: str) -> dict[str, str]:
        """What is kept of a cycle, as reports read it."""
        prefix = keys.partition_prefix(self.settings.key_prefix, keys.partition_of(cycle_id))
        return self.ledger.calls.hashes([f"{prefix}cycle:{cycle_id}"])[0]

    # -- what workers do ------------------------------------------------------------------------

    def take(self, job_id: str, number: int = 1, *, worker: str = "worker") -> Claim:
        claim = self.ledger.claim(Entry("attempt", job_id, number), worker=worker)
        assert isinstance(claim, Claim), claim
        return claim

    def refusal(self, job_id: str, number: int = 1) -> ClaimRefused:
        refused = self.ledger.claim(Entry("attempt", job_id, number), worker="worker")
        assert isinstance(refused, ClaimRefused), refused
        return refused

    def take_check(self, job_id: str, index: int, *, number: int = 1) -> Claim:
        entry = Entry("verification", job_id, number, index)
        claim = self.ledger.claim_verification(entry, worker="worker")
        assert isinstance(claim, Claim), claim
        return claim

    def refused_check(self, job_id: str, index: int) -> ClaimRefused:
        entry = Entry("verification", job_id, 1, index)
        refused = self.ledger.claim_verification(entry, worker="worker")
        assert isinstance(refused, ClaimRefused), refused
        return refused

    def take_recheck(self, entry: Entry) -> CycleClaim:
        taken = self.ledger.claim_cycle(entry, worker="worker")
        assert isinstance(taken, CycleClaim), taken
        return taken

    def refused_recheck(self, entry: Entry) -> ClaimRefused:
        refused = self.ledger.claim_cycle(entry, worker="worker")
        assert isinstance(refused, ClaimRefused), refused
        return refused

    def settle(self, claim: Claim, settlement: Settlement) -> Publication | None:
        published = self.ledger.settle(claim.lease, settlement)
        assert not isinstance(published, ClaimRefused), published
        return published[0] if published else None

    def hand_over(self, job_id: str, checks: Sequence[int] = (0, 1)) -> Claim:
        """An answer is stored and its slow verifications are handed over."""
        claim = self.take(job_id)
        stored = self.ledger.store_output(claim.lease, answer(), verifications=checks)
        assert not isinstance(stored, ClaimRefused)
        return claim

    # -- what subjects and people do ------------------------------------------------------------

    def waiting(self, subject: str = "mia", *, tenant: str | None = None) -> str | None:
        """What a subject is to do next, as text."""
        found = self.ledger.next_of(subject, tenant=tenant)
        return str(found.entry) if found else None

    def escalated(
        self, *, reason: str = "max_attempts", group_signature: str | None = None, **fields: Any
    ) -> str:
        """A job that ended as an escalation at its first attempt."""
        job_id = self.submit(**fields)
        claim = self.take(job_id)
        self.settle(claim, escalates(claim, reason, group_signature=group_signature))
        return job_id

    def end(self, escalation_id: str, how: EscalationEnd, **more: Any) -> Ended:
        ended = self.ledger.end_escalation(escalation_id, how=how, by="ada", **more)
        assert isinstance(ended, Ended), ended
        return ended

    # -- what the sweep does --------------------------------------------------------------------

    def sweep(self, *empty: str) -> list[Publication]:
        return self.ledger.sweep(empty_queues=empty)

    def swept(self, *empty: str) -> set[str]:
        """The entries to be published now, as text."""
        return {str(publication.entry) for publication in self.sweep(*empty)}

    def expire_leases(self) -> set[str]:
        """Every worker has fallen silent, and the sweep has seen it."""
        self.advance(self.settings.lease + 1)
        return self.swept()

    # -- longer stories -------------------------------------------------------------------------

    def repaired(self, **fields: Any) -> tuple[str, Entry]:
        """A job that succeeded by its mandatory retry, and its cycle's delayed verification."""
        job_id = self.submit(**fields)
        first = self.take(job_id)
        self.settle(first, retries_at_once(first))
        second = self.take(job_id, 2)
        self.ledger.store_output(second.lease, answer("repaired"))
        self.settle(second, succeeds(second))
        return job_id, Entry("cycle", job_id, 1, 1)


# -- the bench of one worker -----------------------------------------------------------------------


@dataclass
class FakeRunner:
    """Answers, or raises, what it is given; remembers what it was asked."""

    answers: Sequence[str | Output | Exception]
    provider: str = "fake"
    asked: list[Request] = field(default_factory=list)

    def answer(self, request: Request) -> Output:
        self.asked.append(request)
        given = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if isinstance(given, Exception):
            raise given
        return given if isinstance(given, Output) else Output(text=given)


def bench_of(stage: Stage, runner: FakeRunner | None = None, **changes: Any) -> AttemptContext:
    """A workbench over a stage's ledger. It publishes nothing: stories call what is due."""
    asked = ResolvedRunner(runner=runner or FakeRunner(["{}"]), timeout=7.0, decoding=Decoding())
    context = AttemptContext(
        ledger=stage.ledger,
        runner=lambda _: asked,
        verifier=VerifierRegistry().build,
        publish=lambda _: None,
        holding=lambda _lease, _deadline: nullcontext(),
        breakers=stage.ledger.breakers,
        worker="here",
        tenant=lambda job: rows.tenant_of(job, stage.settings),
        randomness=lambda: 0.5,
    )
    return replace(context, **changes)


def intake_of(stage: Stage, **changes: Any) -> Intake:
    fields: dict[str, Any] = {
        "ledger": stage.ledger,
        "publish": lambda _: None,
        "check": lambda _: [],
        "snapshot": lambda workspace: workspace,
        "new_id": stage.new_id,
        "prompt_cap": 100_000,
        "exempt_task_types": stage.settings.exempt_task_types,
    }
    return Intake(**{**fields, **changes})


StageMaker = Callable[..., Stage]
SettingsMaker = Callable[..., Settings]
