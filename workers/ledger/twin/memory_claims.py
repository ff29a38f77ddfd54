"""Claims of the in-memory ledger: claim.lua, claim_verification.lua and claim_cycle.lua."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from mulligan.policies.jobs.job import TERMINAL
from mulligan.tasks.ports.ledger import Claim, ClaimRefused, CycleClaim, Entry, Lease
from mulligan.workers.ledger.twin.memory_book import Book
from mulligan.workers.ledger.twin.memory_lanes import cycle_claim
from mulligan.workers.ledger.twin.memory_rows import attempt_name, cycle_name, job_name, stamp
from mulligan.workers.ledger.twin.memory_steps import claim_of
from mulligan.workers.settings.model import Settings


class MemoryClaims:
    """See tasks.ledger.Ledger for what each method promises."""

    _settings: Settings
    _book: Book

    def claim(
        self, entry: Entry, *, worker: str, lease: float | None = None, made: bool = False
    ) -> Claim | ClaimRefused:
        held = Lease(entry, secrets.token_hex(8))
        with self._book.step():
            refused = self._refuse_attempt(held, made=made)
            if refused is not None:
                return refused
            name = attempt_name(entry.job_id, entry.attempt)
            if self._book.rows.get(name).get("token") != held.token:
                self._take_attempt(held, worker, lease)
            return claim_of(self._book, held, entry)

    def _refuse_attempt(self, lease: Lease, *, made: bool) -> ClaimRefused | None:
        book, entry = self._book, lease.entry
        name, key = attempt_name(entry.job_id, entry.attempt), str(entry)
        job, attempt = book.rows.get(job_name(entry.job_id)), book.rows.get(name)
        reason = _idle(job, attempt)
        if reason is not None:
            book.drop_entry(key)
            return reason
        if attempt.get("token"):
            if attempt["token"] == lease.token:
                return None  # our own claim, whose answer was lost on the way
            if book.leased(key):
                return ClaimRefused("held")
            book.rows.set(name, {"token": ""})
        if float(attempt.get("not_before", 0)) > book.now:
            return ClaimRefused("early")
        refused = None if made else self._blocked(entry, job, attempt)
        if refused is not None:
            return refused
        cause, detail = "", ""
        if float(job["deadline_at"]) < book.now:
            cause, detail = "deadline", "the job's deadline passed"
        elif int(attempt.get("claims", 0)) >= self._settings.max_claims:
            cause = "worker_lost"
            lost = self._settings.max_claims
            detail = f"{lost} workers were lost while running attempt {entry.attempt}"
        if not cause:
            return None
        book.drop_entry(key)
        book.finish(entry.job_id, job["state"], "escalated", reason=cause, detail=detail)
        return ClaimRefused("escalated", cause)

    def _blocked(
        self, entry: Entry, job: Mapping[str, str], attempt: Mapping[str, str]
    ) -> ClaimRefused | None:
        """A pause or a quota in the way. Work done elsewhere stays in its lane meanwhile."""
        book, found = self._book, self._book.held_back(job, attempt)
        if found is None:
            return None
        why, behind = found
        if "lane" not in job:
            since = float(attempt["queued_at"]) if why == "budget" else None
            book.park(str(entry), behind, since=since)
        book.set_state(entry.job_id, job["state"], "waiting", why)
        return ClaimRefused("paused" if why == "pause" else "over_quota")

    def _take_attempt(self, lease: Lease, worker: str, seconds: float | None) -> None:
        book, entry = self._book, lease.entry
        attempt = book.rows.get(attempt_name(entry.job_id, entry.attempt))
        job = book.rows.get(job_name(entry.job_id))
        book.drop_entry(str(entry))
        fields = {"state": "running", "token": lease.token, "worker": worker,
                  "claims": int(attempt.get("claims", 0)) + 1, "claimed_at": stamp(book.now),
                  "hard_at": self._hard_at(seconds),
                  "started_at": attempt.get("started_at", stamp(book.now))}  # fmt: skip
        book.rows.set(attempt_name(entry.job_id, entry.attempt), fields)
        book.lease(str(entry), seconds, tenant=job.get("tenant"))
        if "lane" in job:
            book.hold(job["lane"], str(entry))
        book.set_state(entry.job_id, job["state"], "running")
        told = {"mode": attempt["mode"], "task_type": job["task_type"]}
        if "tenant" in job:
            told["tenant"] = job["tenant"]
        waited = book.now - float(attempt.get("queued_at", book.now))
        book.event(
            "attempt", entry.job_id, attempt=entry.attempt, state="running", waited=waited, **told
        )

    def claim_verification(self, entry: Entry, *, worker: str) -> Claim | ClaimRefused:  # noqa: ARG002 - the Protocol's
        lease = Lease(entry, secrets.token_hex(8))
        book, key, i = self._book, str(entry), entry.index
        name = attempt_name(entry.job_id, entry.attempt)
        with book.step():
            job, attempt = book.rows.get(job_name(entry.job_id)), book.rows.get(name)
            if not job or not attempt:
                book.drop_entry(key)
                return ClaimRefused("gone")
            stored = f"result:{i}" in attempt
            if job["state"] in TERMINAL or attempt["state"] != "verifying" or stored:
                book.drop_entry(key)
                return ClaimRefused("finished")
            if attempt.get(f"vtoken:{i}"):
                if attempt[f"vtoken:{i}"] == lease.token:
                    return claim_of(self._book, lease, entry)
                if book.leased(key):
                    return ClaimRefused("held")
                book.rows.set(name, {f"vtoken:{i}": ""})
            if float(attempt.get(f"vnot_before:{i}", 0)) > book.now:
                return ClaimRefused("early")
            if "queue:verify" in book.paused:
                book.park(key, "queue:verify")
                return ClaimRefused("paused")
            book.drop_entry(key)
            claims = int(attempt.get(f"vclaims:{i}", 0))
            if claims >= self._settings.max_claims:
                detail = f"{claims} workers were lost while verifying attempt {entry.attempt}"
                book.finish(
                    entry.job_id, job["state"], "escalated", reason="worker_lost", detail=detail
                )
                return ClaimRefused("escalated", "worker_lost")
            fields = {f"vtoken:{i}": lease.token, f"vclaims:{i}": claims + 1}
            book.rows.set(name, {**fields, f"vhard:{i}": self._hard_at()})
            book.lease(key)
            return claim_of(self._book, lease, entry)

    def claim_cycle(
        self,
        entry: Entry,
        *,
        worker: str,  # noqa: ARG002 - the Protocol's
        lease: float | None = None,
    ) -> CycleClaim | ClaimRefused:
        held = Lease(entry, secrets.token_hex(8))
        book, key, name = self._book, str(entry), cycle_name(entry.cycle_id)
        with book.step():
            cycle = book.rows.get(name)
            if not cycle or cycle["status"] != "pending_delayed_verification":
                book.drop_entry(key)
                return ClaimRefused("finished" if cycle else "gone")
            if cycle.get("token") == held.token:
                return cycle_claim(book, held, cycle)
            if cycle.get("token") and book.leased(key):
                return ClaimRefused("held")
            refused = self._refuse_cycle(entry, cycle)
            if refused is not None:
                return refused
            fields = {"token": held.token, "claims": int(cycle.get("claims", 0)) + 1}
            book.rows.set(name, {**fields, "hard_at": self._hard_at(lease)})
            book.lease(key, lease)
            job = book.rows.get(job_name(entry.job_id))
            if job.get("verify_on") == "lane":
                book.hold(job["lane"], key)
            return cycle_claim(book, held, book.rows.get(name))

    def _refuse_cycle(self, entry: Entry, cycle: Mapping[str, str]) -> ClaimRefused | None:
        book, key, due_at = self._book, str(entry), float(cycle["due_at"])
        if due_at > book.now:
            return ClaimRefused("early")
        job = book.rows.get(job_name(entry.job_id))
        on = job.get("verify_on", "verify")
        if f"queue:{on}" in book.paused:
            book.park(key, f"queue:{on}")
            return ClaimRefused("paused")
        book.drop_entry(key)
        if job and job["state"] not in TERMINAL:
            # The job is still being repaired: look again after another delay.
            again = book.now + max(1.0, self._settings.lease) * 1000
            book.rows.set(cycle_name(entry.cycle_id), {"due_at": stamp(again)})
            book.await_verification(entry.cycle_id, on, job.get("lane", ""), again)
            return ClaimRefused("early")
        first_due = float(cycle.get("first_due_at", due_at))
        stale = book.now - first_due > self._settings.stale_after * 1000
        lost = int(cycle.get("claims", 0)) >= self._settings.max_claims
        if not stale and not lost and job.get("best"):
            return None
        reason = "missing_delayed_verification" if stale else "worker_lost"
        book.close_cycle(entry.job_id, entry.cycle_id, "escalated", reason)
        return ClaimRefused("escalated", reason)

    def _hard_at(self, seconds: float | None = None) -> str:
        return stamp(self._book.now + (seconds or self._settings.hard_limit) * 1000)


def _idle(job: Mapping[str, str], attempt: Mapping[str, str]) -> ClaimRefused | None:
    """Why there is nothing to do for an attempt, whoever asks."""
    if not job or not attempt:
        return ClaimRefused("gone")
    if job["state"] in TERMINAL or attempt["state"] == "settled":
        return ClaimRefused("finished")
    return ClaimRefused("verifying") if attempt["state"] == "verifying" else None
