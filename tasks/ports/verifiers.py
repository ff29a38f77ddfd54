"""Verifiers: the checks of an output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import Output, Workspace


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An output as verifiers see it."""

    output: Output
    #: What the runner answered, or what is left of it after a caller's own repairs.
    text: str
    workspace: Workspace | None = None
    job_id: str = ""
    attempt: int = 1


class Verifier(Protocol):
    """A check of an output."""

    #: Slow verifiers run as Celery tasks of their own on the verify queue. A slow one may have
    #: an attribute ``longest``: the seconds after which its process is taken to be stuck.
    slow: bool

    def verify(self, candidate: Candidate) -> VerificationResult:
        """Judge the candidate; raise VerifierError if no verdict could be reached."""
