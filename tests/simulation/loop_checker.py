"""The invariants of loops, checked after each script and when nothing moves any more.

The checks read the records of Redis themselves: what is checked must not do the reading.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mulligan.policies.jobs.job import TERMINAL, Job
from mulligan.policies.loops.admission import most_begun
from mulligan.policies.loops.heal_record import HealRecord
from mulligan.policies.loops.healing import PERSON
from mulligan.policies.loops.loop import PLANNED, ItemRecord
from mulligan.policies.loops.spec import ItemSpec, LoopDocument
from mulligan.policies.regressions.record import RegressionLog
from mulligan.tasks.ports.ledger import Entry, JobView
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.stored.amounts import read_amounts
from mulligan.workers.ledger.stored.loop_rows import NEEDS_SCHEMA_6, read_specs
from simulation.coordination_checker import CoordinationChecker
from simulation.scheduler import Process

if TYPE_CHECKING:
    from simulation.checker import Checker

#: Scripts that give slots, reserve, charge or end an item.
_CHECKED = frozenset(
    {"claim", "store_output", "settle", "requeue", "sweep", "cancel", "write_loop", "read_loop",
     "end_escalation", "name_provider"}
)  # fmt: skip
#: Scripts that are followed, but change nothing that is checked.
_FOLLOWED = frozenset({"renew", "fail", "set_loop_slots", "emit_event"})
_DONE = ("passed", "skipped")
_GAVE_UP = ("failed", "quarantined")
#: Reasons that are a loop's own: what waits behind one may wait for a person.
#: Longer than a planner tries to write a plan.
_PLAN_SECONDS = 60.0
_OF_LOOPS = ("loop:", "budget:", "slot:")
#: Above it, the score of an outbox entry is the time to check a published one.
_CHECK = 1e14


def _way(heal: HealRecord) -> tuple[str, str, str]:
    run = f" of run {heal.run}" if heal.parameter == PERSON else ""
    return heal.item, heal.action, heal.parameter + run


@dataclass
class ItemClaim:
    """One claim of an attempt of an item, and what it must be charged with."""

    loop: str
    #: What was reserved for it; None if nothing limits the attempt.
    reserved: float | None
    #: What a renewal told the ledger, and what the stored answer used.
    metered: float | None = None
    used: float | None = None
    #: The provider did not begin to answer.
    free: bool = False

    def end(self, fields: dict[str, Any], *, free: bool = False) -> None:
        """Note what a script that ends the claim says about its use."""
        self.free |= free or fields["unasked"]
        if fields.get("metered"):
            self.metered = read_amounts(fields["metered"]).get("tokens")

    @property
    def charge(self) -> float:
        if self.used is not None:
            return self.used
        if self.metered is not None:
            return self.metered
        return 0.0 if self.free else self.reserved or 0.0


@dataclass
class LoopChecker:
    checker: Checker
    specs: dict[str, dict[str, ItemSpec]] = field(default_factory=dict)
    #: Job → the loop and the item that it was written for.
    jobs: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: Items whose failures a person has forgotten.
    forgotten: set[tuple[str, str]] = field(default_factory=set)
    #: Token of a claim → what becomes of it.
    claims: dict[str, ItemClaim] = field(default_factory=dict)
    #: Who had a slot after the script before, and the spending of what was limited.
    _live: set[str] = field(default_factory=set)
    #: Attempts that are being verified, or were a moment ago.
    _verifying: set[Entry] = field(default_factory=set)
    _spent: dict[tuple[str, str], float] = field(default_factory=dict)
    restored_at: float = float("-inf")
    #: When each process read a loop last, and when which number of slots was changed.
    _read_at: dict[Process, float] = field(default_factory=dict)
    _changed_slots: list[tuple[float, int]] = field(default_factory=list)
    _slots_before: int = 0
    #: Jobs of which an entry could not be sent.
    _undelivered: set[str] = field(default_factory=set)
    coordination: CoordinationChecker = field(init=False)

    def __post_init__(self) -> None:
        self.coordination = CoordinationChecker(self)

    @property
    def prefix(self) -> str:
        return keys.partition_prefixes(self.checker.world.settings.key_prefix, 1)[0]

    @property
    def _client(self) -> Any:
        return self.checker.world.server.client

    # -- while the run goes on --------------------------------------------------------------------

    def created(self, document: LoopDocument) -> None:
        self.specs[document.loop.name] = {item.id: item for item in document.items}
        self.checker.repositories.created(document)

    def injected(self, loop: str, items: Iterable[ItemSpec]) -> None:
        self.specs.setdefault(loop, {}).update({item.id: item for item in items})

    def restored(self) -> None:
        """Redis has lost its last second: what it holds now is where the checks go on."""
        self.coordination.restored()
        self._live, self._spent = self.live_now(), {}
        self.restored_at = self._now

    def script_answered(self, script: str, request: str, answer: Any, process: Process) -> None:
        if not self.specs or script not in _CHECKED | _FOLLOWED:
            return
        fields = json.loads(request)
        if script == "fail":
            self._undelivered |= {Entry.parse(each).job_id for each in answer}
        elif script == "set_loop_slots":
            self._changed_slots.append((self._now, self._slots_before))
        elif script == "read_loop":
            self._read_at[process] = self._now
        self._slots_before = self._slots
        if script in ("fail", "set_loop_slots"):
            return
        if script == "write_loop" and answer[0] == "written":
            self._written(fields)
        self._follow_claim(script, fields, answer)
        read_at = self._read_at.get(process, 0.0) if script == "write_loop" else self._now
        self._check_slots(read_at)
        self.coordination.script_answered(script, fields, answer, process)
        if script == "sweep":
            self._check_hints()
        idle = script == "renew" or (script == "sweep" and not answer[1])
        for loop in () if idle else self._concerned(fields):
            self._check_budget(loop)

    def _concerned(self, fields: dict[str, Any]) -> Iterable[str]:
        """Return the loops whose budget a script may have changed."""
        entry = fields.get("entry") or ""
        job = Entry.parse(entry).job_id if entry else fields.get("id")
        if job is None:
            return list(self.specs)
        return [self.jobs[job][0]] if job in self.jobs else []

    def _written(self, request: dict[str, Any]) -> None:
        for loop, change in request["changes"].items():
            self.checker.cancelled_ids |= set(change["cancel"])
            # An empty table of Lua is a list.
            self.forgotten |= {(loop, item) for item in change["forget"] or ()}
            if change.get("spec"):
                self.specs[loop] = {each.id: each for each in read_specs(change["spec"])}
            self._check_heals(loop, change)
            self.checker.repositories.written(loop, change, request["by"])
        for each in request["admit"]:
            if each.get("job") and each["id"] not in self.jobs:
                self.jobs[each["id"]] = each["loop"], each["item"]
                self.checker.repositories.admitted(each["loop"], each["id"])
                self.checker.jobs[each["id"]] = Job.model_validate_json(each["job"]["body"])
                self.checker.written_ids.add(each["id"])
                self._check_dependencies(each["loop"], each["item"])

    def _check_heals(self, loop: str, change: dict[str, Any]) -> None:
        """Invariant: what was done to an item is not done again in the same way."""
        done = self._heals(loop)
        for text in (change["heals"] or {}).values():
            new = HealRecord.parse(text)
            if new.pattern == "deadlock":
                continue  # each wait that is broken is one: see CoordinationChecker
            for each in done:
                if each.number != new.number and _way(each) == _way(new):
                    self._violated(f"{loop}/{new.item} is healed by {new.action} again")

    def _heals(self, loop: str) -> list[HealRecord]:
        return [HealRecord.parse(each) for each in self._client.hvals(self._part(loop, "heals"))]

    def _check_dependencies(self, loop: str, item: str) -> None:
        """Invariant: no item runs before those that it depends on.

        A plan that was read before a restart may be written after it, without what was lost.
        """
        if self._now - self.restored_at < _PLAN_SECONDS:
            return
        goes_on = self.config(loop).get("on_blocked") == "continue"
        allowed = (*_DONE, *_GAVE_UP) if goes_on else _DONE
        for each in self.specs[loop][item].own_dependencies:
            record = self.items(loop).get(each)
            state = record.state if record else "missing"
            if state not in allowed:
                self._violated(f"{loop}/{item} got a slot while {each} is {state}")

    def _check_slots(self, read_at: float) -> None:
        """Invariant: the slots of all loops and the concurrency of each one hold.

        A person may lower them while items run. Then none gets a slot until enough have ended. A
        plan that was read before, or before a restart, may be written after it.
        """
        live = self.live_now()
        new = live - self._live if read_at > self.restored_at else set[str]()
        most = max([self._slots, *(slots for at, slots in self._changed_slots if at > read_at)])
        if new and len(live) > most:
            self._violated(f"{len(live)} items have one of {most} slots")
        for loop in self.specs:
            own = {job for job in live if self.jobs[job][0] == loop}
            most = abs(int(self.row(loop).get("concurrency", 0))) if own & new else 0
            if own & new and len(own) > most:
                self._violated(f"{len(own)} items of {loop} run at once, not {most}")
        for job in self._occupied() - live:
            self._violated(f"{job} of {self.jobs[job]} is being worked on without a slot")
        self._live = live

    def _occupied(self) -> set[str]:
        """Return the jobs of items whose attempt a worker or a verifier has."""
        leases = self._client.zrange(f"{self.prefix}leases", 0, -1, withscores=True)
        found = [(Entry.parse(text), expires / 1000) for text, expires in leases]
        held = {
            entry.job_id
            for entry, expires in found
            if entry.kind == "attempt" and self._runs(entry, expires)
        }
        self._verifying = {each for each in self._verifying if self._is_verifying(each)}
        # A verification that could not be sent and then could goes on without a slot.
        verifying = {each.job_id for each in self._verifying} - self._undelivered
        return (held & self.jobs.keys()) | verifying

    def _check_hints(self) -> None:
        """Invariant: while a slot is free that an item waits for, a hint is under way."""
        client, live = self._client, self.live_now()
        if len(live) >= self._slots or any(
            each.startswith("l:") for each in client.hkeys(f"{self.prefix}outbox:entries")
        ):
            return
        busy = {self.jobs[job] for job in live}
        for loop in client.smembers(f"{self.prefix}loops:active"):
            own = sum(self.jobs[job][0] == loop for job in live)
            limited = client.hlen(self._part(loop, "limits")) > 1  # the budget may have no room
            concurrency = abs(int(self.row(loop)["concurrency"]))
            # Those that wait for a provider have no slot, but count as begun.
            limited = limited or client.scard(self._part(loop, "begun")) >= most_begun(concurrency)
            if own < concurrency and not limited:
                for item in client.zrange(self._part(loop, "ready"), 0, -1):
                    # One whose stopped attempt has not ended waits for that.
                    if (loop, item) not in busy and not self.coordination.holds_back(loop, item):
                        self._violated(f"{loop}/{item} waits for a free slot without a hint")

    def _runs(self, entry: Entry, expires: float) -> bool:
        """Whether a leased attempt may be running. That of an ended job may be settled only."""
        if self.job_row(entry.job_id).get("state") not in TERMINAL:
            return True
        attempt = keys.attempt(self.prefix, entry.job_id, entry.attempt)
        return expires > self._now and not self._client.hexists(attempt, "output")

    def _is_verifying(self, entry: Entry) -> bool:
        attempt = keys.attempt(self.prefix, entry.job_id, entry.attempt)
        state = self.job_row(entry.job_id).get("state")  # a restart may have lost the job
        return state not in TERMINAL and self._client.hget(attempt, "state") == "verifying"

    def _check_budget(self, loop: str) -> None:
        """Invariant: what is used and reserved is never more than a limit.

        A person may lower it below that. Then nothing is added, except by what was claimed before
        there was a limit.
        """
        limits = self._client.hgetall(self._part(loop, "limits"))
        spent = self._client.hgetall(self._part(loop, "spent"))
        reserved = sum(
            read_amounts(text).get("tokens", 0.0)
            for text in self._client.hgetall(self._part(loop, "reserved")).values()
        )
        unlimited = sum(
            each.charge
            for each in self.claims.values()
            if each.loop == loop and each.reserved is None
        )
        for scope in ("loop", "day"):
            used = float(spent.get(f"{scope}:tokens", 0))
            if scope == "day" and spent.get("day") != str(int(self._now // 86400)):
                used = 0.0
            total, limit = used + reserved, float(limits.get(f"{scope}:tokens", "inf"))
            if total > limit and total - unlimited > self._spent.get((loop, scope), 0.0):
                self._violated(
                    f"{loop} uses {used:g} and reserves {reserved:g} tokens of the {limit:g} of"
                    f" its {scope}"
                )
            # What a claim without a limit has metered is charged only when it ends.
            known = self._spent.get((loop, scope), 0.0)
            self._spent[loop, scope] = max(known, total - unlimited)

    def _follow_claim(self, script: str, fields: dict[str, Any], answer: Any) -> None:
        """Note what each claim of an item must be charged with."""
        if script == "claim" and answer[0] == "claimed" and fields["id"] in self.jobs:
            entry = f"a:{fields['id']}/{int(fields['n'])}"
            loop = self.jobs[fields["id"]][0]
            text = self._client.hget(self._part(loop, "reserved"), entry)
            reserved = None if text is None else read_amounts(text).get("tokens")
            self.claims.setdefault(fields["token"], ItemClaim(loop, reserved))
        elif script == "renew":
            for lease in fields["leases"]:
                held = self.claims.get(lease["token"])
                if held and lease.get("metered") and lease["entry"] not in answer:
                    held.metered = read_amounts(lease["metered"]).get("tokens")
        elif script == "store_output" and answer[0] == "stored" and fields["token"] in self.claims:
            self.claims[fields["token"]].used = fields["tokens"]
            if fields["verifications"]:
                self._verifying.add(Entry("attempt", fields["id"], int(fields["n"])))
        elif script == "requeue" and answer[0] != "lost" and fields["token"] in self.claims:
            fault = fields.get("fault")
            unserved = bool(fault and not fault.get("maybe_served"))
            self.claims[fields["token"]].end(fields, free=unserved)
        elif script == "settle" and answer[0] == "settled" and fields["token"] in self.claims:
            self.claims[fields["token"]].end(fields)
        elif script == "name_provider" and answer[0] != "lost" and fields["token"] in self.claims:
            self.claims[fields["token"]].free = answer[0] != "named"

    # -- at rest ----------------------------------------------------------------------------------

    def moving(self) -> list[str]:
        """Return what goes on by itself, soon."""
        client, found = self._client, self.checker.repositories.moving()
        prefixes = keys.partition_prefixes(self.settings.key_prefix, self.settings.partitions or 1)
        for prefix in prefixes:
            found += [str(each) for each in client.zrange(f"{prefix}leases", 0, -1)]
            found += [entry for entry, _ in self._outbox(prefix, later=False)]
            found += [
                reason
                for reason in client.smembers(f"{prefix}parked")
                if not reason.startswith(_OF_LOOPS)
            ]
            for state in ("queued", "running", "waiting"):
                found += [
                    job
                    for job in client.zrange(keys.jobs(prefix, state), 0, -1)
                    if not self._waits_for_loop(job)
                ]
        return found

    def next_entry(self) -> float | None:
        """Return when the next entry is due that is due later."""
        prefixes = keys.partition_prefixes(self.settings.key_prefix, self.settings.partitions or 1)
        times = [at for prefix in prefixes for _, at in self._outbox(prefix, later=True)]
        return min(times, default=None)

    def _outbox(self, prefix: str, *, later: bool) -> list[tuple[str, float]]:
        """Return the entries that are due soon, or later than in half a minute, and when."""
        entries = self._client.zrange(f"{prefix}outbox", 0, -1, withscores=True)
        found = [
            (entry, abs(score) % _CHECK / 1000, score)
            for entry, score in entries
            # It is put off until its job ends.
            if not (entry.startswith("c:") and self._waits_for_loop(Entry.parse(entry).job_id))
        ]
        return [
            (entry, at) for entry, at, score in found
            if later == (0 < score < _CHECK and at > self._now + 30)
        ]  # fmt: skip

    def _waits_for_loop(self, job_id: str) -> bool:
        row = self.checker.job_row(job_id)
        return row.get("state") == "waiting" and row.get("waiting_behind", "").startswith(_OF_LOOPS)

    def check_rest(self) -> None:
        """Check what must be true when nothing moves: the registry says what is."""
        self.coordination.check_rest()
        for loop in self.specs:
            row = self.row(loop)
            if not row:
                continue
            if row["state"] == "running" and not self._is_held_back(loop):
                self._violated(f"{loop} is running, but nothing of it runs: {self.states(loop)}")
            if row["dirty"] != row["planned"]:
                self._violated(f"{loop} is dirty: {row['dirty']} changes, {row['planned']} planned")
            for entry in self._client.hgetall(self._part(loop, "reserved")):
                self._violated(f"{loop} still reserves something for {entry}")
            for item, record in self.items(loop).items():
                self._check_item(loop, item, record, row["state"])
                self._check_healed(loop, item, record, row["state"])
        for job_id in self.live_now():
            self._violated(f"{job_id} of {self.jobs.get(job_id)} still has a slot")

    def _is_held_back(self, loop: str) -> bool:
        """Whether a person holds what is left of a running loop."""
        found = [(item, state) for item, state in self.states(loop).items()]
        ready = [item for item, state in found if state == "ready"]
        begun = [item for item, state in found if state == "running"]
        held = all(self.coordination.holds_back(loop, item) for item in ready)
        return bool(ready or begun) and held and all(map(self.coordination.held(loop), begun))

    def _check_item(self, loop: str, item: str, record: ItemRecord, state: str) -> None:
        """Invariant: an item says what became of its job, and each run has one job."""
        job = self.job_row(record.job_id).get("state") if record.job_id else None
        # What could not be sent and then could goes on in a loop that was stopped meanwhile. What a
        # person requeues in a stopped loop waits for its start.
        going_on = self._undelivered | self.checker.repositories.requeued
        waits = state == "stopped" and record.job_id in going_on
        if (
            record.state == "running"
            and not waits
            and not self.coordination.held(loop)(item)
            and (job is None or job in TERMINAL or state != "paused")
        ):
            self._violated(f"{loop}/{item} is running in a loop that is {state}; its job is {job}")
        if (record.state == "passed") != (job == "succeeded") and record.state != "skipped":
            self._violated(f"{loop}/{item} is {record.state}, but its job is {job}")
        held_back = self.coordination.holds_back(loop, item)
        if record.state == "ready" and state in PLANNED and not held_back:
            self._violated(f"{loop}/{item} is ready and gets no slot")
        runs = sum(found == (loop, item) for found in self.jobs.values())
        if runs != record.runs and not self.checker.world.restarts:
            self._violated(f"{loop}/{item} had {record.runs} runs, but {runs} jobs")

    def _check_healed(self, loop: str, item: str, record: ItemRecord, state: str) -> None:
        """Invariant: what may be healed is, and every healing has its outcome."""
        heals = [each for each in self._heals(loop) if each.item == item]
        pending = [each.action for each in heals if each.outcome == "pending"]
        if record.state in _DONE and pending and state in PLANNED:
            self._violated(f"{loop}/{item} is {record.state}, but {pending} has no outcome")
        may_heal = "change_strategy" in self.config(loop).get("auto_heal", ())
        failed = record.state == "failed" and record.reason in ("max_attempts", "repeated_failure")
        if may_heal and failed and state in PLANNED and not heals:
            self._violated(f"{loop}/{item} failed, and nothing was done about it")

    def check(self) -> None:
        """Check the loops of a run that has been drained."""
        self.check_rest()
        if self.checker.world.restarts:
            return  # what was charged in a lost second is not known
        for loop in self.specs:
            spent = float(self._client.hget(self._part(loop, "spent"), "loop:tokens") or 0)
            due = sum(each.charge for each in self.claims.values() if each.loop == loop)
            if spent != due:
                self._violated(f"{loop} was charged with {spent:g} tokens instead of {due:g}")

    # -- for the checks of jobs -------------------------------------------------------------------

    def has_own_memory(self, job_id: str) -> bool:
        """Whether the failures of a job are remembered with it, not with those of other runs."""
        place = self.jobs.get(job_id)
        if place is None:
            return True
        return place not in self.forgotten and list(self.jobs.values()).count(place) == 1

    def tokens_of(self, view: JobView) -> int | None:
        """Return what the stored answers of an item's job used; None for other jobs."""
        if view.id not in self.jobs:
            return None
        return sum(
            each.output.usage.total_tokens or 0 for each in view.attempts if each.output is not None
        )

    # -- records ----------------------------------------------------------------------------------

    @property
    def settings(self) -> Any:
        return self.checker.world.settings

    @property
    def _now(self) -> float:
        return self.checker.world.scheduler.now

    def _violated(self, text: str) -> None:
        self.checker.violated(text)

    def _part(self, loop: str, part: str) -> str:
        return f"{keys.loop(self.prefix, loop)}:{part}"

    def row(self, loop: str) -> dict[str, str]:
        row: dict[str, str] = self._client.hgetall(keys.loop(self.prefix, loop))
        return row

    def config(self, loop: str) -> dict[str, Any]:
        config: dict[str, Any] = json.loads(self.row(loop)["config"].removeprefix(NEEDS_SCHEMA_6))
        return config

    def running(self, loop: str) -> str:
        """Return the first item of a loop that runs, if one does."""
        return next((k for k, state in sorted(self.states(loop).items()) if state == "running"), "")

    def items(self, loop: str) -> dict[str, ItemRecord]:
        rows = self._client.hgetall(self._part(loop, "items"))
        return {item: ItemRecord.parse(text) for item, text in rows.items()}

    def regressions(self, loop: str) -> RegressionLog:
        return RegressionLog.from_text(self.row(loop).get("regressions", ""))

    def states(self, loop: str) -> dict[str, str]:
        return {item: record.state for item, record in self.items(loop).items()}

    def job_row(self, job_id: str) -> dict[str, str]:
        return self.checker.job_row(job_id)

    @property
    def _slots(self) -> int:
        return int(self._client.get(f"{self.prefix}loops:slots") or self.settings.loop_slots)

    def has_slot(self, job_id: str) -> bool:
        return bool(self._client.zscore(f"{self.prefix}loops:live", job_id) is not None)

    def live_now(self) -> set[str]:
        return set(self._client.zrange(f"{self.prefix}loops:live", 0, -1))
