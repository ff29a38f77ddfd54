"""Self-repair cycles and their delayed verification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mulligan.policies.cycles.cycle import SelfRepairCycle
from mulligan.policies.jobs.job import Output
from mulligan.tasks.ports.ledger.attempt_ledger import Claim
from mulligan.tasks.ports.ledger.entries import ClaimRefused, Entry, Lease


@dataclass(frozen=True, kw_only=True)
class CycleClaim:
    """A delayed verification in hand: the job's best stored answer."""

    lease: Lease
    cycle_id: str
    claim: Claim
    #: What was answered in other words, if it is stored already.
    output: Output | None = None


@dataclass(frozen=True, kw_only=True)
class CycleFailure:
    """Why a delayed verification escalates its cycle."""

    #: Escalations are grouped by it.
    reason: str = "delayed_verification"
    #: What people read instead, if there is more to say: the score, for example.
    detail: str = ""


class CycleLedger(Protocol):
    """Taking delayed verifications and ending cycles."""

    def claim_cycle(
        self, entry: Entry, *, worker: str, lease: float | None = None
    ) -> CycleClaim | ClaimRefused:
        """Take a delayed verification that is due."""

    def store_cycle_output(self, lease: Lease, output: Output) -> bool:
        """Keep what a delayed verification answered in other words; whether the lease held."""

    def refuse_verification(self, lease: Lease, *, reason: str) -> bool:
        """Note that a delayed verification does not count; it may be done again."""

    def settle_cycle(
        self,
        lease: Lease,
        *,
        status: str,
        score: float | None,
        failure: CycleFailure | None = None,
    ) -> bool:
        """End a cycle by its delayed verification. Returns whether the lease held."""

    def cycles(self, *, since: float, limit: int) -> list[SelfRepairCycle]:
        """The newest cycles of a window first."""
