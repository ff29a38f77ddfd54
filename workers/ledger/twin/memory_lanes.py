"""Work done elsewhere and escalations, in the in-memory ledger."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Literal

from mulligan.policies.jobs.job import TERMINAL, Decoding, Output
from mulligan.tasks.ports.ledger import (
    Claim,
    ClaimRefused,
    CycleClaim,
    Ended,
    Entry,
    Escalation,
    EscalationEnd,
    EscalationGroup,
    Lease,
    ParkedCounts,
    SessionNote,
)
from mulligan.workers.ledger import rows
from mulligan.workers.ledger.twin import memory_escalations
from mulligan.workers.ledger.twin.memory_book import RANK_STEP, Book
from mulligan.workers.ledger.twin.memory_rows import attempt_name, cycle_name, job_name
from mulligan.workers.ledger.twin.memory_steps import claim_of
from mulligan.workers.settings.model import Settings


class MemoryLanes:
    """See tasks.ledger.Ledger for what each method promises."""

    _settings: Settings
    _book: Book
    _clock: Callable[[], float]

    # -- lanes ----------------------------------------------------------------------------------

    def next_of(self, subject: str, *, tenant: str | None = None) -> ParkedCounts | None:
        book, lane = self._book, rows.lane(subject, tenant)
        with book.step():
            held = book.holding.get(lane)
            if held is not None:
                entry = Entry.parse(held)
                token = self._row_of(entry).get("token")
                if token and book.leased(held):
                    return ParkedCounts(
                        entry=entry, token=token, expires_at=book.leases[held] / 1000
                    )
                del book.holding[lane]
            waiting = book.lanes.get(lane, {})
            for text in sorted(waiting, key=lambda each: (waiting[each], each)):
                if waiting[text] % RANK_STEP > book.now:
                    continue
                entry = Entry.parse(text)
                match self._free(entry):
                    case "free":
                        return ParkedCounts(entry=entry)
                    case "gone":
                        del waiting[text]
            return None

    def _free(self, entry: Entry) -> Literal["free", "held", "gone"]:
        """Whether an entry can be claimed; what a pause or a quota holds back says so."""
        if entry.kind == "cycle":
            return "free"
        job, attempt = self._book.rows.get(job_name(entry.job_id)), self._row_of(entry)
        if not job or job["state"] in TERMINAL or attempt.get("state") != "queued":
            return "gone"
        found = self._book.held_back(job, attempt)
        if found is None:
            return "free"
        if job.get("waiting_for") != found[0]:
            self._book.set_state(entry.job_id, job["state"], "waiting", found[0])
        return "held"

    def _row_of(self, entry: Entry) -> dict[str, str]:
        if entry.kind == "cycle":
            return self._book.rows.get(cycle_name(entry.cycle_id))
        return self._book.rows.get(attempt_name(entry.job_id, entry.attempt))

    def hold(self, lease: Lease) -> Claim | CycleClaim | ClaimRefused:
        book, entry = self._book, lease.entry
        with book.step():
            row = self._row_of(entry)
            if not row:
                return ClaimRefused("gone")
            alive = row.get("token") == lease.token and book.leased(str(entry))
            if entry.kind == "cycle":
                if row["status"] != "pending_delayed_verification":
                    ours = row.get("settled_by") == lease.token
                    return ClaimRefused("stored" if ours else "finished")
                return cycle_claim(book, lease, row) if alive else ClaimRefused("lost")
            if row["state"] == "settled":
                return ClaimRefused("stored" if row["settled_by"] == lease.token else "finished")
            if row["state"] == "verifying" and row.get("output_by") == lease.token:
                return ClaimRefused("verifying")
            return claim_of(book, lease, entry) if alive else ClaimRefused("lost")

    def session(self, subject: str, *, tenant: str | None = None) -> list[SessionNote]:
        with self._book.step():
            notes = self._book.sessions.get(rows.lane(subject, tenant), {})
            since = self._book.now - self._settings.guard_window * 1000
            found = sorted((at, text) for text, at in notes.items() if at >= since)
            return [SessionNote(**json.loads(text)) for _, text in found]

    def store_cycle_output(self, lease: Lease, output: Output) -> bool:
        book, name = self._book, cycle_name(lease.entry.cycle_id)
        with book.step():
            row = book.rows.get(name)
            if row.get("token") != lease.token:
                return False
            if row.get("output_by") == lease.token:
                return True
            stored = {"output": output.model_dump_json(exclude_defaults=True)}
            book.rows.set(name, {**stored, "output_by": lease.token})
            job_id, tokens = lease.entry.job_id, output.usage.total_tokens
            if tokens is not None and job_name(job_id) in book.rows:
                book.rows.add(job_name(job_id), "tokens", tokens)
                book.spend(job_id, tokens)
            return True

    def refuse_verification(self, lease: Lease, *, reason: str) -> bool:
        book, name = self._book, cycle_name(lease.entry.cycle_id)
        with book.step():
            row = book.rows.get(name)
            if row.get("token") != lease.token:
                return False
            refused = json.loads(row.get("delayed_invalid", "{}"))
            refused[reason] = refused.get(reason, 0) + 1
            book.rows.set(name, {"delayed_invalid": json.dumps(refused)})
            return True

    # -- escalations ----------------------------------------------------------------------------

    def groups(
        self, *, only_open: bool = True, tenant: str | None = None, limit: int = 100
    ) -> list[EscalationGroup]:
        with self._book.step():
            return memory_escalations.groups(
                self._book, only_open=only_open, tenant=tenant, limit=limit
            )

    def group(self, signature: str) -> EscalationGroup | None:
        with self._book.step():
            row = self._book.rows.get(memory_escalations.group_name(signature))
            return rows.read_group(row) if row else None

    def escalation(self, escalation_id: str) -> Escalation | None:
        with self._book.step():
            row = self._book.rows.get(memory_escalations.escalation_name(escalation_id))
            return rows.read_escalation(escalation_id, row) if row else None

    def escalations(
        self,
        *,
        signature: str | None = None,
        only_open: bool = True,
        tenant: str | None = None,
        limit: int = 50,
    ) -> list[Escalation]:
        with self._book.step():
            return memory_escalations.escalations(
                self._book, signature=signature, only_open=only_open, tenant=tenant, limit=limit
            )

    def end_escalation(
        self,
        escalation_id: str,
        *,
        how: EscalationEnd,
        by: str,
        note: str = "",
        prompt: str | None = None,
        decoding: Decoding | None = None,
    ) -> Ended | ClaimRefused:
        with self._book.step():
            return memory_escalations.end_escalation(
                self._book,
                escalation_id,
                how=how,
                by=by,
                note=note,
                prompt=prompt,
                decoding=decoding,
                retention=self._settings.cycle_retention,
            )

    def mute(self, signature: str, *, until: float | None) -> bool:
        name = memory_escalations.group_name(signature)
        with self._book.step():
            if name not in self._book.rows:
                return False
            self._book.rows.set(name, {"muted_until": "" if until is None else until * 1000})
            return True


def cycle_claim(book: Book, lease: Lease, row: dict[str, str]) -> CycleClaim | ClaimRefused:
    """A delayed verification in hand, with the job's best answer."""
    entry = lease.entry
    best = book.rows.get(job_name(entry.job_id)).get("best")
    if best is None:
        return ClaimRefused("gone")
    claim = claim_of(book, lease, Entry("attempt", entry.job_id, int(best)))
    stored = row.get("output")
    return CycleClaim(
        lease=lease,
        cycle_id=entry.cycle_id,
        claim=claim,
        output=Output.model_validate_json(stored) if stored else None,
    )
