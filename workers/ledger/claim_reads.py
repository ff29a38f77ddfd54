"""Reading what a script answers about a claim. A body that cannot be read escalates its job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mulligan.tasks.ports.ledger import Claim, ClaimRefused, CycleClaim, Lease
from mulligan.workers.ledger.partitions import Partitioned
from mulligan.workers.ledger.stored import rows
from mulligan.workers.ledger.stored.stored_bodies import describe

#: The reason of an escalation whose job cannot be read by any release.
UNREADABLE = "unreadable"


class ClaimReads(Partitioned):
    """Readers of claims."""

    def _read_claim(self, answer: Sequence[Any], lease: Lease) -> Claim | ClaimRefused:
        try:
            return rows.read_claim(answer, lease)
        except ValueError as error:
            return self._escalate_unreadable(lease, error)

    def _read_cycle_claim(self, answer: Sequence[Any], lease: Lease) -> CycleClaim | ClaimRefused:
        try:
            return rows.read_cycle_claim(answer, lease, rows.read_claim(answer, lease))
        except ValueError as error:
            return self._escalate_unreadable(lease, error)

    def _escalate_unreadable(self, lease: Lease, error: ValueError) -> ClaimRefused:
        """Give the claim back uncounted and escalate: every other worker would fail, too."""
        answer = self.calls.one(
            "requeue",
            self._prefix(lease.entry.job_id),
            entry=str(lease.entry),
            token=lease.token,
            delay_ms=0,
            detail=f"its stored body cannot be read: {describe(error)}",
            counter=UNREADABLE,
            max=1,
            reason=UNREADABLE,
        )
        return ClaimRefused(*answer)
