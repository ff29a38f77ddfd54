"""Cycles as reports read them: tens of thousands, without what they say about prompts."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter

from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.policies.cycles.report import CycleRow
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.calls import RedisCalls
from mulligan.workers.settings.model import Settings

#: Cycles of one script: a few milliseconds, after which others are served.
_CHUNK = 500
#: Ended cycles that are remembered: some 30 MB.
_REMEMBERED = 100_000
ENDED = frozenset({CycleStatus.COMPLETED, CycleStatus.ESCALATED, CycleStatus.CANCELLED})
#: As the script writes a line and ends it.
_BETWEEN, _AFTER = "\x1f", "\x1e"


class CycleRows:
    """The newest cycles first. A cycle that has ended never changes: it is read once."""

    def __init__(self, calls: RedisCalls, settings: Settings) -> None:
        self._calls = calls
        self._prefixes = keys.partition_prefixes(settings.key_prefix, settings.partitions)
        self._ended: dict[str, CycleRow] = {}

    def since(self, since: float, *, limit: int, tenant: str | None = None) -> list[CycleRow]:
        """At most ``limit`` cycles created since then, of one tenant or of all."""
        if len(self._ended) > _REMEMBERED:
            self._ended = {}
        parts = [self._partition(prefix, since, limit, tenant) for prefix in self._prefixes]
        if len(parts) == 1:
            return list(islice(parts[0], limit))
        newest = heapq.merge(*parts, key=attrgetter("created_at"), reverse=True)
        return list(islice(newest, limit))

    def _partition(
        self, prefix: str, since: float, limit: int, tenant: str | None
    ) -> Iterator[CycleRow]:
        """Read as far as somebody asks. A tenant's share may be thin: all ids are looked at."""
        last = -1 if tenant is not None else limit
        ids = self._calls.run(
            "ZREVRANGEBYSCORE", keys.cycles(prefix), "+inf", since * 1000, "LIMIT", 0, last
        )
        for start in range(0, len(ids), _CHUNK):
            rows = self._rows(prefix, ids[start : start + _CHUNK])
            yield from rows if tenant is None else (row for row in rows if row.tenant == tenant)

    def _rows(self, prefix: str, ids: Sequence[str]) -> list[CycleRow]:
        """In the order of the ids; those that are gone are left out."""
        ended = self._ended
        unknown = [each for each in ids if each not in ended]
        read = self._read(prefix, unknown) if unknown else {}
        ended.update({each: row for each, row in read.items() if row.status in ENDED})
        if len(unknown) == len(ids):
            return list(read.values())
        found = (read.get(each) or ended.get(each) for each in ids)
        return [row for row in found if row is not None]

    def _read(self, prefix: str, ids: Sequence[str]) -> dict[str, CycleRow]:
        (text,) = self._calls.one("cycle_rows", prefix, ids=ids)
        if not text:
            return {}
        rows = (part.split(_BETWEEN) for part in text.split(_AFTER))
        return {row[9]: _row(row) for row in rows}


def keep_lines(calls: RedisCalls, prefix: str, ids: Sequence[str]) -> None:
    """Put what reports need of cycles that have ended into one line each, before anybody asks."""
    for start in range(0, len(ids), _CHUNK):
        calls.one("cycle_rows", prefix, ids=ids[start : start + _CHUNK])


def _row(raw: list[str]) -> CycleRow:
    status, created, immediate, invalid, tenant, task_type, cause, reason, valid, _ = raw
    return CycleRow(
        status,
        float(created) / 1000,
        float(immediate) / 1000 if immediate else None,
        immediate != "",
        reason,
        cause,
        task_type,
        tenant,
        valid == "1",
        json.loads(invalid) if invalid else {},
    )
