"""The part of the ledger for self-repair cycles and their delayed verification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mulligan.policies.cycles.cycle import SelfRepairCycle
from mulligan.policies.jobs.job import Output
from mulligan.tasks.ports.ledger.attempt_ledger import Claim
from mulligan.tasks.ports.ledger.entries import ClaimRefused, Entry, Lease, Publication


@dataclass(frozen=True, kw_only=True)
class CycleClaim:
    """A claimed delayed verification, with the job's best stored answer."""

    lease: Lease
    cycle_id: str
    claim: Claim
    #: The stored answer to the reformulated task, if any.
    output: Output | None = None


@dataclass(frozen=True, kw_only=True)
class CycleFailure:
    """Why a delayed verification escalates its cycle."""

    #: Escalations are grouped by it.
    reason: str = "delayed_verification"
    #: Details for people, if any, such as the score.
    detail: str = ""


class CycleLedger(Protocol):
    """Claiming delayed verifications and ending cycles."""

    def claim_cycle(
        self,
        entry: Entry,
        *,
        worker: str,
        lease: float | None = None,
        holder: str | None = None,
    ) -> CycleClaim | ClaimRefused:
        """Claim a delayed verification that is due."""

    def store_cycle_output(self, lease: Lease, output: Output) -> list[Publication] | ClaimRefused:
        """Store the answer to the reformulated task. Return what to publish now."""

    def refuse_verification(self, lease: Lease, *, reason: str) -> bool:
        """Note that a delayed verification does not count; it may be repeated."""

    def settle_cycle(
        self,
        lease: Lease,
        *,
        status: str,
        score: float | None,
        failure: CycleFailure | None = None,
        report: str | None = None,
    ) -> bool:
        """End a cycle by its delayed verification. Return whether the lease was valid.

        ``report``: the digest of a subject's report.
        """

    def cycles(self, *, since: float, limit: int) -> list[SelfRepairCycle]:
        """Return the cycles of a window, newest first."""
