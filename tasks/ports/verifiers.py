"""The port for verifiers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import Output, Workspace


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An output as verifiers see it."""

    output: Output
    #: The runner's answer, or the caller's repaired version of it.
    text: str
    workspace: Workspace | None = None
    job_id: str = ""
    attempt: int = 1


class Verifier(Protocol):
    """A check of an output."""

    #: Slow verifiers run as separate Celery tasks on the verify queue. A slow one may have an
    #: attribute ``longest``: the seconds after which it counts as stuck.
    slow: bool

    def verify(self, candidate: Candidate) -> VerificationResult:
        """Check the candidate. Raise VerifierError if there is no verdict."""
