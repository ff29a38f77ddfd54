"""The result of handling one message, which the worker turns into a Celery state."""

from __future__ import annotations

from dataclasses import dataclass

from mulligan.policies.failures.failure import VerificationResult
from mulligan.tasks.jobs.settle import Settled
from mulligan.tasks.ports.ledger import ClaimRefused, Entry


@dataclass(frozen=True, kw_only=True)
class VerificationPending:
    """The answer is stored; its slow verifications are queued."""

    entry: Entry
    verifications: int


@dataclass(frozen=True, kw_only=True)
class VerificationStored:
    """One slow verification is stored; others are still running."""

    entry: Entry
    result: VerificationResult


@dataclass(frozen=True, kw_only=True)
class Requeued:
    """The same attempt will run again: a provider or a verifier was unavailable."""

    entry: Entry
    delay: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class Rechecked:
    """A delayed verification has ended its cycle."""

    entry: Entry
    score: float | None
    status: str


Outcome = Settled | VerificationPending | VerificationStored | Requeued | Rechecked | ClaimRefused
