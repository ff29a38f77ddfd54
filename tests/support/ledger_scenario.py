"""The steps of jobs on a ledger, and a clock that tests move instead of sleeping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from mulligan.policies.cycles.cycle import SelfRepairCycle
from mulligan.policies.jobs.job import Decoding, Job
from mulligan.tasks.jobs.context import AttemptContext, ResolvedRunner
from mulligan.tasks.jobs.submit import Intake
from mulligan.tasks.ports.ledger import (
    Accepted,
    AttemptView,
    Claim,
    ClaimRefused,
    CycleClaim,
    Ended,
    Entry,
    EscalationEnd,
    JobView,
    KeyConflict,
    Publication,
    Settlement,
    Submission,
)
from mulligan.workers.ledger import job_ids, keys, rows
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.settings.model import Settings
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry
from support.doubles import FakeRunner, MovableClock
from support.jobs import answer, make_job
from support.settlements import escalates, retries_at_once, succeeds

_SHORTEN_ENDS = """
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left >= 0 then redis.call('PEXPIRE', key, left - ARGV[1]) end
end
"""


@dataclass(frozen=True)
class Scenario:
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

    # -- several steps -------------------------------------------------------------------------

    def repaired(self, **fields: Any) -> tuple[str, Entry]:
        """A job that succeeded by its mandatory retry, and its cycle's delayed verification."""
        job_id = self.submit(**fields)
        first = self.take(job_id)
        self.settle(first, retries_at_once(first))
        second = self.take(job_id, 2)
        self.ledger.store_output(second.lease, answer("repaired"))
        self.settle(second, succeeds(second))
        return job_id, Entry("cycle", job_id, 1, 1)


def attempt_context(
    scenario: Scenario, runner: FakeRunner | None = None, **changes: Any
) -> AttemptContext:
    """A worker's context over a scenario's ledger. It publishes nothing: tests call what is due."""
    asked = ResolvedRunner(runner=runner or FakeRunner(["{}"]), timeout=7.0, decoding=Decoding())
    context = AttemptContext(
        ledger=scenario.ledger,
        runner=lambda _: asked,
        verifier=VerifierRegistry().build,
        publish=lambda _: None,
        holding=lambda _lease, _deadline: nullcontext(),
        breakers=scenario.ledger.breakers,
        worker="here",
        tenant=lambda job: rows.tenant_of(job, scenario.settings),
        randomness=lambda: 0.5,
    )
    return replace(context, **changes)


def intake_of(scenario: Scenario, **changes: Any) -> Intake:
    fields: dict[str, Any] = {
        "ledger": scenario.ledger,
        "publish": lambda _: None,
        "check": lambda _: [],
        "snapshot": lambda workspace: workspace,
        "new_id": scenario.new_id,
        "prompt_cap": 100_000,
        "exempt_task_types": scenario.settings.exempt_task_types,
    }
    return Intake(**{**fields, **changes})


ScenarioMaker = Callable[..., Scenario]


SettingsMaker = Callable[..., Settings]
