"""The steps of jobs on a ledger, with a clock that tests move instead of sleeping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from mulligan.policies.cycles.cycle import SelfRepairCycle
from mulligan.policies.jobs.job import Decoding, Job
from mulligan.tasks.jobs.context import AttemptContext, ResolvedRunner
from mulligan.tasks.jobs.submit import Intake
from mulligan.tasks.ports.leases import UnwatchedLease
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
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stored import rows
from mulligan.workers.settings.model import Settings
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry
from support.doubles import FakeRunner, MovableClock
from support.jobs import answer, make_job
from support.settlements import escalates, retries_immediately, succeeds

_SHORTEN_TTLS = """
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left >= 0 then redis.call('PEXPIRE', key, left - ARGV[1]) end
end
"""


@dataclass(frozen=True)
class Scenario:
    """A ledger with a clock that tests move; without one, the ledger uses real time."""

    ledger: RedisLedger
    settings: Settings
    clock: MovableClock | None = None

    def advance(self, seconds: float, *, away: bool = False) -> None:
        """Move the clock of every script and shorten the TTL of every key.

        ``away``: nobody swept meanwhile. Otherwise a sweep found nothing to do at the end.
        """
        assert self.clock is not None, "this ledger uses real time"
        self.clock.shift += seconds
        self.ledger.calls.run("EVAL", _SHORTEN_TTLS, 0, round(seconds * 1000))
        if not away:
            for swept_at in map(keys.swept_at, self.ledger.prefixes()):
                self.ledger.calls.run("SET", swept_at, self.ledger.now() * 1000)

    def new_id(self, job: Job, owner: str | None = None) -> str:
        return self.ledger.new_id(job, owner)

    def accept(self, job: Job) -> Accepted | KeyConflict:
        (result,) = self.ledger.accept([Submission(id=self.new_id(job), job=job)])
        return result

    def submit(self, **fields: Any) -> str:
        """Submit a new job and return its id."""
        result = self.accept(make_job(**fields))
        assert isinstance(result, Accepted)
        assert result.status == "accepted"
        return result.id

    def submit_external(self, subject: str = "mia", **fields: Any) -> str:
        """Submit a job for a person or another system and return its id."""
        defaults: dict[str, Any] = {
            "subject": subject,
            "runner": {"kind": "external"},
            "verifiers": ["external.score"],
            "delayed_verification": {"mode": "reformulate"},
        }
        return self.submit(**{**defaults, **fields})

    def view(self, job_id: str) -> JobView:
        view = self.ledger.job(job_id)
        assert view is not None
        return view

    def attempt(self, job_id: str, number: int = 1) -> AttemptView:
        return self.view(job_id).attempts[number - 1]

    def cycle(self, job_id: str) -> SelfRepairCycle:
        """Return the only cycle of a job."""
        (cycle,) = self.view(job_id).cycles
        return cycle

    def cycle_row(self, cycle_id: str) -> dict[str, str]:
        """Return the stored fields of a cycle, as reports read them."""
        prefix = keys.partition_prefix(self.settings.key_prefix, keys.partition_of(cycle_id))
        return self.ledger.calls.hashes([f"{prefix}cycle:{cycle_id}"])[0]

    # -- workers --------------------------------------------------------------------------------

    def claim(self, job_id: str, number: int = 1, *, worker: str = "worker") -> Claim:
        claim = self.ledger.claim(Entry("attempt", job_id, number), worker=worker)
        assert isinstance(claim, Claim), claim
        return claim

    def refusal(self, job_id: str, number: int = 1) -> ClaimRefused:
        refused = self.ledger.claim(Entry("attempt", job_id, number), worker="worker")
        assert isinstance(refused, ClaimRefused), refused
        return refused

    def claim_verification(self, job_id: str, index: int, *, number: int = 1) -> Claim:
        entry = Entry("verification", job_id, number, index)
        claim = self.ledger.claim_verification(entry, worker="worker")
        assert isinstance(claim, Claim), claim
        return claim

    def verification_refusal(self, job_id: str, index: int) -> ClaimRefused:
        entry = Entry("verification", job_id, 1, index)
        refused = self.ledger.claim_verification(entry, worker="worker")
        assert isinstance(refused, ClaimRefused), refused
        return refused

    def claim_recheck(self, entry: Entry) -> CycleClaim:
        claim = self.ledger.claim_cycle(entry, worker="worker")
        assert isinstance(claim, CycleClaim), claim
        return claim

    def recheck_refusal(self, entry: Entry) -> ClaimRefused:
        refused = self.ledger.claim_cycle(entry, worker="worker")
        assert isinstance(refused, ClaimRefused), refused
        return refused

    def settle(self, claim: Claim, settlement: Settlement) -> Publication | None:
        published = self.ledger.settle(claim.lease, settlement)
        assert not isinstance(published, ClaimRefused), published
        return published[0] if published else None

    def hand_over(self, job_id: str, verifications: Sequence[int] = (0, 1)) -> Claim:
        """Store an answer and hand its slow verifications over to other tasks."""
        claim = self.claim(job_id)
        stored = self.ledger.store_output(claim.lease, answer(), verifications=verifications)
        assert not isinstance(stored, ClaimRefused)
        return claim

    # -- subjects and people --------------------------------------------------------------------

    def next_entry(self, subject: str = "mia", *, tenant: str | None = None) -> str | None:
        """Return the entry that a subject works on next, as text."""
        found = self.ledger.next_of(subject, tenant=tenant)
        return str(found.entry) if found else None

    def escalated_job(
        self, *, reason: str = "max_attempts", group_signature: str | None = None, **fields: Any
    ) -> str:
        """Submit a job, escalate its first attempt and return its id."""
        job_id = self.submit(**fields)
        claim = self.claim(job_id)
        self.settle(claim, escalates(claim, reason, group_signature=group_signature))
        return job_id

    def end(self, escalation_id: str, how: EscalationEnd, **more: Any) -> Ended:
        ended = self.ledger.end_escalation(escalation_id, how=how, by="ada", **more)
        assert isinstance(ended, Ended), ended
        return ended

    # -- the sweep ------------------------------------------------------------------------------

    def sweep(self, *empty: str) -> list[Publication]:
        return self.ledger.sweep(empty_queues=empty)

    def swept_entries(self, *empty: str) -> set[str]:
        """Sweep and return the entries to publish, as text."""
        return {str(publication.entry) for publication in self.sweep(*empty)}

    def expire_leases(self) -> set[str]:
        """Let every lease expire, then sweep and return the entries to publish."""
        self.advance(self.settings.lease + 1)
        return self.swept_entries()

    # -- several steps --------------------------------------------------------------------------

    def repaired_job(self, **fields: Any) -> tuple[str, Entry]:
        """Return a job that its mandatory retry repaired, and the entry of its recheck."""
        job_id = self.submit(**fields)
        first = self.claim(job_id)
        self.settle(first, retries_immediately(first))
        second = self.claim(job_id, 2)
        self.ledger.store_output(second.lease, answer("repaired"))
        self.settle(second, succeeds(second))
        return job_id, Entry("cycle", job_id, 1, 1)


def attempt_context(
    scenario: Scenario, runner: FakeRunner | None = None, **changes: Any
) -> AttemptContext:
    """Return a worker's context on a scenario's ledger. It publishes nothing."""
    resolved = ResolvedRunner(runner=runner or FakeRunner(["{}"]), timeout=7.0, decoding=Decoding())
    context = AttemptContext(
        ledger=scenario.ledger,
        runner=lambda _: resolved,
        verifier=VerifierRegistry().build,
        publish=lambda _: None,
        holding=lambda _lease, _deadline: nullcontext(UnwatchedLease()),
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
