"""Jobs on their way into the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from mulligan.policies.jobs.job import Job
from mulligan.tasks.ports.ledger.entries import Publication


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


@dataclass(frozen=True, kw_only=True)
class KeyConflict:
    """The same idempotency key with another payload."""

    id: str


class JobLedger(Protocol):
    """Accepting and cancelling jobs."""

    def accept(self, submissions: Sequence[Submission]) -> list[Accepted | KeyConflict]:
        """Write jobs and the outbox entries of their first attempts, each atomically."""

    def conflicts(self, submissions: Sequence[Submission]) -> set[str]:
        """The ids of those that ``accept`` would answer with Conflict now. Writes nothing."""

    def cancel(self, job_id: str, *, detail: str = "") -> str:
        """Cancel; answers with the state the job is then in, or ``gone``."""
