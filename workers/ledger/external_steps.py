"""External work on Redis: a subject's next entry, and its session."""

from __future__ import annotations

import json
from typing import Any

from mulligan.tasks.ports.ledger import (
    Claim,
    ClaimRefused,
    CycleClaim,
    Entry,
    Lease,
    NextEntry,
    SessionNote,
)
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.claim_reads import ClaimReads
from mulligan.workers.ledger.stored import job_ids, rows

#: What the script `hold` answers, if a claim is refused with another word.
_REFUSALS: dict[str, Any] = {"settled": "stored", "taken": "held"}


class ExternalSteps(ClaimReads):
    """See tasks.ports.ledger for the methods' contracts."""

    def next_of(
        self, subject: str, *, tenant: str | None = None, owner: str | None = None
    ) -> NextEntry | None:
        lane = rows.lane(subject, tenant)
        self._write_limits()
        answer = self.calls.one("next_of_lane", self._lane_prefix(lane), lane=lane, owner=owner)
        if answer[0] == "none":
            return None
        entry = Entry.parse(answer[1])
        if answer[0] == "next":
            return NextEntry(entry=entry)
        return NextEntry(entry=entry, token=answer[2], expires_at=float(answer[3]) / 1000)

    def hold(self, lease: Lease, *, report: str | None = None) -> Claim | CycleClaim | ClaimRefused:
        entry = lease.entry
        answer = self.calls.one(
            "hold", self._prefix(entry.job_id), entry=str(entry), token=lease.token, report=report
        )
        if answer[0] != "held":
            return ClaimRefused(_REFUSALS.get(answer[0], answer[0]))
        if entry.kind == "cycle":
            return self._read_cycle_claim(answer, lease)
        return self._read_claim(answer, lease)

    def session(self, subject: str, *, tenant: str | None = None) -> list[SessionNote]:
        lane = rows.lane(subject, tenant)
        since = (self.now() - self._settings.guard_window) * 1000
        key = keys.session(self._lane_prefix(lane), lane)
        found = self.calls.run("ZRANGEBYSCORE", key, since, "+inf")
        known = SessionNote.__dataclass_fields__
        notes = (json.loads(text) for text in found)
        return [SessionNote(**{k: note[k] for k in note if k in known}) for note in notes]

    def _lane_prefix(self, lane: str) -> str:
        partition = job_ids.partition_of_scope(lane, partitions=self.numbers().first)
        return keys.partition_prefix(self._settings.key_prefix, partition)
