"""Self-repair cycles on Redis: their delayed verification and their end."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from mulligan.policies.cycles.cycle import SelfRepairCycle
from mulligan.policies.jobs.job import Output
from mulligan.tasks.ports.ledger import (
    ClaimRefused,
    CycleClaim,
    CycleFailure,
    Entry,
    Lease,
    Publication,
)
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.claim_reads import ClaimReads
from mulligan.workers.ledger.stored import rows
from mulligan.workers.ledger.stored.stored_bodies import read_records


class CycleSteps(ClaimReads):
    """See tasks.ports.ledger for the methods' contracts."""

    def claim_cycle(
        self,
        entry: Entry,
        *,
        worker: str,
        lease: float | None = None,
        holder: str | None = None,
    ) -> CycleClaim | ClaimRefused:
        self._write_limits()
        token, sent_at = self.new_token(), self.calls.clock.boottime()
        answer = self.calls.one(
            "claim_cycle",
            self._prefix(entry.job_id),
            **self._lease_terms(lease),
            cycle=entry.cycle_id,
            token=token,
            worker=worker,
            holder=holder,
            postpone_ms=max(1.0, self._settings.lease) * 1000,
        )
        if answer[0] != "claimed":
            return ClaimRefused(*answer)
        return self._read_cycle_claim(answer, Lease(entry, token, sent_at))

    def store_cycle_output(self, lease: Lease, output: Output) -> list[Publication] | ClaimRefused:
        answer = self.calls.one(
            "store_cycle_output",
            self._prefix(lease.entry.job_id),
            cycle=lease.entry.cycle_id,
            token=lease.token,
            output=output.model_dump_json(exclude_defaults=True),
            **rows.spending_request(output),
            **self._needs(output),
        )
        return ClaimRefused("lost") if answer[0] == "lost" else rows.publications(answer[1])

    def refuse_verification(self, lease: Lease, *, reason: str) -> bool:
        return self._cycle_step("refuse_verification", lease, reason=reason, call=self.new_token())

    def settle_cycle(
        self,
        lease: Lease,
        *,
        status: str,
        score: float | None,
        failure: CycleFailure | None = None,
        report: str | None = None,
    ) -> bool:
        answer = self.calls.one(
            "settle_cycle",
            self._prefix(lease.entry.job_id),
            cycle=lease.entry.cycle_id,
            token=lease.token,
            status=status,
            score=score,
            reason=failure.reason if failure else "",
            detail=(failure.detail if failure else "") or None,
            report=report,
        )
        return bool(answer[0] == "settled")

    def cycles(
        self, *, since: float, limit: int, tenant: str | None = None
    ) -> list[SelfRepairCycle]:
        """Return the newest ``limit`` cycles. A tenant filters these; it does not look further."""
        found: list[str] = []
        for prefix in self.prefixes():
            found += self.calls.run(
                "ZREVRANGEBYSCORE", keys.cycles(prefix), "+inf", since * 1000, "LIMIT", 0, limit
            )
        names = [keys.cycle(self._prefix(i), i) for i in found]
        read = read_records(
            (name, partial(_read_with_tenant, i, row))
            for name, i, row in zip(names, found, self.calls.records(names), strict=True)
            if row
        )
        newest = sorted(read, key=lambda each: each[0].created_at, reverse=True)[:limit]
        return [cycle for cycle, owner in newest if tenant is None or owner == tenant]

    def _cycle_step(self, script: str, lease: Lease, **request: Any) -> bool:
        entry = lease.entry
        answer = self.calls.one(
            script,
            self._prefix(entry.job_id),
            cycle=entry.cycle_id,
            token=lease.token,
            **request,
        )
        return bool(answer[0] != "lost")


def _read_with_tenant(cycle_id: str, row: Mapping[str, str]) -> tuple[SelfRepairCycle, str | None]:
    return rows.read_cycle(cycle_id, row), row.get("tenant")
