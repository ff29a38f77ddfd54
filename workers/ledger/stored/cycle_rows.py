"""Cycles for reports: tens of thousands, without their prompts."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter

from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.policies.cycles.report import CycleRow
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.connection.calls import RedisCalls
from mulligan.workers.ledger.stored.stored_bodies import read_records

#: Cycles per script call: a few milliseconds, so that Redis can serve other clients in between.
_CHUNK = 500
#: Maximum cycles in the cache: about 30 MB.
_CACHED = 100_000
ENDED = frozenset({CycleStatus.COMPLETED, CycleStatus.ESCALATED, CycleStatus.CANCELLED})
#: The same as in cycle_rows.lua.
_FIELD_SEPARATOR, _ROW_SEPARATOR = "\x1f", "\x1e"


class CycleRows:
    """A reader of cycles. It caches those that have ended, which never change."""

    def __init__(self, calls: RedisCalls, prefixes: Callable[[], Sequence[str]]) -> None:
        self._calls = calls
        self._prefixes = prefixes
        self._ended: dict[str, CycleRow] = {}

    def newest(self, *, since: float, limit: int, tenant: str | None = None) -> list[CycleRow]:
        """Return the newest cycles created after ``since``, of one tenant or of all."""
        if len(self._ended) > _CACHED:
            self._ended = {}
        parts = [self._partition(prefix, since, limit, tenant) for prefix in self._prefixes()]
        newest = heapq.merge(*parts, key=attrgetter("created_at"), reverse=True)
        return list(islice(newest, limit))

    def _partition(
        self, prefix: str, since: float, limit: int, tenant: str | None
    ) -> Iterator[CycleRow]:
        """Yield cycles, reading a chunk at a time. A tenant may have few: no limit on its ids."""
        count = -1 if tenant is not None else limit
        ids = self._calls.run(
            "ZREVRANGEBYSCORE", keys.cycles(prefix), "+inf", since * 1000, "LIMIT", 0, count
        )
        for start in range(0, len(ids), _CHUNK):
            rows = self._rows(prefix, ids[start : start + _CHUNK])
            yield from rows if tenant is None else (row for row in rows if row.tenant == tenant)

    def _rows(self, prefix: str, ids: Sequence[str]) -> list[CycleRow]:
        """Return the rows in the order of the ids, without cycles that were deleted."""
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
        rows = [row.split(_FIELD_SEPARATOR) for row in text.split(_ROW_SEPARATOR)]
        found = read_records(
            (keys.cycle(prefix, row[-1]), partial(_named_row, row)) for row in rows
        )
        return dict(found)


def precompute_rows(calls: RedisCalls, prefix: str, ids: Sequence[str]) -> None:
    """Store the rows of ended cycles in Redis, so that the first report is fast."""
    for start in range(0, len(ids), _CHUNK):
        calls.one("cycle_rows", prefix, ids=ids[start : start + _CHUNK])


def _named_row(raw: list[str]) -> tuple[str, CycleRow]:
    return raw[-1], _row(raw)


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
