"""The part of the ledger for accepting and cancelling jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import Job, Output
from mulligan.tasks.ports.ledger.entries import Publication


@dataclass(frozen=True, kw_only=True)
class BroughtAttempt:
    """A first attempt that a subject made before its job was submitted."""

    #: Claims the attempt; a repetition has the same one.
    token: str
    output: Output
    #: The results that were reported with the answer.
    given: Sequence[VerificationResult]
    #: The digest of the whole report.
    report: str


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A validated job to be stored, with its first attempt if that was already made."""

    id: str
    job: Job
    brought: BroughtAttempt | None = None
    #: The producer that submitted it, if the console knows; see Token.owner.
    owner: str | None = None

    @property
    def name(self) -> str:
        """The id without its partition: the same for all jobs with one idempotency key."""
        return self.id.partition("-")[2]


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """A stored job: a new one (``accepted``), or the earlier one with this key (``seen``)."""

    id: str
    status: Literal["accepted", "seen"]
    publication: Publication | None = None


@dataclass(frozen=True, kw_only=True)
class KeyConflict:
    """The same idempotency key with another payload."""

    id: str


class JobLedger(Protocol):
    """Accepting and cancelling jobs."""

    def accept(self, submissions: Sequence[Submission]) -> list[Accepted | KeyConflict]:
        """Write jobs and the outbox entries of their first attempts, each atomically."""

    def conflicts(self, submissions: Sequence[Submission]) -> set[str]:
        """Return the ids that ``accept`` would answer with KeyConflict now. Write nothing."""

    def cancel(self, job_id: str, *, detail: str = "", signalled: bool = False) -> str:
        """Cancel a job. Return its state afterwards, or ``gone``.

        The caller of a user's task is informed, unless the task itself signalled its end to Celery.
        """
