"""Reads about the ledger as a whole: its health, what waits, what was spent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mulligan.policies.figures.format import counted
from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.connection.calls import Patience
from mulligan.workers.ledger.partitions import Partitioned

#: Maximum waiting jobs of a partition to read, the newest.
_WAITING_READ = 2000


@dataclass(frozen=True)
class WaitingJobs:
    """A count of waiting jobs; ``more``: there may be more than were read."""

    count: int
    more: bool = False

    def __str__(self) -> str:
        return f"{'more than ' if self.more else ''}{counted(self.count, 'job')}"


@dataclass(frozen=True)
class ParkedEntries:
    """Entries that may not run now, behind one reason (``provider:NAME``, ``quota:TENANT``…)."""

    reason: str
    count: int
    #: Since when the first of them is queued.
    first_at: float

    def age(self, now: float) -> float:
        return max(0.0, now - self.first_at)


class StatusReads(Partitioned):
    """Reads whose round trips grow with the partitions, never with the jobs."""

    def wrong_types(self) -> list[str]:
        """Return what is wrong with keys that all steps use: another program wrote them."""
        types = keys.shared_types(self._settings.key_prefix, self.numbers().count)
        found = self.calls.types(list(types))
        return [
            f"the key {name} is a {kind} instead of a {types[name]}"
            for name, kind in zip(types, found, strict=True)
            if kind not in ("none", types[name])
        ]

    def server_info(self) -> Mapping[str, Any]:
        """Return the Redis server's INFO."""
        info: Mapping[str, Any] = self.calls.run("INFO")
        return info

    def answering_for(self) -> float:
        """Return the seconds since which the ledger answers, as far as it and this process know.

        Redis knows when it was started. This process knows when one of its calls had to wait.
        """
        started = self.calls.run("INFO", "server").get("uptime_in_seconds", math.inf)
        return min(float(started), self.calls.waits.seconds_since())

    def write_problem(self) -> LedgerUnavailable | None:
        """Return why Redis would not store anything now; None if it would. Changes nothing."""
        try:
            for prefix in self.prefixes():
                self.calls.run("SETRANGE", keys.swept_at(prefix), 0, "", patience=Patience.BRIEF)
        except LedgerUnavailable as error:
            return error
        return None

    def sweep_age(self) -> float | None:
        """Return the longest time since a partition's last sweep; None if one was never swept."""
        stamps = [self.calls.run("GET", keys.swept_at(prefix)) for prefix in self.prefixes()]
        if not all(stamps):
            return None
        return self.now() - min(float(stamp) for stamp in stamps) / 1000

    def unpublished_seconds(self) -> float:
        """Return how long the oldest unpublished entry has been due; 0 if there is none."""
        now, oldest = self.now(), 0.0
        for prefix in self.prefixes():
            due = self.calls.run(
                "ZRANGEBYSCORE", keys.outbox(prefix), "-inf", now * 1000,
                "WITHSCORES", "LIMIT", 0, 1,
            )  # fmt: skip
            for row in due[:1]:
                score = row[1] if isinstance(row, list | tuple) else due[1]
                oldest = max(oldest, now - float(score) / 1000)
        return oldest

    def parked(self) -> list[ParkedEntries]:
        """Return the parked entries of all partitions by reason, the largest number first."""
        found: dict[str, ParkedEntries] = {}
        for answer in self.calls.many("parked", [(prefix, {}) for prefix in self.prefixes()]):
            for reason, count, first_at in answer:
                at = float(first_at) / 1000
                known = found.get(reason, ParkedEntries(reason, 0, at))
                total, first = known.count + int(count), min(known.first_at, at)
                found[reason] = ParkedEntries(reason, total, first)
        return sorted(found.values(), key=lambda each: (-each.count, each.reason))

    def waiting_for(self, what: str) -> WaitingJobs:
        """Count the waiting jobs whose `waiting_for` is ``what``, among the newest."""
        count, more = 0, False
        for prefix in self.prefixes():
            index = keys.jobs(prefix, "waiting")
            ids = self.calls.run("ZREVRANGE", index, 0, _WAITING_READ)
            names = [keys.job(prefix, job_id) for job_id in ids[:_WAITING_READ]]
            count += self.calls.fields(names, "waiting_for").count(what)
            more = more or len(ids) > _WAITING_READ
        return WaitingJobs(count, more=more and count > 0)

    def tokens_spent(self, tenants: Sequence[str], *, day: int) -> dict[str, int]:
        """Return the tokens that each tenant used on a day, given in days since 1970."""
        if not tenants:
            return {}
        first = self.prefixes()[0]
        texts = self.calls.run("MGET", *(keys.spent(first, tenant, day) for tenant in tenants))
        return {tenant: int(text or 0) for tenant, text in zip(tenants, texts, strict=True)}

    def job_states(self, job_ids: Sequence[str]) -> dict[str, str]:
        """Return the state of each known job."""
        names = [keys.job(self._prefix(job_id), job_id) for job_id in job_ids]
        found = zip(job_ids, self.calls.fields(names, "state"), strict=True)
        return {job_id: state for job_id, state in found if state is not None}

    def job_owner(self, job_id: str) -> tuple[str | None, str | None, str | None]:
        """Return the tenant of a job, its loop if it does an item of one, and its producer."""
        key = keys.job(self._prefix(job_id), job_id)
        tenant, loop, owner = self.calls.run("HMGET", key, "tenant", "of_loop", "owner")
        return tenant, loop, owner

    def owned(self, job_ids: Sequence[str], owner: str | None) -> set[str]:
        """Return those of these jobs that a producer submitted; for None, all of them."""
        if owner is None or not job_ids:
            return set(job_ids)
        names = [keys.job(self._prefix(job_id), job_id) for job_id in job_ids]
        found = zip(job_ids, self.calls.fields(names, "owner"), strict=True)
        return {job_id for job_id, each in found if each == owner}
