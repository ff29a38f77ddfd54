"""The ledger on Redis: one Lua script per step, one round trip per step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import Output
from mulligan.tasks.ports.errors import LedgerRefused, TransportFault
from mulligan.tasks.ports.ledger import (
    Claim,
    ClaimRefused,
    Entry,
    EntryRequeued,
    Event,
    JobView,
    Lease,
    NextAttempt,
    Publication,
    Settlement,
)
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.accept_steps import answer_request
from mulligan.workers.ledger.cycle_steps import CycleSteps
from mulligan.workers.ledger.escalation_steps import EscalationSteps
from mulligan.workers.ledger.external_steps import ExternalSteps
from mulligan.workers.ledger.job_pages import JobPages
from mulligan.workers.ledger.move_steps import MoveSteps
from mulligan.workers.ledger.pauses import Pauses
from mulligan.workers.ledger.status_reads import StatusReads
from mulligan.workers.ledger.stored import rows
from mulligan.workers.ledger.stored.amounts import amounts
from mulligan.workers.ledger.stored.stored_bodies import read_record, read_records
from mulligan.workers.ledger.stores.event_streams import in_order
from mulligan.workers.ledger.stores.ledger_stores import LedgerStores


class RedisLedger(
    MoveSteps,
    CycleSteps,
    ExternalSteps,
    EscalationSteps,
    Pauses,
    JobPages,
    StatusReads,
    LedgerStores,
):
    """See tasks.ports.ledger for the methods' contracts."""

    # -- claims ---------------------------------------------------------------------------------

    def claim(
        self,
        entry: Entry,
        *,
        worker: str,
        lease: float | None = None,
        holder: str | None = None,
    ) -> Claim | ClaimRefused:
        self._write_limits()
        terms = self._lease_terms(lease)
        request = {"id": entry.job_id, "n": entry.attempt, "holder": holder, **terms}
        return self._claim("claim", entry, worker, **request)

    def take_over(self, entry: Entry, *, worker: str) -> Claim | ClaimRefused:
        name = keys.attempt(self._prefix(entry.job_id), entry.job_id, entry.attempt)
        (attempt,) = self.calls.records([name])
        if not attempt.get("token") or attempt.get("worker") != worker:
            return ClaimRefused("finished" if attempt.get("state") == "settled" else "lost")
        # A claim that is repeated with its token returns what the first one returned.
        request = {"id": entry.job_id, "n": entry.attempt, **self._lease_terms(None)}
        return self._claim("claim", entry, worker, token=attempt["token"], **request)

    def claim_verification(self, entry: Entry, *, worker: str) -> Claim | ClaimRefused:
        return self._claim(
            "claim_verification",
            entry,
            worker,
            id=entry.job_id,
            n=entry.attempt,
            index=entry.index,
            **self._lease_terms(),
        )

    def _claim(
        self, script: str, entry: Entry, worker: str, *, token: str | None = None, **request: Any
    ) -> Claim | ClaimRefused:
        token, sent_at = token or self.new_token(), self.calls.clock.boottime()
        request |= {"token": token, "worker": worker}
        answer = self.calls.one(script, self._prefix(entry.job_id), **request)
        if answer[0] != "claimed":
            return ClaimRefused(*answer)
        return self._read_claim(answer, Lease(entry, token, sent_at))

    def name_provider(self, lease: Lease, provider: str) -> ClaimRefused | None:
        answer = self.calls.one(
            "name_provider",
            self._prefix(lease.entry.job_id),
            entry=str(lease.entry),
            token=lease.token,
            provider=provider,
        )
        return None if answer[0] == "named" else ClaimRefused(*answer)

    def renew(self, leases: Sequence[Lease]) -> set[Entry]:
        by_prefix: dict[str, list[dict[str, str]]] = {}
        for lease in leases:
            renewed = {"entry": str(lease.entry), "token": lease.token}
            if lease.metered:
                renewed["metered"] = amounts(lease.metered)
            if lease.progress is not None:
                renewed["progress"] = lease.progress.as_json()
            by_prefix.setdefault(self._prefix(lease.entry.job_id), []).append(renewed)
        terms = {"lease_ms": self._settings.lease * 1000}
        requests = [(prefix, {**terms, "leases": batch}) for prefix, batch in by_prefix.items()]
        return {Entry.parse(text) for lost in self.calls.many("renew", requests) for text in lost}

    # -- writing about an attempt ---------------------------------------------------------------

    def store_output(
        self,
        lease: Lease,
        output: Output,
        *,
        verifications: Sequence[int] = (),
        given: Sequence[VerificationResult] = (),
        priority: int = 5,
        report: str | None = None,
        money: float | None = None,
    ) -> list[Publication] | ClaimRefused:
        entry = lease.entry
        answer = self.calls.one(
            "store_output",
            self._prefix(entry.job_id),
            id=entry.job_id,
            n=entry.attempt,
            token=lease.token,
            verifications=list(verifications),
            priority=priority,
            report=report,
            money=money,
            lease_ms=self._settings.lease * 1000,
            **answer_request(output, given),
            **self._needs(output, *given),
        )
        if answer[0] != "stored":
            return ClaimRefused(answer[0])
        handed_out = [
            Publication(
                Entry("verification", entry.job_id, entry.attempt, index), "verify", int(answer[1])
            )
            for index in verifications
            if answer[3] == "due"
        ]
        return handed_out + rows.publications(answer[2])

    def store_result(
        self, lease: Lease, result: VerificationResult, *, elapsed: float
    ) -> Claim | ClaimRefused:
        entry, sent_at = lease.entry, self.calls.clock.boottime()
        answer = self.calls.one(
            "store_result",
            self._prefix(entry.job_id),
            **self._lease_terms(),
            id=entry.job_id,
            n=entry.attempt,
            index=entry.index,
            token=lease.token,
            seconds=elapsed,
            result=result.model_dump_json(exclude_defaults=True),
            **self._needs(result),
        )
        if answer[0] != "last":
            return ClaimRefused(answer[0])
        return self._read_claim(
            answer, Lease(Entry("attempt", entry.job_id, entry.attempt), lease.token, sent_at)
        )

    def begin_merge(
        self, lease: Lease, results: Mapping[int, VerificationResult], *, index: int, priority: int
    ) -> list[Publication] | ClaimRefused:
        entry = lease.entry
        answer = self.calls.one(
            "begin_merge",
            self._prefix(entry.job_id),
            id=entry.job_id,
            n=entry.attempt,
            token=lease.token,
            index=index,
            priority=priority,
            results={
                str(i): result.model_dump_json(exclude_defaults=True)
                for i, result in results.items()
            },
            **self._needs(*results.values()),
        )
        if answer[0] != "handed":
            return ClaimRefused(answer[0])
        merge = Entry("verification", entry.job_id, entry.attempt, index)
        return [Publication(merge, "verify", int(answer[1]))] if answer[2] == "due" else []

    def settle(self, lease: Lease, settlement: Settlement) -> list[Publication] | ClaimRefused:
        then = settlement.then
        plan = then.plan if isinstance(then, NextAttempt) else None
        request = {**rows.settlement_request(settlement), **self._needs(plan)}
        answer = self.calls.one(
            "settle",
            self._prefix(lease.entry.job_id),
            id=lease.entry.job_id,
            n=lease.entry.attempt,
            token=lease.token,
            metered=amounts(lease.metered) if lease.metered else None,
            **request,
        )
        if answer[0] == "lost":
            return ClaimRefused("lost")
        found = []
        if answer[1] and isinstance(then, NextAttempt) and then.delay <= 0:
            entry = Entry("attempt", lease.entry.job_id, then.plan.number)
            found.append(Publication(entry, answer[1], then.priority))
        return found + rows.publications(answer[2])

    def requeue(
        self,
        lease: Lease,
        *,
        delay: float,
        detail: str,
        counter: str | None = None,
        limit: int | None = None,
        reason: str = "",
        fault: TransportFault | None = None,
        unasked: bool = False,
    ) -> EntryRequeued | ClaimRefused:
        answer = self.calls.one(
            "requeue",
            self._prefix(lease.entry.job_id),
            entry=str(lease.entry),
            token=lease.token,
            delay_ms=delay * 1000,
            detail=detail,
            counter=counter,
            max=limit,
            reason=reason,
            fault=rows.fault_request(fault) if fault is not None else None,
            unasked=unasked,
            metered=amounts(lease.metered) if lease.metered else None,
        )
        if answer[0] != "requeued":
            return ClaimRefused(*answer)
        seconds = float(answer[1]) / 1000 if answer[1] else delay
        return EntryRequeued(
            delay=seconds,
            provider_opens_in=float(answer[3]) / 1000 if answer[3] else None,
            released=tuple(rows.publications(answer[2])),
        )

    def release(self, job_id: str, provider: str) -> list[Publication]:
        answer = self.calls.one("release", self._prefix(job_id), reason=f"provider:{provider}")
        return [rows.publication(text) for text in answer]

    # -- outbox, cancelling ----------------------------------------------------------------------

    def stamp(self, entries: Sequence[Entry], *, moved: Sequence[Publication] = ()) -> None:
        by_prefix: dict[str, list[str]] = {}
        for entry in entries:
            by_prefix.setdefault(self._prefix(entry.job_id), []).append(str(entry))
        terms = {
            "republish_ms": self._settings.republish_after * 1000,
            "moved": {str(each.entry): [each.queue, each.priority] for each in moved},
        }
        self.calls.many(
            "stamp", [(p, {**terms, "entries": batch}) for p, batch in by_prefix.items()]
        )

    def fail(self, failures: Mapping[Entry, str]) -> list[Entry]:
        by_prefix: dict[str, list[dict[str, str]]] = {}
        for entry, error in failures.items():
            text = error.encode(errors="replace").decode()
            by_prefix.setdefault(self._prefix(entry.job_id), []).append(
                {"entry": str(entry), "error": text}
            )
        terms = {"max": self._settings.publish_tries, "token": self.new_token()}
        requests = [(p, {**terms, "failures": batch}) for p, batch in by_prefix.items()]
        return [Entry.parse(text) for texts in self.calls.many("fail", requests) for text in texts]

    def sweep(self, *, empty_queues: Sequence[str], by_priority: bool = True) -> list[Publication]:
        request = {
            "by_priority": by_priority,
            "watermarks": self._watermarks(),
            "limit": self._settings.sweep_limit,
            "republish_ms": self._settings.republish_after * 1000,
            "lease_ms": self._settings.lease * 1000,
            "empty": list(empty_queues),
            "limits_digest": self._write_limits(),
        }
        try:
            self._copy_pauses()
            found = self.calls.many("sweep", [(prefix, request) for prefix in self.prefixes()])
        except LedgerRefused as error:
            if "WRONGTYPE" in str(error) and (wrong := self.wrong_types()):
                raise LedgerRefused(f"the ledger refused: {'; '.join(wrong)}") from error
            raise
        if any(limits == "unknown" for limits, _ in found):
            self._replace_limits()
        return [rows.publication(text) for _, texts in found for text in texts]

    def published_queues(self) -> set[str]:
        marks = self.calls.hashes([keys.watermarks(prefix) for prefix in self.prefixes()])
        return {name.partition("|")[0] for row in marks for name in row}

    def _watermarks(self) -> dict[str, float]:
        """Return the highest watermarks of all partitions; one alone needs no other's."""
        if self.numbers().count == 1:
            return {}
        highest: dict[str, float] = {}
        names = [keys.watermarks(prefix) for prefix in self.prefixes()]
        for row in self.calls.hashes(names):
            for name, at in row.items():
                highest[name] = max(highest.get(name, 0.0), float(at))
        return highest

    def cancel(self, job_id: str, *, detail: str = "", signalled: bool = False) -> str:
        prefix = self._prefix(job_id)
        request = {"id": job_id, "detail": detail, "signalled": signalled}
        return str(self.calls.one("cancel", prefix, **request)[0])

    # -- reading --------------------------------------------------------------------------------

    def remedies(self, job_id: str, coarse: str) -> Mapping[str, tuple[int, int]]:
        return rows.remedies(self.calls.hashes([keys.remedy(self._prefix(job_id), coarse)])[0])

    def job(self, job_id: str) -> JobView | None:
        raw, *rest = self.calls.one("read_job", self._prefix(job_id), id=job_id)
        if not raw:
            return None
        prefix, (attempts, cycles) = self._prefix(job_id), rest
        read_cycles = read_records(
            (keys.cycle(prefix, i), partial(rows.read_cycle, i, rows.fields(row)))
            for i, row in cycles
        )
        return read_record(
            keys.job(prefix, job_id),
            lambda: rows.read_job(
                job_id, rows.fields(raw), [rows.fields(row) for row in attempts], read_cycles
            ),
        )

    def jobs(self, *, state: str | None = None, limit: int = 50) -> list[JobView]:
        found: list[str] = []
        for prefix in self.prefixes():
            found += self.calls.run("ZREVRANGE", keys.jobs(prefix, state), 0, limit - 1)
        names = [keys.job(self._prefix(i), i) for i in found]
        hashes = self.calls.records(names)
        read = read_records(
            (name, partial(rows.read_job, i, row, (), ()))
            for name, i, row in zip(names, found, hashes, strict=True)
            if row
        )
        return sorted(read, key=lambda view: view.created_at, reverse=True)[:limit]

    def events(self, *, after: str = "0", block: float | None = None) -> Iterator[Event]:
        """Yield events of every partition. ``after`` is an event id, or ``$`` for new ones only."""
        streams = self.event_streams
        start = streams.newest() if after == "$" else streams.position(after)
        for event, position in in_order(streams.read(start, limit=1000, block=block), start):
            if (data := event.parse()) is not None:
                name = ",".join(position)
                yield Event(id=name, type=data["type"], job_id=data["job"], data=data)
