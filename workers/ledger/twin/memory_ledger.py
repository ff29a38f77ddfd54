"""The ledger in memory: for tests, and for trying things out without Redis.

Each method mirrors one Lua script; tests/integration/test_ledger_contract_*.py hold both to the
same contract.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from mulligan.policies.cycles.cycle import SelfRepairCycle
from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import TERMINAL, Output
from mulligan.tasks.ports.ledger import (
    Accepted,
    Claim,
    ClaimRefused,
    Entry,
    Event,
    JobView,
    KeyConflict,
    Lease,
    Publication,
    Settlement,
    Submission,
)
from mulligan.workers.ledger import rows
from mulligan.workers.ledger.twin.memory_book import Book
from mulligan.workers.ledger.twin.memory_claims import MemoryClaims
from mulligan.workers.ledger.twin.memory_lanes import MemoryLanes
from mulligan.workers.ledger.twin.memory_rows import (
    attempt_name,
    cycle_name,
    job_name,
    priority_of,
    remedy_name,
    stamp,
)
from mulligan.workers.ledger.twin.memory_steps import (
    claim_of,
    requeue_entry,
    settle_attempt,
    sweep_book,
)
from mulligan.workers.settings.model import Settings


class MemoryLedger(MemoryClaims, MemoryLanes):
    """See tasks.ledger.Ledger for what each method promises."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.time,
        live: Callable[[], Settings] | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._book = Book(settings, clock, live or (lambda: settings))

    # -- accept ---------------------------------------------------------------------------------

    def accept(self, submissions: Sequence[Submission]) -> list[Accepted | KeyConflict]:
        bodies = [s.job.model_dump_json(exclude_defaults=True) for s in submissions]
        with self._book.step():
            return [self._accept(s, body) for s, body in zip(submissions, bodies, strict=True)]

    def conflicts(self, submissions: Sequence[Submission]) -> set[str]:
        with self._book.step():
            seen = {s.id: self._book.rows.get(job_name(s.id)).get("digest") for s in submissions}
        return {s.id for s in submissions if seen[s.id] not in (None, rows.digest(s.job))}

    def _accept(self, submission: Submission, body: str) -> Accepted | KeyConflict:
        book, job_id, job = self._book, submission.id, submission.job
        digest = rows.digest(job)
        seen = book.rows.get(job_name(job_id)).get("digest")
        if seen == digest:
            return Accepted(id=job_id, status="seen")
        if seen is not None:
            return KeyConflict(id=job_id)
        fields = {"body": body, "digest": digest, "task_type": job.task_type, "name": job.label,
                  "memory": rows.memory_key(job_id, job), "attempt": 1, "loop": 0,
                  "seconds": 0, "created_at": stamp(book.now), "priority": job.priority,
                  "deadline_at": stamp(book.now + job.deadline * 1000)}  # fmt: skip
        if job.on_done is not None:
            fields["on_done"] = job.on_done.queue
        tenant, lane = rows.tenant_of(job, self._settings), rows.lane_of(job, self._settings)
        fields |= {"tenant": tenant} if tenant else {}
        fields |= {"lane": lane} if lane else {}
        book.rows.set(job_name(job_id), fields)
        first = {"mode": "initial", "state": "queued", "queued_at": stamp(book.now)}
        book.rows.set(attempt_name(job_id, 1), first)
        book.set_state(job_id, None, "queued")
        book.index("jobs")[job_id] = book.now
        entry = Entry("attempt", job_id, 1)
        publication = None
        if lane is not None:
            book.offer(lane, str(entry), "initial", book.now)
            book.await_deadline(job_id, book.now + job.deadline * 1000)
        else:
            book.hand_out(str(entry), "attempt", job.priority)
            publication = Publication(entry, "attempt", job.priority)
        told = {"tenant": tenant} if tenant else {}
        book.event("job", job_id, state="queued", task_type=job.task_type, name=job.label, **told)
        return Accepted(id=job_id, status="accepted", publication=publication)

    # -- leases ---------------------------------------------------------------------------------

    def renew(self, leases: Sequence[Lease]) -> set[Entry]:
        with self._book.step():
            return {lease.entry for lease in leases if not self._renew(lease)}

    def _renew(self, lease: Lease) -> bool:
        book, entry = self._book, lease.entry
        if entry.kind == "cycle":
            row = book.rows.get(cycle_name(entry.cycle_id))
        else:
            row = book.rows.get(attempt_name(entry.job_id, entry.attempt))
        slow = entry.kind == "verification"
        token, hard = (f"vtoken:{entry.index}", f"vhard:{entry.index}") if slow else (
            "token", "hard_at")  # fmt: skip
        if row.get(token) != lease.token or float(row.get(hard, 0)) <= book.now:
            return False
        if str(entry) in book.leases:
            book.lease(str(entry))
        return True

    # -- writing about an attempt ---------------------------------------------------------------

    def store_output(
        self,
        lease: Lease,
        output: Output,
        *,
        verifications: Sequence[int] = (),
        given: Sequence[VerificationResult] = (),
        priority: int = 5,
    ) -> list[Publication] | ClaimRefused:
        entry, book = lease.entry, self._book
        text = output.model_dump_json(exclude_defaults=True)
        name = attempt_name(entry.job_id, entry.attempt)
        with book.step():
            attempt = book.rows.get(name)
            repeated = attempt.get("output_by") == lease.token
            if not repeated and attempt.get("token") != lease.token:
                return ClaimRefused("lost")
            front = priority_of(attempt["mode"], priority)
            handed = [Entry("verification", entry.job_id, entry.attempt, i) for i in verifications]
            publications = [Publication(each, "verify", front) for each in handed]
            if repeated:
                return publications
            kept = {"output": text, "output_by": lease.token, "output_at": stamp(book.now)}
            book.rows.set(name, kept)
            if output.usage.total_tokens is not None:
                book.rows.add(job_name(entry.job_id), "tokens", output.usage.total_tokens)
                book.spend(entry.job_id, output.usage.total_tokens)
            book.rows.add_seconds(job_name(entry.job_id), "seconds", output.elapsed_seconds)
            if attempt["mode"] != "initial":
                name_of, spent = job_name(entry.job_id), output.elapsed_seconds
                book.rows.add_seconds(name_of, "repair_seconds", spent)
            for i, result in enumerate(given):
                found = result.model_dump_json(exclude_defaults=True)
                book.rows.set(name, {f"result:{i}": found})
            if given:
                found = " ".join(str(i) for i in range(len(given)))
                book.rows.set(name, {"verifications": found})
            if not handed:
                return []
            places = " ".join(str(i) for i in verifications)
            fields = {"state": "verifying", "token": "", "pending": len(handed)}
            book.rows.set(name, {**fields, "verifications": places})
            book.drop_lease(str(entry))
            for each in handed:
                book.hand_out(str(each), "verify", front)
            book.event("attempt", entry.job_id, attempt=entry.attempt, state="verifying")
            return publications

    def store_result(
        self, lease: Lease, result: VerificationResult, *, elapsed: float
    ) -> Claim | ClaimRefused:
        entry, book = lease.entry, self._book
        text = result.model_dump_json(exclude_defaults=True)
        name = attempt_name(entry.job_id, entry.attempt)
        whole = Lease(Entry("attempt", entry.job_id, entry.attempt), lease.token)
        with book.step():
            attempt = book.rows.get(name)
            if attempt.get(f"vtoken:{entry.index}") != lease.token:
                return ClaimRefused("lost")
            if f"result:{entry.index}" in attempt:
                # A repeat of our own call, whose answer was lost on the way.
                ours = attempt.get("token") == lease.token
                return claim_of(self._book, whole, whole.entry) if ours else ClaimRefused("stored")
            book.rows.set(name, {f"result:{entry.index}": text})
            book.rows.add_seconds(job_name(entry.job_id), "seconds", elapsed)
            book.leases.pop(str(entry), None)
            if book.rows.add(name, "pending", -1) > 0:
                return ClaimRefused("stored")
            fields = {"state": "running", "token": lease.token, "claims": 0}
            book.rows.set(name, {**fields, "hard_at": self._hard_at()})
            tenant = book.rows.get(job_name(entry.job_id)).get("tenant")
            book.lease(str(whole.entry), tenant=tenant)
            return claim_of(self._book, whole, whole.entry)

    def settle(self, lease: Lease, settlement: Settlement) -> list[Publication] | ClaimRefused:
        request = rows.settlement_request(settlement)
        with self._book.step():
            return settle_attempt(self._book, lease, settlement, request)

    def requeue(
        self,
        lease: Lease,
        *,
        delay: float,
        detail: str,
        waiting_for: str = "delay",
        counter: str | None = None,
        limit: int | None = None,
        reason: str = "",
    ) -> Publication | ClaimRefused | None:
        with self._book.step():
            return requeue_entry(
                self._book,
                lease,
                delay=delay,
                detail=detail,
                waiting_for=waiting_for,
                counter=counter,
                limit=limit,
                reason=reason,
            )

    # -- cycles ---------------------------------------------------------------------------------

    def settle_cycle(
        self, lease: Lease, *, status: str, score: float | None, reason: str, valid: bool = True
    ) -> bool:
        book, name = self._book, cycle_name(lease.entry.cycle_id)
        with book.step():
            cycle = book.rows.get(name)
            if cycle.get("settled_by") == lease.token and cycle["status"] == status:
                return True
            if cycle.get("token") != lease.token:
                return False
            if cycle["status"] != "pending_delayed_verification":
                return False
            ended = {"score": "" if score is None else score, "token": ""}
            book.rows.set(name, {**ended, "settled_by": lease.token})
            if valid:
                book.rows.set(name, {"delayed_valid": "1"})
            book.close_cycle(cycle["job_id"], lease.entry.cycle_id, status, reason)
            return True

    # -- outbox, pauses, cancelling ---------------------------------------------------------------

    def stamp(self, entries: Sequence[Entry]) -> None:
        with self._book.step():
            for entry in entries:
                row = self._book.outbox.get(str(entry))
                if entry.kind == "done":
                    self._book.drop_entry(str(entry))
                    continue
                if row is None or row.published < 0:
                    continue
                row.published = self._book.now
                if row.at is not None:
                    wait = self._settings.republish_after * 1000 * 2 ** min(row.tries, 10)
                    row.at, row.out = self._book.now + wait, True

    def sweep(self, *, empty_queues: Sequence[str]) -> list[Publication]:
        with self._book.step():
            return sweep_book(self._book, self._settings, frozenset(empty_queues))

    def cancel(self, job_id: str, *, detail: str = "") -> str:
        with self._book.step():
            job = self._book.rows.get(job_name(job_id))
            if not job:
                return "gone"
            if job["state"] in TERMINAL:
                return job["state"]
            self._book.drop_entry(f"a:{job_id}/{job['attempt']}")
            self._book.finish(job_id, job["state"], "cancelled", reason="cancelled", detail=detail)
            return "cancelled"

    def pause(self, what: str) -> None:
        with self._book.step():
            self._book.paused.add(what)

    def resume(self, what: str) -> None:
        with self._book.step():
            self._book.paused.discard(what)

    def paused(self) -> list[str]:
        with self._book.step():
            return sorted(self._book.paused)

    # -- reading --------------------------------------------------------------------------------

    def remedies(self, job_id: str, coarse: str) -> Mapping[str, tuple[int, int]]:
        with self._book.step():
            return rows.remedies(self._book.rows.get(remedy_name(job_id, coarse)))

    def job(self, job_id: str) -> JobView | None:
        with self._book.step():
            hashes = self._book.rows
            raw = hashes.get(job_name(job_id))
            if not raw:
                return None
            numbers = range(1, int(raw["attempt"]) + 1)
            loops = range(1, max(int(raw["loop"]), int(raw.get("past_loops", 0))) + 1)
            ids = [f"{job_id}:{n}:{loop}" for n in numbers for loop in loops]
            found = [(i, hashes.get(cycle_name(i))) for i in ids if cycle_name(i) in hashes]
            cycles = [rows.read_cycle(i, row) for i, row in found]
            attempts = [hashes.get(attempt_name(job_id, n)) for n in numbers]
            return rows.read_job(job_id, raw, attempts, cycles)

    def jobs(self, *, state: str | None = None, limit: int = 50) -> list[JobView]:
        with self._book.step():
            found = self._book.newest(f"jobs:{state}" if state else "jobs")[:limit]
            hashes = [(i, self._book.rows.get(job_name(i))) for i in found]
            read = [rows.read_job(i, row, (), ()) for i, row in hashes if row]
            return sorted(read, key=lambda view: view.created_at, reverse=True)

    def cycles(self, *, since: float, limit: int) -> list[SelfRepairCycle]:
        with self._book.step():
            found = self._book.newest("cycles", since=since * 1000)[:limit]
            hashes = [(i, self._book.rows.get(cycle_name(i))) for i in found]
            return [rows.read_cycle(i, row) for i, row in hashes if row]

    def events(self, *, after: str = "0", block: float | None = None) -> Iterator[Event]:
        """Events after an id, or ``$`` for the next ones."""
        for event_id, text in self._book.events_after(after, block):
            yield rows.read_event(event_id, text)

    def now(self) -> float:
        return self._clock()
