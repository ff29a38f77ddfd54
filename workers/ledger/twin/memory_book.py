"""What the steps of the in-memory ledger share: prelude.lua, in Python."""

from __future__ import annotations

import json
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from mulligan.policies.jobs.job import TERMINAL
from mulligan.tasks.ports.ledger import Entry
from mulligan.workers.ledger import rows
from mulligan.workers.ledger.twin.memory_escalations import escalate
from mulligan.workers.ledger.twin.memory_rows import (
    Rows,
    attempt_name,
    cycle_name,
    job_name,
    queue_of,
    stamp,
)
from mulligan.workers.settings.model import Settings

_RANK = {"immediate_retry": 0, "delayed_verification": 1, "policy_retry": 2, "initial": 3}
RANK_STEP = 1e14


@dataclass
class OutboxRow:
    """Where an entry is to be published, and how often it was."""

    queue: str
    priority: int
    #: When the sweep looks at it; None while it is parked behind a pause.
    at: float | None
    #: -1: it waits for the sweep. 0: somebody has it in hand to publish.
    published: float
    tries: int = 0
    #: It is with the broker: looked at now and then, after all that is due.
    out: bool = False


class Book:
    """Everything the ledger knows, and the steps that several scripts take."""

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float],
        live: Callable[[], Settings],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._live = live
        self._lock = threading.Condition()
        #: Milliseconds, fixed for the length of a step.
        self.now = 0.0
        self.rows = Rows()
        #: ``jobs``, ``jobs:<state>`` and ``cycles``: ids by time.
        self.indexes: dict[str, dict[str, float]] = {}
        self.outbox: dict[str, OutboxRow] = {}
        self.watermarks: dict[tuple[str, int], float] = {}
        self.leases: dict[str, float] = {}
        self.paused: set[str] = set()
        #: Behind each pause or quota, the entries that met it in the order of coming.
        self.parked: dict[str, dict[str, float]] = {}
        self.active: dict[str, set[str]] = {}
        self.leased_for: dict[str, str] = {}
        self.lanes: dict[str, dict[str, float]] = {}
        self.holding: dict[str, str] = {}
        self.sessions: dict[str, dict[str, float]] = {}
        self.stale: dict[str, float] = {}
        self._events: deque[tuple[tuple[int, int], str]] = deque(maxlen=settings.events_cap)
        self._last_event = (0, 0)

    @contextmanager
    def step(self) -> Iterator[None]:
        """One atomic step, as a script is one."""
        with self._lock:
            self.now = self._clock() * 1000
            self.rows.drop_expired(self.now)
            yield

    # -- events ---------------------------------------------------------------------------------

    def event(self, kind: str, job_id: str, /, **data: Any) -> None:
        ms, count = self._last_event
        self._last_event = (int(self.now), 0) if int(self.now) > ms else (ms, count + 1)
        text = json.dumps({**data, "type": kind, "job": job_id})
        self._events.append((self._last_event, text))
        self._lock.notify_all()

    def events_after(self, after: str, block: float | None) -> list[tuple[str, str]]:
        with self._lock:
            ms, _, count = after.partition("-")
            start = self._last_event if after == "$" else (int(ms), int(count or 0))
            if block is not None:
                self._lock.wait_for(lambda: self._last_event > start, timeout=block)
            found = [(at, text) for at, text in self._events if at > start]
            return [(f"{ms}-{count}", text) for (ms, count), text in found[:1000]]

    # -- indexes --------------------------------------------------------------------------------

    def index(self, name: str) -> dict[str, float]:
        return self.indexes.setdefault(name, {})

    def newest(self, name: str, *, since: float = -math.inf) -> list[str]:
        found = sorted(((at, key) for key, at in self.index(name).items()), reverse=True)
        return [key for at, key in found if at >= since]

    # -- the outbox -----------------------------------------------------------------------------

    def enqueue(self, entry: str, queue: str, priority: int, at: float) -> None:
        """The sweep publishes it when it is due."""
        self.outbox[entry] = OutboxRow(queue, priority, at, published=-1)

    def hand_out(self, entry: str, queue: str, priority: int) -> None:
        """The caller publishes it at once; if it does not, the sweep does after the grace."""
        at = self.now + self._settings.outbox_grace * 1000
        self.outbox[entry] = OutboxRow(queue, priority, at, published=0)

    def drop_entry(self, entry: str) -> None:
        """The claim removes an entry; how far a queue has come is remembered."""
        row = self.outbox.pop(entry, None)
        if row is not None:
            mark = (row.queue, row.priority)
            self.watermarks[mark] = max(row.published, self.watermarks.get(mark, 0))

    def overtaken_by(self, row: OutboxRow) -> float:
        """When the latest of those was published that were claimed though no more urgent."""
        marks = ((row.queue, priority) for priority in range(row.priority, 10))
        return max(self.watermarks.get(mark, 0) for mark in marks)

    def remember(self, memory: str, signature: str) -> None:
        """One more of a signature. A memory shared by many jobs forgets what it saw least often."""
        self.rows.add(memory, signature, 1)
        counts = {name: int(count) for name, count in self.rows.get(memory).items()}
        if len(counts) > self._settings.memory_cap:
            others = ((count, name) for name, count in counts.items() if name != signature)
            self.rows.drop_field(memory, min(others)[1])

    def park(self, entry: str, pause: str, *, since: float | None = None) -> None:
        """In the order of coming; one that was let go and came too late keeps its place."""
        self.parked.setdefault(pause, {}).setdefault(entry, self.now if since is None else since)
        if entry in self.outbox:
            self.outbox[entry].at = None

    def unpark(self, pause: str) -> str | None:
        """The first of those that wait behind a pause which still have somewhere to go."""
        waiting = self.parked.get(pause, {})
        for entry in sorted(waiting, key=lambda each: (waiting[each], each)):
            del waiting[entry]
            if entry in self.outbox:
                return entry
        self.parked.pop(pause, None)
        return None

    # -- leases ---------------------------------------------------------------------------------

    def leased(self, entry: str) -> bool:
        return self.leases.get(entry, 0) > self.now

    def lease(self, entry: str, seconds: float | None = None, *, tenant: str | None = None) -> None:
        self.leases[entry] = self.now + (seconds or self._settings.lease) * 1000
        if tenant:
            self.active.setdefault(tenant, set()).add(entry)
            self.leased_for[entry] = tenant

    def drop_lease(self, entry: str) -> str | None:
        """The tenant who has a slot more now, if it was a tenant's."""
        self.leases.pop(entry, None)
        lane = self.rows.get(job_name(Entry.parse(entry).job_id)).get("lane")
        if lane is not None:
            self.let_go(lane, entry)
        tenant = self.leased_for.pop(entry, None)
        if tenant is not None:
            self.active[tenant].discard(entry)
        return tenant

    def spent_name(self, tenant: str) -> str:
        return f"spent:{tenant}:{int(self.now // 86_400_000)}"

    def spend(self, job_id: str, tokens: int | None) -> None:
        tenant = self.rows.get(job_name(job_id)).get("tenant")
        if tokens is None or not tenant:
            return
        self.rows.add(self.spent_name(tenant), "tokens", tokens)
        self.expire(self.spent_name(tenant), 2 * 86400)

    def allowance(self, tenant: str) -> int | None:
        """How many attempts a tenant may start now; None is no limit."""
        quotas = self._live().quotas
        quota = quotas.get(tenant) or quotas.get("*")
        if quota is None:
            return None
        spent = int(self.rows.get(self.spent_name(tenant)).get("tokens", 0))
        if quota.tokens_per_day is not None and spent >= quota.tokens_per_day:
            return 0
        if quota.concurrency is None:
            return None
        return max(0, quota.concurrency - len(self.active.get(tenant, ())))

    def held_back(
        self, job: Mapping[str, str], attempt: Mapping[str, str]
    ) -> tuple[Literal["pause", "budget"], str] | None:
        """What an attempt has to wait for, and behind what; None if nothing is in its way."""
        for pause in (f"queue:{queue_of(attempt['mode'])}", f"task_type:{job['task_type']}"):
            if pause in self.paused:
                return "pause", pause
        tenant = job.get("tenant")
        if tenant is not None and self.allowance(tenant) == 0:
            return "budget", f"quota:{tenant}"
        return None

    # -- lanes ----------------------------------------------------------------------------------

    def offer(self, lane: str, entry: str, mode: str, at: float) -> None:
        """Work done elsewhere waits in its subject's lane, the most urgent first."""
        self.lanes.setdefault(lane, {})[entry] = _RANK[mode] * RANK_STEP + at

    def hold(self, lane: str, entry: str) -> None:
        """A subject holds one thing: what it has in hand is not forgotten for another."""
        self.lanes.get(lane, {}).pop(entry, None)
        held = self.holding.get(lane)
        if held is None or not self.leased(held):
            self.holding[lane] = entry

    def let_go(self, lane: str, entry: str) -> None:
        if self.holding.get(lane) == entry:
            del self.holding[lane]

    def await_deadline(self, job_id: str, at: float) -> None:
        """Nobody may ever come to a lane: the sweep ends what waits there past the deadline."""
        self.stale[f"j:{job_id}"] = at

    def await_verification(self, cycle_id: str, queue: str, lane: str, at: float) -> None:
        if queue != "lane":
            self.enqueue(f"c:{cycle_id}", queue, 5, at)
            return
        self.offer(lane, f"c:{cycle_id}", "delayed_verification", at)
        self.stale[cycle_id] = at + self._settings.stale_after * 1000

    # -- jobs and cycles ------------------------------------------------------------------------

    def set_state(self, job_id: str, old: str | None, new: str, waiting_for: str = "") -> None:
        fields = {"state": new, "waiting_for": waiting_for, "updated_at": stamp(self.now)}
        self.rows.set(job_name(job_id), fields)
        if old != new:
            if old:
                self.index(f"jobs:{old}").pop(job_id, None)
            self.index(f"jobs:{new}")[job_id] = self.now

    def open_cycles(self, job_id: str) -> list[str]:
        return self.rows.get(job_name(job_id)).get("open_cycles", "").split()

    def save_open_cycles(self, job_id: str, cycles: list[str]) -> None:
        self.rows.set(job_name(job_id), {"open_cycles": " ".join(cycles)})

    def expire(self, name: str, seconds: float) -> None:
        self.rows.expire(name, self.now + math.ceil(seconds * 1000))
        self.rows.drop_expired(self.now)

    def retain(self, job_id: str) -> None:
        """Retention starts at the terminal state, never before delayed verification ended."""
        job = self.rows.get(job_name(job_id))
        if job.get("state") not in TERMINAL or job.get("open_cycles"):
            return
        ttl = self._settings.retention
        for number in range(1, int(job["attempt"]) + 1):
            self.expire(attempt_name(job_id, number), ttl)
        self.expire(job["memory"], ttl)
        self.expire(job_name(job_id), ttl)

    def open_cycle(
        self, entry: Entry, cycle_id: str, loop: int, *, status: str, metadata: str, reason: str
    ) -> None:
        """A pending cycle stays open with its job; one whose retry was cut short is born ended."""
        name = cycle_name(cycle_id)
        if name in self.rows:
            return
        fields = {
            "job_id": entry.job_id,
            "source_attempt": entry.attempt,
            "loop_index": loop,
            "status": status,
            "created_at": stamp(self.now),
            "metadata": metadata,
            "tenant": self.rows.get(job_name(entry.job_id)).get("tenant", ""),
        }
        self.rows.set(name, fields)
        self.index("cycles")[cycle_id] = self.now
        self.rows.set(job_name(entry.job_id), {"loop": loop})
        if status != "pending_immediate_retry":
            self.end_cycle(entry.job_id, cycle_id, status, reason)
            return
        self.save_open_cycles(entry.job_id, [*self.open_cycles(entry.job_id), cycle_id])
        self.event("cycle", entry.job_id, cycle=cycle_id, status=status)

    def end_cycle(self, job_id: str, cycle_id: str, status: str, reason: str) -> None:
        fields = {"status": status, "reason": reason, "ended_at": stamp(self.now)}
        self.rows.set(cycle_name(cycle_id), fields)
        self.expire(cycle_name(cycle_id), self._settings.cycle_retention)
        self.drop_entry(f"c:{cycle_id}")
        self.drop_lease(f"c:{cycle_id}")
        self.stale.pop(cycle_id, None)
        lane = self.rows.get(job_name(job_id)).get("lane")
        if lane is not None:
            self.lanes.get(lane, {}).pop(f"c:{cycle_id}", None)
        self.event("cycle", job_id, cycle=cycle_id, status=status, reason=reason)

    def close_cycle(self, job_id: str, cycle_id: str, status: str, reason: str) -> None:
        """A cycle that ends by itself, not with its job."""
        self.end_cycle(job_id, cycle_id, status, reason)
        if status == "escalated":
            attempt = self.rows.get(cycle_name(cycle_id))["source_attempt"]
            late = reason.startswith("delayed verification")
            alike = "delayed_verification" if late else reason
            escalate(self, cycle_id, job_id, attempt, alike, reason, cycle_id=cycle_id)
        if job_name(job_id) in self.rows:
            left = [cycle for cycle in self.open_cycles(job_id) if cycle != cycle_id]
            self.save_open_cycles(job_id, left)
            self.retain(job_id)

    def finish(
        self,
        job_id: str,
        old: str,
        state: str,
        *,
        reason: str = "",
        detail: str = "",
        about: tuple[str, str] | None = None,
    ) -> None:
        """The end of a job. Its open cycles end with it, unless it succeeded."""
        self.set_state(job_id, old, state)
        job = self.rows.get(job_name(job_id))
        told: dict[str, Any] = {
            "state": state,
            "reason": reason,
            "attempts": int(job["attempt"]),
            "tokens": rows.tokens_of(job),
            "task_type": job["task_type"],
            "first_try": state == "succeeded" and job["attempt"] == "1",
        }
        if "tenant" in job:
            told["tenant"] = job["tenant"]
        if "lane" in job:
            self.lanes.get(job["lane"], {}).pop(f"a:{job_id}/{job['attempt']}", None)
            self.let_go(job["lane"], f"a:{job_id}/{job['attempt']}")
            self.stale.pop(f"j:{job_id}", None)
        if state == "escalated":
            told["escalation"] = f"{job_id}:{job['attempt']}"
            signature = escalate(
                self, told["escalation"], job_id, job["attempt"], reason, detail, about=about
            )
            if signature:
                told["signature"] = signature
        fields = {"reason": reason, "detail": detail, "finished_at": stamp(self.now)}
        self.rows.set(job_name(job_id), fields)
        if state != "succeeded":
            for cycle_id in self.open_cycles(job_id):
                self.end_cycle(job_id, cycle_id, state, reason)
            self.save_open_cycles(job_id, [])
        done = self.rows.get(job_name(job_id)).get("on_done")
        if done:
            self.enqueue(f"d:{job_id}/1", str(done), 5, self.now)
        self.event("job", job_id, **told)
        self.retain(job_id)
