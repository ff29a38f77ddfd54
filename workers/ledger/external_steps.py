"""Work done elsewhere, on Redis: what a subject is to do next, and what it did."""

from __future__ import annotations

import json
from typing import Any

from mulligan.policies.jobs.job import Output
from mulligan.tasks.ports.ledger import (
    Claim,
    ClaimRefused,
    CycleClaim,
    Entry,
    Lease,
    NextEntry,
    SessionNote,
)
from mulligan.workers.ledger import job_ids, keys, rows
from mulligan.workers.ledger.partitions import Partitioned


class ExternalSteps(Partitioned):
    """See tasks.ledger.Ledger for what each method promises."""

    def next_of(self, subject: str, *, tenant: str | None = None) -> NextEntry | None:
        lane = rows.lane(subject, tenant)
        answer = self.calls.one(
            "next_of_lane", self._lane_prefix(lane), lane=lane, **self._quotas()
        )
        if answer[0] == "none":
            return None
        entry = Entry.parse(answer[1])
        if answer[0] == "next":
            return NextEntry(entry=entry)
        return NextEntry(entry=entry, token=answer[2], expires_at=float(answer[3]) / 1000)

    def hold(self, lease: Lease) -> Claim | CycleClaim | ClaimRefused:
        entry = lease.entry
        answer = self.calls.one(
            "hold", self._prefix(entry.job_id), entry=str(entry), token=lease.token
        )
        if answer[0] != "held":
            return ClaimRefused("stored" if answer[0] == "settled" else answer[0])
        claim = rows.read_claim(answer, lease)
        if entry.kind != "cycle":
            return claim
        return cycle_claim(answer, lease, claim)

    def session(self, subject: str, *, tenant: str | None = None) -> list[SessionNote]:
        lane = rows.lane(subject, tenant)
        since = (self.now() - self._settings.guard_window) * 1000
        key = keys.session(self._lane_prefix(lane), lane)
        found = self.calls.run("ZRANGEBYSCORE", key, since, "+inf")
        return [SessionNote(**json.loads(text)) for text in found]

    def store_cycle_output(self, lease: Lease, output: Output) -> bool:
        return self._cycle_step(
            "store_cycle_output",
            lease,
            output=output.model_dump_json(exclude_defaults=True),
            tokens=output.usage.total_tokens,
        )

    def refuse_verification(self, lease: Lease, *, reason: str) -> bool:
        return self._cycle_step("refuse_verification", lease, reason=reason)

    def now(self) -> float:
        return self.calls.now()

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

    def _lane_prefix(self, lane: str) -> str:
        partition = job_ids.partition_of_scope(lane, partitions=self._settings.partitions)
        return keys.partition_prefix(self._settings.key_prefix, partition)


def cycle_claim(answer: list[Any], lease: Lease, claim: Claim) -> CycleClaim:
    stored = answer[11] if len(answer) > 11 else ""
    return CycleClaim(
        lease=lease,
        cycle_id=lease.entry.cycle_id,
        claim=claim,
        output=Output.model_validate_json(stored) if stored else None,
    )
