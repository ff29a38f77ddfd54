"""Calls to a provider as workers report them to a ledger."""

from __future__ import annotations

from typing import Any

from mulligan.policies.jobs.job import Job
from mulligan.tasks.ports.errors import OutOfCredits, TransportFault
from mulligan.tasks.ports.ledger import Claim, ClaimRefused, Entry, EntryRequeued, Submission
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stored.job_ids import job_id
from support.jobs import answer, make_job


def submit_for(ledger: RedisLedger, runner: str, **fields: Any) -> str:
    """Submit a job whose runner is a profile, and return its id."""
    job: Job = make_job(runner={"profile": runner}, **fields)
    new = job_id(partitions=ledger.numbers().count)
    ledger.accept([Submission(id=new, job=job)])
    return new


def ask(ledger: RedisLedger, job: str, provider: str, number: int = 1) -> Claim | ClaimRefused:
    """Claim an attempt as a worker does that asks this provider."""
    claim = ledger.claim(Entry("attempt", job, number), worker="worker")
    if isinstance(claim, ClaimRefused) or claim.provider == provider:
        return claim
    return ledger.name_provider(claim.lease, provider) or claim


def start_call(ledger: RedisLedger, provider: str, **fields: Any) -> Claim:
    """Start the call of a new job."""
    claim = ask(ledger, submit_for(ledger, f"of-{provider}", **fields), provider)
    assert isinstance(claim, Claim), claim
    return claim


def fail_call(
    ledger: RedisLedger,
    claim: Claim,
    *,
    status: int | None = 503,
    retry_after: float | None = None,
    delay: float = 1.0,
) -> EntryRequeued:
    kind = OutOfCredits if status == 402 else TransportFault
    fault = kind(
        f"{status}",
        "provider",
        status=status,
        retry_after=retry_after,
        maybe_served=status is None,
    )
    requeued = ledger.requeue(
        claim.lease, delay=delay, detail=str(fault), counter="faults", fault=fault
    )
    assert isinstance(requeued, EntryRequeued), requeued
    return requeued


def answer_call(ledger: RedisLedger, claim: Claim) -> list[str]:
    """Store an answer. Return the entries that it releases."""
    stored = ledger.store_output(claim.lease, answer())
    assert not isinstance(stored, ClaimRefused), stored
    return [str(publication.entry) for publication in stored]


def open_breaker(ledger: RedisLedger, provider: str, *, retry_after: float | None = None) -> None:
    """Let as many calls fail as open a provider's breaker; their jobs are cancelled."""
    calls = [start_call(ledger, provider) for _ in range(5)]
    for claim in calls:
        fail_call(ledger, claim, retry_after=retry_after)
        ledger.cancel(claim.job_id)
