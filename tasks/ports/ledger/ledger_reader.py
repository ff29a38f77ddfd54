"""The part of the ledger for reading jobs and events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mulligan.policies.cycles.cycle import SelfRepairCycle
from mulligan.policies.figures.waiting_words import waiting_words
from mulligan.policies.jobs.job import AttemptPlan, Job, Output
from mulligan.policies.repair.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class AttemptView:
    """One attempt, for reading."""

    plan: AttemptPlan
    state: str
    output: Output | None
    #: None until the attempt is settled.
    verdict: Verdict | None
    queued_at: float | None
    started_at: float | None
    settled_at: float | None
    worker: str | None
    claims: int
    faults: int
    last_fault: str | None
    #: What its repository or another store last held it up with, and until when it waited for that.
    held_up: str | None = None
    held_until: float = 0.0
    #: What cannot be read of it, if another release wrote it or it is damaged.
    unreadable: str | None = None

    @property
    def score(self) -> float | None:
        """0 to 100; None until the attempt is settled, and if nothing was verified."""
        return self.verdict.score if self.verdict is not None else None


@dataclass(frozen=True, kw_only=True)
class JobView:
    """One job, for reading."""

    id: str
    job: Job
    state: str
    waiting_for: str | None
    reason: str | None
    detail: str | None
    created_at: float
    finished_at: float | None
    best_attempt: int | None
    #: The known token usage of its attempts; None if all of it is unknown.
    tokens: int | None
    seconds: float
    tenant: str | None = None
    #: The producer that submitted it, if the console knows.
    owner: str | None = None
    #: The reason that its entry is parked behind, such as ``provider:api.example``.
    waiting_behind: str | None = None
    attempts: tuple[AttemptView, ...] = ()
    cycles: tuple[SelfRepairCycle, ...] = ()
    #: The schema that a worker must read to run it, and the release that needs it.
    needs_schema: int = 1
    needs_release: str | None = None
    #: What cannot be read of the job or an attempt, if another release wrote it or it is damaged.
    unreadable: str | None = None

    @property
    def waits_for(self) -> str | None:
        """What the job waits for, in words."""
        if not self.waiting_for:
            return None
        return waiting_words(
            self.waiting_for,
            self.waiting_behind,
            release=self.needs_release,
            schema=self.needs_schema,
        )

    @property
    def best(self) -> AttemptView | None:
        """The best attempt, whose answer is the job's, whether it is good enough or not."""
        number = self.best_attempt
        return next((each for each in self.attempts if each.plan.number == number), None)


@dataclass(frozen=True, kw_only=True)
class Event:
    id: str
    type: str
    job_id: str
    data: Mapping[str, Any]


class LedgerClock(Protocol):
    def now(self) -> float:
        """Return the ledger's time, which all timestamps and leases use."""


class LedgerReader(LedgerClock, Protocol):
    """Reading jobs and events."""

    def job(self, job_id: str) -> JobView | None: ...

    def jobs(self, *, state: str | None = None, limit: int = 50) -> list[JobView]:
        """Return jobs without their attempts, newest first."""

    def events(self, *, after: str = "0", block: float | None = None) -> Iterator[Event]:
        """Yield events after an id, waiting up to ``block`` seconds for the first."""
