"""Loops that move from one ledger to another, with the jobs of their items."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from mulligan.policies.jobs.job import TERMINAL, AttemptPlan, Decoding
from mulligan.policies.loops.admission import WaitingItem
from mulligan.policies.loops.budget import Resource
from mulligan.policies.loops.loop import DONE, ItemRecord, LoopRecord, LoopSnapshot
from mulligan.policies.loops.merge_groups import merge_group
from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.tasks.ports.ledger import (
    ArrivingJob,
    ImportRefused,
    ItemRun,
    LoopArrival,
    LoopExport,
    LoopReading,
    Written,
)
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.coordination_steps import MOST_SIGNALS, CoordinationSteps
from mulligan.workers.ledger.loop_steps import MOST_LOOPS, MOST_OF_TENANT
from mulligan.workers.ledger.stored import arrivals, loop_rows, rows
from mulligan.workers.ledger.stored.moved_records import (
    ATTEMPT,
    CYCLE,
    ESCALATION,
    JOB,
    LOOP,
    SPENT,
    check_fields,
    moving,
    shifted,
    without_checks,
)

_BATCH = 50
#: How often a loop may change while it is read.
_TRIES = 5
T = TypeVar("T")
#: Of the request that would accept an item's job, what its record keeps.
_OF_REQUEST = ("body", "digest", "task_type", "name", "memory", "deadline_ms", "priority", "tenant",
               "owner", "pool", "of_loop", "item", "merge_group")  # fmt: skip


class MoveSteps(CoordinationSteps):
    """See tasks.ports.ledger for the methods' contracts."""

    # -- export -----------------------------------------------------------------------------------

    def export_loop(self, name: str) -> LoopExport | None:
        for _ in range(_TRIES):
            reading = self.read_loop(name)
            if reading is None:
                return None
            found = self._exported(reading)
            loop, now = reading.snapshot.loop, self.read_loop(name)
            if now is None or (now.snapshot.loop.version, now.snapshot.items) == (
                loop.version,
                reading.snapshot.items,
            ):
                return found
        raise LedgerUnavailable(f"the loop {name!r} changes too often; try again")

    def _exported(self, reading: LoopReading) -> LoopExport:
        prefix, snapshot = self._loops_prefix, reading.snapshot
        loop, now = snapshot.loop, self.now()
        # In the order of the specs, so that two exports of the same loop are the same.
        items = {spec.id: snapshot.record(spec.id) for spec in snapshot.specs}
        jobs = [*self._jobs_of(items, loop)]
        row, spent, *memories = self.calls.records(
            [
                keys.loop(prefix, loop.name),
                keys.loop_spent(prefix, loop.name),
                *(f"{prefix}{_memory(loop.name, item)}" for item in items),
            ]
        )
        fields = moving(row, LOOP)
        if "regressions" in fields:
            fields["regressions"] = without_checks(fields["regressions"])
        records = {
            "format": arrivals.FORMAT,
            "schema": self._schema.number,
            "release": self._schema.release,
            "exported_at": now,
            "uid": loop.uid,
            "loop": fields,
            "config": loop.config.model_dump(mode="json", exclude_defaults=True),
            "spec": json.loads(loop_rows.spec_text(snapshot.specs)),
            "items": {item: str(record) for item, record in items.items()},
            "jobs": [_effective(job, now) for job in jobs],
            "spent": moving(spent, SPENT),
            "log": self.calls.run("LRANGE", keys.loop_log(prefix, loop.name), 0, -1),
            "heals": [each.as_json() for each in snapshot.heals],
            "orders": {item: order.as_json() for item, order in snapshot.orders.items()},
            "events": self._signals(snapshot),
            "seen": {item: list(files) for item, files in snapshot.seen_files.items()},
            "split": snapshot.split,
            "memory": {
                item: memory for item, memory in zip(items, memories, strict=True) if memory
            },
        }
        return LoopExport(reading=reading, busy=[*self._busy(reading, jobs, now)], records=records)

    def _signals(self, snapshot: LoopSnapshot) -> list[str]:
        """Return the events that the loop waits for and that people gave off."""
        names = sorted({name for spec in snapshot.specs for name in spec.waits_for})
        if not names:
            return []
        places = [f"{snapshot.loop.tenant}/{name}" for name in names]
        found = self.calls.run("HMGET", keys.loop_events(self._loops_prefix), *places)
        return [
            name
            for name, text in zip(names, found, strict=True)
            if text and json.loads(text).get("person")
        ]

    def _jobs_of(
        self, items: Mapping[str, ItemRecord], loop: LoopRecord
    ) -> Iterator[dict[str, Any]]:
        """Yield the jobs of all runs that are still kept, those of an item in their order."""
        ids = [
            self.item_job_id(loop, item, run)
            for item, record in items.items()
            for run in range(1, record.runs + 1)
        ]
        for batch in _batches(ids):
            requests = [(self._loops_prefix, {"id": job_id}) for job_id in batch]
            answers = self.calls.many("read_job", requests)
            found = [(i, answer) for i, answer in zip(batch, answers, strict=True) if answer[0]]
            read = [_read_job(job_id, *answer) for job_id, answer in found]
            escalations = self._open_escalations(read)
            for job in read:
                yield {**job, "escalations": escalations[job["id"]]}

    def _open_escalations(self, jobs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
        names = [
            (job["id"], name)
            for job in jobs
            for n in range(1, len(job["attempts"]) + 1)
            for name in (f"{job['id']}:{n}", *(f"{job['id']}:{n}.{times}" for times in (2, 3)))
        ]
        names += [(job["id"], cycle) for job in jobs for cycle in job["cycles"]]
        prefix = self._loops_prefix
        found = self.calls.records([keys.escalation(prefix, name) for _, name in names])
        of: dict[str, list[Any]] = {job["id"]: [] for job in jobs}
        for (job_id, name), row in zip(names, found, strict=True):
            if row.get("state") == "open":
                about = {"id": name, "attempt": int(row["attempt"])}
                of[job_id].append({**about, **moving(row, ESCALATION)})
        return of

    def _busy(
        self, reading: LoopReading, jobs: Sequence[Mapping[str, Any]], now: float
    ) -> Iterator[str]:
        """Yield what runs. A delayed verification runs if somebody has its lease."""
        loop = reading.snapshot.loop
        if loop.state == "running":
            yield "the loop is running"
        if loop.rollback:
            yield "a rollback is being made"
        if loop.delivering > now:
            yield "it is being delivered"
        for heal in reading.snapshot.heals:
            if heal.outcome == "pending" and heal.job_id:
                yield f"a split of {heal.item} is being drafted"
        held = {each.item for each in reading.fleet.live if each.loop == loop.name and each.held}
        yield from (f"{item} runs" for item in sorted(held))
        for job in jobs:
            row, last = job["raw"], job["attempts"][-1]
            if row["item"] in held or row["state"] in TERMINAL:
                continue
            if last.get("state") != "queued":
                yield f"{row['item']} is being verified"
        cycles = [cycle for job in jobs for cycle in arrivals.open_cycles(job)]
        for batch in _batches(cycles):
            leases = self.calls.run(
                "ZMSCORE", keys.leases(self._loops_prefix), *(f"c:{c}" for c in batch)
            )
            if any(lease is not None for lease in leases):
                yield "an answer is being verified again"

    # -- import -----------------------------------------------------------------------------------

    def read_arrival(self, records: Any) -> LoopArrival:
        return arrivals.read_arrival(records, self._schema)

    def import_loop(
        self,
        arrival: LoopArrival,
        *,
        caps: Mapping[Resource, float],
        tenant: str,
        by: str,
        owner: str,
    ) -> Written | ImportRefused:
        self.numbers()  # its number of partitions is kept before the ledger has jobs
        token, delay = self.new_token(), self.now() - arrival.exported_at
        staged: list[str] = []
        jobs = {each.id: each for each in arrival.jobs}
        for batch in _batches(arrival.records["jobs"]):
            records = [
                each
                for row in batch
                for each in self._arriving(arrival, jobs[row["id"]], row, delay)
            ]
            staged += self._stage(token, records)
        memories = [
            (_memory(arrival.config.name, item), memory)
            for item, memory in arrival.records["memory"].items()
            if memory
        ]
        for batch in _batches(memories):
            staged += self._stage(token, batch)
        answer = self.calls.one(
            "import_loop",
            self._loops_prefix,
            token=token,
            staged=staged,
            tenant=tenant or None,
            by=by,
            account=f"{tenant}/{by}",
            most=MOST_LOOPS,
            most_of_tenant=MOST_OF_TENANT,
            jobs=[_arriving_job(row) for row in arrival.records["jobs"]],
            **self._arriving_loop(arrival, caps, delay, tenant=tenant, owner=owner),
        )
        if answer[0] == "written":
            return Written(publish=rows.publications(answer[1]))
        if answer[0] == "seen":
            return Written(status="seen")
        refused: ImportRefused = answer[0]
        return refused

    def _stage(self, token: str, records: Sequence[tuple[str, Mapping[str, str]]]) -> list[str]:
        requests = [
            (self._loops_prefix, {"token": token, "name": name, "fields": dict(fields)})
            for name, fields in records
        ]
        self.calls.many("stage_record", requests)
        return [name for name, _ in records]

    def _arriving_loop(
        self,
        arrival: LoopArrival,
        caps: Mapping[Resource, float],
        delay: float,
        *,
        tenant: str,
        owner: str,
    ) -> dict[str, Any]:
        records, config = arrival.records, arrival.config
        spec, address = self._packed(arrival.specs)
        items = {
            item: _moved(ItemRecord.parse(text), delay) for item, text in records["items"].items()
        }
        fields = {
            **shifted(records["loop"], LOOP, delay),
            **loop_rows.config_fields(config, arrival.specs),
            **{"spec": address, "space": arrival.space, "tenant": tenant, "owner": owner},
        }
        return {
            "loop": config.name,
            "uid": records["uid"],
            "fields": {name: value for name, value in fields.items() if value != ""},
            "limits": loop_rows.limit_fields(config.budget, caps),
            "spent": records["spent"],
            "items": {item: str(record) for item, record in items.items()},
            "ready": {
                spec.id: loop_rows.ready_score(
                    WaitingItem(item=spec.id, priority=spec.priority, since=items[spec.id].since),
                    place,
                )
                for place, spec in enumerate(arrival.specs)
                if items[spec.id].state == "ready"
            },
            **{part: records[part] for part in ("heals", "log", "orders", "events")},
            "most_signals": MOST_SIGNALS,
            "spec": spec,
            "declared": loop_rows.declared_files(arrival.specs, address),
            "seen": {
                item: loop_rows.stored_files(files) for item, files in records["seen"].items()
            },
            "split": records["split"],
        }

    def _arriving(
        self, arrival: LoopArrival, job: ArrivingJob, row: Mapping[str, Any], delay: float
    ) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the records of a job as they are here."""
        loop = arrival.config.name
        merges = arrival.config.repo is not None
        group = merge_group(arrival.specs, job.item) if merges else ""
        run = ItemRun(
            record=ItemRecord(), job_id=job.id, job=job.job, owner=job.owner, merge_group=group
        )
        request = self._item_job(loop, job.item, run)
        read = [check_fields(each, ATTEMPT) for each in row["attempts"]]
        bodies = [value for each in read for value in each.values() if isinstance(value, BaseModel)]
        fields = shifted(row["job"], JOB, delay)
        latest = (self.now() + job.job.deadline) * 1000
        fields["deadline_at"] = f"{min(float(fields['deadline_at']), latest):.3f}"
        known = {name: str(request[name]) for name in _OF_REQUEST if request[name] is not None}
        needs = {
            "schema": str(max(request["needs"], self._schema.needed_by(*bodies))),
            "release": self._schema.release,
        }
        yield f"job:{job.id}", {"seconds": "0", "loop": "0", **fields, **known, **needs}
        for n, (attempt, values) in enumerate(zip(row["attempts"], read, strict=True), 1):
            plan = values.get("plan", AttemptPlan())
            decoding = Decoding(fallback=plan.decoding.fallback)
            runner = rows.runner_key(job.job, decoding)
            yield f"job:{job.id}:{n}", {**shifted(attempt, ATTEMPT, delay), "runner": runner}
        for cycle, about in row["cycles"].items():
            belongs = {"job_id": job.id, "tenant": request["tenant"] or ""}
            yield f"cycle:{cycle}", {**shifted(about, CYCLE, delay), **belongs}


def _memory(loop: str, item: str) -> str:
    return f"memory:item:{loop}/{item}"


def _batches(values: Sequence[T]) -> Iterator[Sequence[T]]:
    return (values[start : start + _BATCH] for start in range(0, len(values), _BATCH))


def _read_job(job_id: str, raw: Any, attempts: Any, cycles: Any) -> dict[str, Any]:
    row = rows.fields(raw)
    return {
        "id": job_id,
        "raw": row,
        "body": row["body"],
        "job": moving(row, JOB),
        "attempts": [moving(rows.fields(each), ATTEMPT) for each in attempts],
        "cycles": {name: moving(rows.fields(each), CYCLE) for name, each in cycles},
    }


def _effective(job: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return the record of a job. The time that it waited for its own loop does not count."""
    row, fields = job["raw"], dict(job["job"])
    if row.get("parked_at"):
        waited = now * 1000 - float(row["parked_at"])
        fields["deadline_at"] = f"{float(row['deadline_at']) + waited:.3f}"
    return {**{name: value for name, value in job.items() if name != "raw"}, "job": fields}


def _moved(record: ItemRecord, delay: float) -> ItemRecord:
    if record.state in DONE:
        return record
    return record.moved(record.state, now=record.since + delay, reason=record.reason)


def _arriving_job(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": row["id"],
        "at": float(row["job"]["created_at"]),
        "open": arrivals.open_cycles(row),
        "cycles": [
            {"id": name, "at": float(each["created_at"]), "status": each["status"]}
            for name, each in row["cycles"].items()
        ],
        "escalations": [
            {
                **each,
                "id": each.get("cycle_id") or f"{row['id']}:{each['attempt']}",
                "attempt": str(each["attempt"]),
            }
            for each in row["escalations"]
        ],
    }
