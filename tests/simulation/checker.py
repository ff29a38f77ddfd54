"""The invariants of docs/architecture.md, checked while a run goes on and when it has ended.

The checks read Redis from outside, without faults. A violation is a sentence that names the
invariant's subject.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mulligan.policies.jobs.exemption import is_exempt
from mulligan.policies.jobs.job import TERMINAL, Job
from mulligan.tasks.ports.ledger import Entry, JobView
from mulligan.workers.ledger import keys
from simulation.loop_checker import LoopChecker
from simulation.providers import TOKENS, Purchase
from simulation.repository_checker import RepositoryChecker
from simulation.scheduler import Process

if TYPE_CHECKING:
    from simulation.world import Restart, World

#: Scripts that only the holder of a lease may run with effect, and the answers that say so.
_FENCED = {
    "store_output": {"stored"},
    "settle": {"settled"},
    "store_result": {"stored", "last"},
    "requeue": {"requeued", "escalated"},
    "store_cycle_output": {"stored"},
    "settle_cycle": {"settled"},
}
_CLAIMS = {"claim", "claim_cycle"}
_READ = {"accept", *_CLAIMS, *_FENCED}


@dataclass
class Checker:
    world: World
    violations: list[str] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    #: Jobs that Redis has accepted.
    written_ids: set[str] = field(default_factory=set)
    #: Jobs that a producer was told are accepted.
    accepted_ids: set[str] = field(default_factory=set)
    cancelled_ids: set[str] = field(default_factory=set)
    #: Entries in quarantine that a person dropped.
    dropped: set[str] = field(default_factory=set)
    #: When events were read for alerts.
    looks: list[float] = field(default_factory=list)
    #: Job → when claims of its entries ended well.
    claims_ended: dict[str, list[float]] = field(default_factory=dict)
    #: Process and entry → the token and the time of its last claim.
    claims: dict[tuple[Process, str], tuple[str, float]] = field(default_factory=dict)
    loops: LoopChecker = field(init=False)
    repositories: RepositoryChecker = field(init=False)

    def __post_init__(self) -> None:
        self.loops = LoopChecker(self)
        self.repositories = RepositoryChecker(self)

    def violated(self, text: str) -> None:
        self.violations.append(text)
        self.world.note(None, f"!! {text}")

    # -- while the run goes on --------------------------------------------------------------------

    def submitted(self, job_id: str, job: Job) -> None:
        self.jobs[job_id] = job

    def accepted(self, job_id: str, job: Job) -> None:
        """Note what a producer was told. Redis may have lost the job before that."""
        self.jobs[job_id] = job  # a key that is used again has another id
        if job_id in self.written_ids:
            self.accepted_ids.add(job_id)

    def snapshot(self) -> set[str]:
        """Return the jobs that are durable now."""
        return set(self.written_ids)

    def restored(self, durable: set[str]) -> None:
        """Forget what was accepted after the snapshot."""
        self.written_ids = durable
        self.accepted_ids &= durable
        self.loops.restored()
        self.repositories.restored()

    def buying(self, process: Process, handled: str) -> None:
        """Invariant 3: an answer that is stored is not bought again."""
        entry = Entry.parse(handled)
        key = self._record_key(entry)
        if self.world.server.client.hexists(key, "output"):
            self.violated(f"{process.name} buys {entry} again, whose answer is stored")

    def token_before(self, script: str, request: str) -> set[str] | None:
        """Return the tokens that may write now, before a fenced script runs."""
        if script not in _FENCED:
            return None
        fields = json.loads(request)
        entry = self._entry(fields)
        row = self.world.server.client.hgetall(self._record_key(entry))
        names = ["token", "output_by", "settled_by"]
        if entry.kind == "verification":
            names = [f"vtoken:{entry.index}"]
        if script == "requeue":
            names = [names[0], "requeued_by"]
        return {row[name] for name in names if row.get(name)}

    def script_answered(
        self, script: str, request: str, answer: Any, fenced: set[str] | None, process: Process
    ) -> None:
        """Invariant 5: only the holder of the lease writes."""
        fields = json.loads(request) if script in _READ else {}
        if script == "accept" and answer[0] in ("accepted", "seen"):
            self.written_ids.add(answer[1] if len(answer) > 1 else fields["id"])
        if script == "alerts":
            self.looks.append(self.world.scheduler.now)
        if script in _CLAIMS and answer[0] == "claimed":
            claim = fields["token"], self.world.scheduler.now
            self.claims[process, str(self._entry(fields))] = claim
            self._check_quotas()
        self.loops.script_answered(script, request, answer, process)
        self.repositories.script_answered(script, request, answer)
        if fenced is None:
            return
        entry = self._entry(fields)
        if answer[0] not in _FENCED[script]:
            return
        self.claims_ended.setdefault(entry.job_id, []).append(self.world.scheduler.now)
        if script in ("store_output", "store_cycle_output"):
            self._answer_stored(fields["token"])
        if fields["token"] not in fenced:
            self.violated(f"{process.name} wrote {script} of {entry} without its lease")

    def _check_quotas(self) -> None:
        """Invariant 9: a tenant's quota of attempts without an answer holds over all partitions."""
        client, running = self.world.server.client, Counter[str]()
        for prefix in self._prefixes():
            for text in client.zrange(f"{prefix}leases", 0, -1):
                entry = Entry.parse(text)
                answered = client.hexists(self._record_key(entry), "output")
                if entry.kind == "attempt" and not answered:
                    running[self.job_row(entry.job_id).get("tenant", "")] += 1
        for tenant, quota in self.world.settings.quotas.items():
            if running[tenant] > (quota.concurrency or running[tenant]):
                self.violated(f"{running[tenant]} attempts of {tenant} run at once")

    def _answer_stored(self, token: str) -> None:
        for purchase in self.world.providers.purchases:
            if purchase.token == token:
                purchase.stored = True

    def _entry(self, fields: dict[str, Any]) -> Entry:
        if fields.get("entry"):
            return Entry.parse(fields["entry"])
        if fields.get("cycle") and isinstance(fields["cycle"], str):
            return Entry.parse(f"c:{fields['cycle']}")
        if fields.get("index") is not None:
            return Entry("verification", fields["id"], int(fields["n"]), int(fields["index"]))
        return Entry("attempt", fields["id"], int(fields["n"]))

    def _record_key(self, entry: Entry) -> str:
        prefix = keys.prefix_of(self.world.settings.key_prefix, entry.job_id)
        if entry.kind == "cycle":
            return keys.cycle(prefix, entry.cycle_id)
        return keys.attempt(prefix, entry.job_id, entry.attempt)

    # -- when it has ended ------------------------------------------------------------------------

    def unfinished(self) -> list[str]:
        """Return what still has to happen: jobs, cycles, entries, leases."""
        client, found = self.world.server.client, self._unsent()
        for prefix in self._prefixes():
            for name in ("outbox", "leases"):
                found += [f"{name}: {each}" for each in client.zrange(f"{prefix}{name}", 0, 3)]
            found += [f"parked: {each}" for each in client.smembers(f"{prefix}parked")]
            # A subject's delayed verification waits in no outbox, and its job has ended.
            found += [f"lane: {each}" for each in client.keys(f"{prefix}lane:*")]
            for state in ("queued", "running", "waiting"):
                found += [f"{state}: {i}" for i in client.zrange(keys.jobs(prefix, state), 0, 3)]
        return found

    def _unsent(self) -> list[str]:
        """Return the deliveries and bulk actions that a control worker, if there is one, owes."""
        if not any(each.name.startswith("control") for each in self.world.processes):
            return []
        client, fleet = self.world.server.client, keys.fleet_prefix(self.world.settings.key_prefix)
        found = [f"bulk action: {each}" for each in client.zrange(keys.bulks(fleet), 0, -1)]
        for prefix in (*self._prefixes(), fleet):
            newest = client.xrevrange(keys.events(prefix), count=1)
            if newest and newest[0][0] != client.hget(f"{prefix}alerts", "cursor"):
                found.append(f"event: {newest[0][0]}")
            for name in sorted(client.keys(f"{prefix}deliveries:due:*")):
                found += [f"delivery: {each}" for each in client.zrange(name, 0, -1)]
            found += [f"alert: {each}" for each in client.zrange(f"{prefix}alerts:due", 0, -1)]
        return found

    def check(self) -> list[str]:
        """Check every invariant of a run that has been drained. Return all violations."""
        ledger = self.world.outside_ledger()
        for error in self.world.scheduler.errors:
            self.violated(f"an unexpected exception: {error}")
        for job_id in sorted(self.jobs):
            view = ledger.job(job_id)
            if view is None:
                if job_id in self.accepted_ids:
                    self.violated(f"{job_id} was accepted and is lost")
                continue
            self._check_job(view)
        self._check_purchases()
        self._check_structures()
        self._check_groups()
        self._check_events()
        self._check_control()
        self.loops.check()
        self.repositories.check()
        return self.violations

    def _check_job(self, view: JobView) -> None:
        if view.state not in TERMINAL:
            self.violated(f"{view.id} ends {view.state} ({view.waiting_for}), not in an end state")
            return
        self._check_reason(view)
        self._check_scores(view)
        self._check_retries(view)
        self._check_counts(view)
        self.repositories.check_job(view)
        for cycle in view.cycles:
            if cycle.open:
                self.violated(f"cycle {cycle.id} is never ended: {cycle.status}")
            elif cycle.status == "escalated" and cycle.score is not None:
                self._check_escalation(cycle.id)
        if view.state == "escalated":
            self._check_escalation(f"{view.id}:{len(view.attempts)}")
        broker, task = self.world.broker, f"{view.id}-done"
        sent = task in broker.outcomes or task in broker.lost  # it is not confirmed
        if view.job.on_done and not sent and f"d:{view.id}/1" not in self.dropped:
            self.violated(f"the outcome of {view.id} was never sent")

    def _check_reason(self, view: JobView) -> None:
        """A job ends for a reason that happened."""
        row = self.job_row(view.id)
        ended = float(row.get("finished_at") or 0)
        if view.reason == "deadline" and ended < float(row["deadline_at"]):
            early = (float(row["deadline_at"]) - ended) / 1000
            self.violated(f"{view.id} was escalated {early:.1f} s before its deadline")
        losses = sum(n for e, n in self.world.losses.items() if Entry.parse(e).job_id == view.id)
        losses += sum(
            self._forgot_the_end_of_a_claim(view.id, each) for each in self.world.restarts
        )
        external = view.job.subject is not None  # a subject's lease is not renewed
        if (
            view.reason == "worker_lost"
            and not external
            and losses < self.world.settings.max_claims
        ):
            self.violated(f"{view.id} is worker_lost, but only {losses} workers were lost")
        done = view.reason == "already_done" and view.id in self.repositories.jobs
        if view.state == "cancelled" and view.id not in self.cancelled_ids and not done:
            self.violated(f"{view.id} is cancelled, but nobody cancelled it")

    def _forgot_the_end_of_a_claim(self, job_id: str, restart: Restart) -> bool:
        """Whether a claim, still known to Redis, ended well in the second that it lost."""
        ended = self.claims_ended.get(job_id, ())
        return any(restart.written <= at <= restart.back for at in ended)

    def _check_scores(self, view: JobView) -> None:
        scores: Any = view.job.runner.options["scores"]
        for attempt in view.attempts:
            n = attempt.plan.number
            known = view.id not in self.repositories.jobs
            expected = scores[min(n, len(scores)) - 1]
            if known and attempt.score is not None and attempt.score != expected:
                self.violated(f"attempt {n} of {view.id} has the score {attempt.score}")
            if attempt.verdict is not None and attempt.verdict.success and n < len(view.attempts):
                after = view.attempts[n].plan.mode
                if after != "initial":
                    self.violated(f"{view.id} went on with {after} after a success")
        if view.state == "succeeded" and not any(
            each.verdict and each.verdict.success for each in view.attempts
        ):
            self.violated(f"{view.id} succeeded without a successful attempt")

    def _check_retries(self, view: JobView) -> None:
        """Invariant 2: exactly one immediate retry per eligible low score."""
        cycles = Counter(cycle.source_attempt for cycle in view.cycles)
        exempt = is_exempt(view.job.task_type, self.world.settings.exempt_task_types)
        for attempt in view.attempts:
            n, mode = attempt.plan.number, attempt.plan.mode
            low = attempt.score is not None and attempt.score < 70
            follower = view.attempts[n].plan.mode if n < len(view.attempts) else None
            if mode == "immediate_retry" or not low or exempt:
                if follower == "immediate_retry":
                    self.violated(f"attempt {n} of {view.id} has a retry that is not due")
                if cycles[n]:
                    self.violated(f"attempt {n} of {view.id} has a cycle that is not due")
                continue
            if cycles[n] > 1 or (cycles[n] == 0 and self._owes_cycle(view, mode, follower)):
                self.violated(f"attempt {n} of {view.id} has {cycles[n]} cycles, not one")
            if follower == "policy_retry":
                self.violated(f"attempt {n} of {view.id} has no immediate retry")

    def _owes_cycle(self, view: JobView, mode: str, follower: str | None) -> bool:
        """Whether a low score must have opened a cycle; a cancelled job opens none."""
        if follower == "immediate_retry":
            return True
        return mode == "initial" and view.id not in self.cancelled_ids

    def _check_counts(self, view: JobView) -> None:
        """Invariant 4: failures and tokens count once per attempt."""
        row = self.job_row(view.id)
        prefix = keys.prefix_of(self.world.settings.key_prefix, view.id)
        since = max((each.plan.since for each in view.attempts), default=0)
        if view.job.memory_scope == "job" and self.loops.has_own_memory(view.id):
            memory = self.world.server.client.hgetall(f"{prefix}{row['memory']}")
            counted = sum(int(count) for count in memory.values())
            failed = sum(
                len(set(each.verdict.signatures))
                for each in view.attempts
                if each.verdict is not None and each.plan.number > since
            )
            if counted != failed:
                self.violated(f"{view.id} counts {counted} failures, but {failed} happened")
        answers = sum(each.output is not None for each in view.attempts)
        for cycle in view.cycles:
            key = keys.cycle(prefix, cycle.id)
            answers += bool(self.world.server.client.hexists(key, "output"))
        of_item = self.loops.tokens_of(view)
        tokens = TOKENS * answers if of_item is None else of_item
        if (view.tokens or 0) != tokens:
            self.violated(f"{view.id} counts {view.tokens} tokens for {answers} stored answers")

    def _check_escalation(self, escalation_id: str) -> None:
        """Invariant 8: every escalation is on record."""
        prefix = keys.prefix_of(self.world.settings.key_prefix, escalation_id)
        client = self.world.server.client
        if not client.exists(keys.escalation(prefix, escalation_id)):
            self.violated(f"the escalation {escalation_id} is not on record")
        elif client.zscore(keys.escalations(prefix), escalation_id) is None:
            self.violated(f"the escalation {escalation_id} is in no list")

    def _check_purchases(self) -> None:
        """An answer that was paid for is stored, unless its process, claim or job was lost."""
        for purchase in self.world.providers.purchases:
            if not purchase.stored and not self._excused(purchase):
                self.violated(
                    f"{purchase.process.name} bought {purchase.entry} and lost the answer"
                )

    def _excused(self, purchase: Purchase) -> bool:
        process = purchase.process
        lost = process.dead or process.freezes > purchase.freezes
        forgotten = any(r.written <= purchase.claimed_at <= r.back for r in self.world.restarts)
        return lost or forgotten or Entry.parse(purchase.entry).job_id in self.cancelled_ids

    def _check_structures(self) -> None:
        client = self.world.server.client
        for prefix in self._prefixes():
            for name in ("outbox:entries", "parked_behind", "holding", "retrying"):
                for each in client.hgetall(f"{prefix}{name}"):
                    self.violated(f"{name} still has {each}")
            for name in ("outbox", "leases"):
                for each in client.zrange(f"{prefix}{name}", 0, -1):
                    self.violated(f"{name} still has {each}")
            for key in sorted(client.keys(f"{prefix}active:*") + client.keys(f"{prefix}parked*")):
                self.violated(f"{key} is not empty")
            for state in ("queued", "running", "waiting", *sorted(TERMINAL)):
                for job_id in client.zrange(keys.jobs(prefix, state), 0, -1):
                    if self.job_row(job_id).get("state") != state:
                        self.violated(f"{job_id} is listed as {state} and is not")

    def _check_groups(self) -> None:
        client = self.world.server.client
        for prefix in self._prefixes():
            for signature in client.zrange(keys.groups(prefix), 0, -1):
                count = int(client.hget(keys.group(prefix, signature), "open") or 0)
                members = client.zcard(keys.open_of_group(prefix, signature))
                if count != members:
                    self.violated(f"group {signature} counts {count} of {members} escalations")

    def _check_events(self) -> None:
        """Figures are counted from events, so each settled attempt has exactly one."""
        client = self.world.server.client
        settled: Counter[tuple[str, int]] = Counter()
        for prefix in self._prefixes():
            for _, fields in client.xrange(keys.events(prefix)):
                event = json.loads(fields["data"])
                if event["type"] == "attempt" and event["state"] == "settled":
                    settled[event["job"], int(event["attempt"])] += 1
                elif event.get("state") == "escalated" and event.get("escalation"):
                    self._check_escalation(event["escalation"])
        for (job_id, n), count in sorted(settled.items()):
            if count != 1:
                self.violated(f"attempt {n} of {job_id} was settled {count} times")

    def _alerts_since(self) -> float:
        """Return the time from which on alerts are sent: a window before the first look."""
        kept = [
            look
            for look in self.looks
            if not any(each.written <= look <= each.back for each in self.world.restarts)
        ]
        return max(0.0, min(kept, default=0.0) - self.world.settings.alert_window)

    def _check_control(self) -> None:
        """Every alert was received, and every bulk action has ended each of its escalations."""
        for each in self._unsent():
            self.violated(f"a control worker left the {each}")
        if not any(each.name.startswith("control") for each in self.world.processes):
            return
        client, ends = self.world.server.client, Counter[str]()
        since = self._alerts_since()
        for prefix in self._prefixes():
            for _, fields in client.xrange(keys.events(prefix), min=int(since * 1000)):
                event = json.loads(fields["data"])
                ends[event["job"]] += event["type"] == "job" and event["state"] in TERMINAL
        for job_id, count in sorted(ends.items()):
            received = self.world.receivers.finished(job_id)
            if received < count or (received > count and not self.world.restarts):
                self.violated(f"{received} alerts about the {count} ends of {job_id} arrived")
        for name in sorted(
            client.keys(f"{keys.fleet_prefix(self.world.settings.key_prefix)}bulk:b*")
        ):
            if name.endswith((":todo", ":problems")):
                continue
            row = client.hgetall(name)
            ended = sum(int(row[field]) for field in ("done", "skipped", "failed"))
            if ended != int(row["total"]):
                self.violated(f"{name} ended {ended} of {row['total']} escalations")

    def job_row(self, job_id: str) -> dict[str, str]:
        prefix = keys.prefix_of(self.world.settings.key_prefix, job_id)
        row: dict[str, str] = self.world.server.client.hgetall(keys.job(prefix, job_id))
        return row

    def _prefixes(self) -> list[str]:
        settings = self.world.settings
        return keys.partition_prefixes(settings.key_prefix, settings.partitions or 1)
