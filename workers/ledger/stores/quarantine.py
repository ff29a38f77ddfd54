"""Quarantined entries: work that could not be sent or read, kept until a person decides."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from mulligan.workers.ledger import keys
from mulligan.workers.ledger.connection.calls import RedisCalls
from mulligan.workers.ledger.stored.stored_bodies import read_records


@dataclass(frozen=True, kw_only=True)
class QuarantinedEntry:
    """An entry that left the outbox, and why."""

    #: The entry's name, such as ``a:<job>/<n>``.
    id: str
    #: None if the name cannot be read.
    job_id: str | None
    #: None if the record could not be read.
    queue: str | None
    #: ``unsendable`` or ``unreadable``.
    reason: str
    error: str
    #: How often sending it failed.
    failures: int
    at: float
    #: The escalation that ends when the entry is sent again or dropped.
    escalation: str
    tenant: str | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Quarantine:
    """The quarantined entries of all partitions."""

    def __init__(self, calls: RedisCalls, prefixes: Callable[[], Sequence[str]]) -> None:
        self._calls = calls
        self._prefixes = prefixes

    def entries(self, *, limit: int = 100, tenant: str | None = None) -> list[QuarantinedEntry]:
        """Return the newest entries. A tenant filters these; it does not look further."""
        found: list[QuarantinedEntry] = []
        for prefix in self._prefixes():
            names = self._calls.run("ZREVRANGE", keys.quarantined(prefix), 0, limit - 1)
            if names:
                rows = self._calls.run("HMGET", keys.quarantined_entries(prefix), *names)
                found += read_records(
                    (f"{keys.quarantined_entries(prefix)} {name}", partial(_read, name, row))
                    for name, row in zip(names, rows, strict=True)
                    if row
                )
        found = [each for each in found if tenant is None or each.tenant == tenant]
        return sorted(found, key=lambda each: each.at, reverse=True)[:limit]

    def count(self, ids: Sequence[str] | None = None) -> int:
        """Return how many entries are quarantined; with ids, how many of these."""
        found = 0
        for prefix in self._prefixes():
            if ids is None:
                found += int(self._calls.run("ZCARD", keys.quarantined(prefix)))
            elif ids:
                rows = self._calls.run("HMGET", keys.quarantined_entries(prefix), *set(ids))
                found += sum(row is not None for row in rows)
        return found

    def retry(self, ids: Sequence[str] | None, *, by: str, tenant: str | None = None) -> list[str]:
        """Send entries again, or all; the sweep publishes them. Return their ids.

        Those whose job is gone or was requeued meanwhile are left.
        """
        return self._change("retry", ids, by, tenant)

    def drop(self, ids: Sequence[str] | None, *, by: str, tenant: str | None = None) -> list[str]:
        """Drop entries, or all, and resolve their escalations. Return their ids."""
        return self._change("drop", ids, by, tenant)

    def _change(
        self, verb: str, ids: Sequence[str] | None, by: str, tenant: str | None
    ) -> list[str]:
        entries = None if ids is None else list(ids)
        request = {"verb": verb, "entries": entries, "by": by, "tenant": tenant}
        done = self._calls.many("quarantined", [(prefix, request) for prefix in self._prefixes()])
        return [str(entry) for entries in done for entry in entries]


def _read(name: str, text: str) -> QuarantinedEntry:
    row = json.loads(text)
    return QuarantinedEntry(
        id=name,
        job_id=row.get("job"),
        queue=row.get("queue"),
        reason=row["reason"],
        error=row["error"],
        failures=int(row["failures"]),
        at=float(row["at"]) / 1000,
        escalation=row["escalation"],
        tenant=row.get("tenant"),
    )
