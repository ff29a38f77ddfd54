"""Loops on Redis. Loops and the jobs of their items live in the first partition."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Literal

from mulligan.policies.jobs.job import Job
from mulligan.policies.loops.admission import WaitingItem
from mulligan.policies.loops.budget import Resource, SharedScope
from mulligan.policies.loops.heal_record import MOST_HEALS
from mulligan.policies.loops.incident import incidents_to_json
from mulligan.policies.loops.loop import ItemRecord, LoopChange, LoopRecord, LoopSnapshot
from mulligan.policies.loops.merge_batches import MOST_WINDOW, START_WINDOW
from mulligan.policies.loops.spec import ItemSpec, LoopDocument, is_loop_name
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import (
    Entry,
    ItemRun,
    LiveItem,
    LoopNote,
    LoopReading,
    LoopWrite,
    MergeQueue,
    Publication,
    Requester,
    Submission,
    WriteRefused,
    Written,
)
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.accept_steps import AcceptSteps
from mulligan.workers.ledger.stored import job_ids, loop_rows, rows
from mulligan.workers.ledger.stored.digests import digest
from mulligan.workers.ledger.stored.stored_bodies import read_record, read_records

#: Loops in one ledger, and bytes of one loop's items.
MOST_LOOPS = 1000
MOST_OF_TENANT = 200
MOST_SPEC_BYTES = 20_000_000
#: Candidates of each loop that one admission looks at; slots are fewer.
_CANDIDATES = 100
#: The first schema whose releases know loops.
_SCHEMA_WITH_LOOPS = 3
#: The size of the loops' items that a process keeps parsed, in characters of their stored texts.
_CACHED = 20_000_000


class LoopSteps(AcceptSteps):
    """See tasks.ports.ledger for the methods' contracts."""

    def create_loop(
        self,
        document: LoopDocument,
        *,
        caps: Mapping[Resource, float],
        tenant: str,
        by: str,
        owner: str = "",
        draft: str = "",
        space: str = "",
    ) -> Written | Literal["conflict", "full"]:
        if not is_loop_name(document.loop.name):
            raise BadInput.at("name", "cannot be the name of a loop")
        self.numbers()  # its number of partitions is kept before the ledger has jobs
        spec, address = self._packed(document.items)
        now = self.now()
        config = document.loop
        belongs = {"tenant": tenant, **({"owner": owner} if owner else {})}
        own = {"spec": address, "space": space, "draft": draft}
        fields = {**loop_rows.config_fields(config, document.items), **own, **belongs}
        answer = self.calls.one(
            "create_loop",
            self._loops_prefix,
            loop=config.name,
            digest=digest(
                {
                    "loop": config.model_dump_json(),
                    "items": address,
                    "states": document.states,
                    **belongs,
                }
            ),
            uid=self.new_token(),
            fields={name: value for name, value in fields.items() if value != ""},
            limits=loop_rows.limit_fields(config.budget, caps),
            items={
                item.id: str(ItemRecord(state=document.states.get(item.id, "pending"), since=now))
                for item in document.items
            },
            spec=spec,
            declared=loop_rows.declared_files(document.items, address),
            most=MOST_LOOPS,
            most_of_tenant=MOST_OF_TENANT,
            by=by,
        )
        match answer:
            case ["created", text]:
                return Written(publish=rows.publications(text))
            case ["seen"]:
                return Written(status="seen")
            case ["full"]:
                return "full"
        return "conflict"

    def read_loop(self, name: str) -> LoopReading | None:
        if not is_loop_name(name):
            return None
        row, items, limits, spent, reserved, fleet, heals, others = self.calls.one(
            "read_loop", self._loops_prefix, loop=name, most=_CANDIDATES
        )
        if not row:
            return None
        loop = self._read_row(name, rows.fields(row))
        specs = self._specs_of(loop)
        if specs is None:
            return self.read_loop(name)  # items were added between the two reads
        now = self.now()
        budget = loop_rows.read_budget(limits, spent, reserved, now=now)
        return LoopReading(
            snapshot=LoopSnapshot(
                loop=loop,
                specs=specs,
                items=self._read_items(name, items),
                used=budget.used,
                heals=read_record(
                    keys.loop_heals(self._loops_prefix, name), partial(loop_rows.read_heals, heals)
                ),
                **loop_rows.read_others(*others),
            ),
            fleet=loop_rows.read_fleet(fleet, now=now, lease=self._settings.lease),
            budget=budget,
            unknown=loop_rows.read_unknown(rows.fields(spent)),
        )

    def write_loop(self, write: LoopWrite) -> Written | WriteRefused:
        snapshot, fleet = write.reading.snapshot, write.reading.fleet
        loop, name = snapshot.loop, snapshot.loop.name
        admitted = write.admission.admitted
        expect = {each.loop: fleet.versions[each.loop] for each in admitted if each.loop != name}
        rescored = write.scored != "" and write.scored != loop.scored
        asks_anew = write.asks is not None and write.asks != loop.asks
        changes = {}
        if not write.change.empty or rescored or asks_anew or write.space:
            changes[name] = self._change(snapshot, write.change, write.ready)
        if write.space:
            changes[name]["fields"]["space"] = write.space
            changes[name]["declared"] = loop_rows.declared_files(snapshot.specs, loop.spec)
        if asks_anew:
            changes[name]["fields"]["asks"] = json.dumps(write.asks)
            changes[name]["asked"] = sorted({*(write.asks or ()), *loop.asks})
        if rescored:
            changes[name]["fields"]["scored"] = write.scored
            places = {spec.id: place for place, spec in enumerate(snapshot.specs)}
            changes[name]["urgent"] = dict(write.urgent)
            changes[name]["ready"] = {
                item: loop_rows.ready_score(each, places[item])
                for item, each in write.ready.items()
            }
        answer = self.calls.one(
            "write_loop",
            self._loops_prefix,
            loop=name,
            token=self.new_token(),
            by=write.caller.by,
            key=digest({"key": write.caller.key}) if write.caller.key else None,
            digest=write.caller.digest,
            expect={**expect, name: loop.version},
            changes=changes,
            most_heals=MOST_HEALS,
            epoch=fleet.epoch,
            lines={str(priority): at for priority, at in write.admission.lines.items()},
            admit=self._admissions(write),
            decisions=[
                json.loads(each.as_json()) for each in (*write.decisions, *write.change.decisions)
            ],
            denied=write.denied,
            planned=write.planned,
            wake_ms=None if write.wake_at is None else write.wake_at * 1000,
        )
        if answer[0] in ("stale", "gone", "conflict"):
            refused: WriteRefused = answer[0]
            return refused
        if answer[0] == "seen":
            return Written(status="seen")
        return Written(publish=rows.publications(answer[1]))

    def change_made(self, name: str, caller: Requester) -> Literal["seen", "conflict"] | None:
        if caller.key is None:
            return None
        sha = digest({"key": caller.key})
        found = self.calls.run("GET", keys.loop_change(self._loops_prefix, name, sha))
        return None if found is None else "seen" if found == caller.digest else "conflict"

    def delete_loop(
        self, name: str, caller: Requester, *, cancel: Sequence[str] = ()
    ) -> Literal["deleted", "gone", "held"]:
        if not is_loop_name(name):
            return "gone"
        answer: Literal["deleted", "gone", "held"]
        answer = self.calls.one(
            "delete_loop",
            self._loops_prefix,
            loop=name,
            by=caller.by,
            cancel=list(cancel),
            key=digest({"key": caller.key}) if caller.key else None,
            digest=caller.digest,
        )[0]
        return answer

    def has_loops(self) -> bool:
        return bool(self.calls.run("EXISTS", keys.loops(self._loops_prefix)))

    def loops(self) -> list[LoopRecord]:
        names = self.calls.run("ZREVRANGE", keys.loops(self._loops_prefix), 0, -1)
        places = [keys.loop(self._loops_prefix, name) for name in names]
        found = zip(places, names, self.calls.records(places), strict=True)
        return read_records(
            (place, partial(loop_rows.read_loop, name, row)) for place, name, row in found if row
        )

    def loop_owner(self, name: str) -> str | None:
        """Return the producer that created a loop."""
        owner: str | None = self.calls.run("HGET", keys.loop(self._loops_prefix, name), "owner")
        return owner

    def loop_items(self, names: Sequence[str]) -> list[Mapping[str, ItemRecord]]:
        places = [keys.loop_items(self._loops_prefix, name) for name in names]
        return [
            read_record(place, partial(loop_rows.read_items, row))
            for place, row in zip(places, self.calls.records(places), strict=True)
        ]

    def loops_used(
        self, names: Sequence[str]
    ) -> list[Mapping[tuple[SharedScope, Resource], float]]:
        places = [keys.loop_spent(self._loops_prefix, name) for name in names]
        now = self.now()
        return [loop_rows.read_used(row, now) for row in self.calls.records(places)]

    def live_items(self) -> list[LiveItem]:
        found = self.calls.one("live_items", self._loops_prefix)
        return [loop_rows.live_item(each, self._settings.lease) for each in found]

    def reconcile_loops(self, names: Sequence[str]) -> tuple[list[str], list[Publication]]:
        requests = [(self._loops_prefix, {"loop": name}) for name in names]
        found, publish = [], []
        for name, (done, text) in zip(
            names, self.calls.many("reconcile_loop", requests), strict=True
        ):
            found += [f"{name}/{line.replace('|', ': ', 1)}" for line in done.splitlines()]
            publish += rows.publications(text)
        return found, publish

    def loop_slots(self) -> int | None:
        found = self.calls.run("GET", keys.loop_slots(self._loops_prefix))
        return None if found is None else int(found)

    def loop_log(self, name: str, *, limit: int = 100) -> list[LoopNote]:
        key = keys.loop_log(self._loops_prefix, name)
        lines = self.calls.run("LRANGE", key, 0, limit - 1)
        return [LoopNote(**json.loads(line)) for line in lines]

    def read_merges(self, entry: Entry) -> MergeQueue:
        group, window, waiting = self.calls.one(
            "read_merges", self._loops_prefix, entry=str(entry), most=MOST_WINDOW
        )
        return MergeQueue(
            group=group,
            window=int(window or START_WINDOW),
            waiting=tuple(map(Entry.parse, waiting)),
        )

    def set_merge_window(self, loop: str, *, old: int, new: int) -> None:
        self.calls.one(
            "set_merge_window", self._loops_prefix, loop=loop, start=START_WINDOW, old=old, new=new
        )

    def set_loop_slots(self, slots: int | None) -> list[Publication]:
        answer = self.calls.one("set_loop_slots", self._loops_prefix, slots=slots)
        return rows.publications(answer[1])

    # -- requests ---------------------------------------------------------------------------------

    @property
    def _loops_prefix(self) -> str:
        return keys.partition_prefixes(self._settings.key_prefix, 1)[0]

    def _change(
        self, snapshot: LoopSnapshot, change: LoopChange, ready: Mapping[str, WaitingItem]
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        request: dict[str, Any] = {
            "state": change.state,
            "note": change.note,
            "cancel": list(change.cancel),
            "forget": {item: snapshot.record(item).job_id for item in change.forget},
            "items": self._item_changes(snapshot, change, ready),
            "heals": {str(each.number): each.as_json() for each in change.heals},
            "alarms": [asdict(each) for each in change.alarms],
            "regressions": [],
            "ready": {},
            "split": change.split,
            **self._coordination(snapshot, change),
        }
        if change.state is not None:
            fields |= {"reason": change.reason, "paused_by": change.paused_by}
        for name in ("rollback", "delivered", "delivery_problem", "delivering"):
            if (value := getattr(change, name)) is not None:
                fields[name] = value
        if change.incidents is not None:
            fields["incidents"] = incidents_to_json(change.incidents)
        if change.regressions is not None:
            fields["regressions"] = change.regressions.to_text()
            request["regressions"] = loop_rows.regression_events(
                change.regressions.changes_from(snapshot.loop.regressions)
            )
        if change.config is not None or change.specs is not None:
            config = change.config or snapshot.config
            fields |= loop_rows.config_fields(config, change.specs or snapshot.specs)
        if change.caps is not None:
            budget = (change.config or snapshot.config).budget
            request["limits"] = loop_rows.limit_fields(budget, change.caps)
        if change.specs is not None:
            request["spec"], fields["spec"] = self._packed(change.specs)
            request["declared"] = loop_rows.declared_files(change.specs, fields["spec"])
        return {**request, "fields": fields}

    def _coordination(self, snapshot: LoopSnapshot, change: LoopChange) -> dict[str, Any]:
        def events(item: str) -> list[str]:
            spec = snapshot.spec(item)
            return list(spec.emits) if spec else []

        return {
            "emit": {
                item: {"run": run, "events": events(item)} for item, run in change.emit.items()
            },
            "orders": {item: orders.as_json() for item, orders in change.orders.items()},
            "seen": {
                item: {
                    "seen": loop_rows.stored_files(files),
                    "all": [*(spec.touches if (spec := snapshot.spec(item)) else ()), *files],
                }
                for item, files in change.seen_files.items()
            },
            "overrules": change.overrules or None,
        }

    def _item_changes(
        self, snapshot: LoopSnapshot, change: LoopChange, ready: Mapping[str, WaitingItem]
    ) -> dict[str, list[Any]]:
        specs = change.specs or snapshot.specs
        places = {spec.id: place for place, spec in enumerate(specs)} if change.items else {}
        return {
            item: [
                str(snapshot.items[item]) if item in snapshot.items else "",
                str(record),
                loop_rows.ready_score(
                    ready.get(item)
                    or WaitingItem(
                        item=item, priority=specs[places[item]].priority, since=record.since
                    ),
                    places[item],
                ),
            ]
            for item, record in change.items.items()
        }

    def _admissions(self, write: LoopWrite) -> list[dict[str, Any]]:
        requests = []
        places = dict(write.admission.shares)
        for each in write.admission.admitted:
            run = write.runs.get(each)
            request: dict[str, Any] = {
                "loop": each.loop,
                "item": each.candidate.item,
                "because": each.because,
                "share": places[each.loop],
                "id": run.job_id if run else each.candidate.job_id,
            }
            lock = write.admission.lock_of(each, run.job_id if run else "", now=self.now())
            if lock is not None:
                lock = replace(lock, token=self.new_token())
                request["lock"] = loop_rows.stored_lock(lock, write.lock_ttl)
            if run is not None:
                started = run.record.started(run.job_id, now=self.now())
                request |= {"old": str(run.record), "new": str(started)}
                request["job"] = self._item_job(each.loop, each.candidate.item, run)
            requests.append(request)
        return requests

    def _item_job(self, loop: str, item: str, run: ItemRun) -> dict[str, Any]:
        return {
            **self._accept_request(Submission(id=run.job_id, job=run.job, owner=run.owner)),
            # Earlier releases would end the job without its item.
            **self._schema_of_items(run.job),
            "pool": "agent",
            "of_loop": loop,
            "item": item,
            "merge_group": run.merge_group or None,
            "memory": f"memory:item:{loop}/{item}",
        }

    def _schema_of_items(self, job: Job) -> dict[str, Any]:
        needs = max(_SCHEMA_WITH_LOOPS, self._schema.needed_by(job))
        return {"needs": needs, "release": self._schema.release}

    # -- items ------------------------------------------------------------------------------------

    def _packed(self, specs: Sequence[ItemSpec]) -> tuple[str, str]:
        """Return the stored text of a loop's items and its address."""
        text = loop_rows.spec_text(specs)
        if len(text.encode()) > MOST_SPEC_BYTES:
            size = f"{len(text.encode()):,} bytes are over the cap of {MOST_SPEC_BYTES:,}"
            raise BadInput.at("items", size, "too_long")
        return text, hashlib.sha256(text.encode()).hexdigest()[:32]

    def _specs_of(self, loop: LoopRecord) -> tuple[ItemSpec, ...] | None:
        """Return a loop's items; None if they were replaced meanwhile."""
        cache: dict[str, tuple[int, tuple[ItemSpec, ...]]] = self.__dict__.setdefault("_specs", {})
        if loop.spec not in cache:
            key = keys.loop_spec(self._loops_prefix, loop.name)
            text = self.calls.run("GET", key) or ""
            if hashlib.sha256(text.encode()).hexdigest()[:32] != loop.spec:
                return None
            specs = read_record(key, lambda: loop_rows.read_specs(text))
            while cache and len(text) + sum(size for size, _ in cache.values()) > _CACHED:
                cache.pop(next(iter(cache)), None)
            cache[loop.spec] = len(text), specs
        return cache[loop.spec][1]

    def _read_items(self, name: str, answer: Sequence[str]) -> Mapping[str, ItemRecord]:
        return read_record(
            keys.loop_items(self._loops_prefix, name),
            partial(loop_rows.read_items, rows.fields(answer)),
        )

    def _read_row(self, name: str, row: dict[str, str]) -> LoopRecord:
        return read_record(
            keys.loop(self._loops_prefix, name), lambda: loop_rows.read_loop(name, row)
        )

    def item_job_id(self, loop: LoopRecord, item: str, run: int) -> str:
        """Return the id of the job of an item's run."""
        return job_ids.item_job_id(loop.uid, item, run)
