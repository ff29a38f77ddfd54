"""Folding: the event stream of every partition, added up into figures by time and for good.

Idempotent by stream id: a batch is written together with the place it ends at, and only if it
begins where the last one ended. Whoever folds, and however often, each event counts once.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mulligan.policies.figures import facts as figures
from mulligan.policies.figures.facts import Folded
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.cycle_rows import ENDED, keep_lines
from mulligan.workers.ledger.partitions import Partitioned

log = logging.getLogger(__name__)

#: How long figures by the minute are kept.
MINUTES_KEPT = 3 * 3600
#: Distinct fields of one bucket; what comes on top is counted under `(other)`.
FIELDS_CAP = 5_000
#: Events of one batch, and batches of one run: a backlog must not keep the sweep waiting.
BATCH = 2_000
BATCHES = 10
START = "0-0"


class Fold:
    """Adds up what happened since the last time."""

    def __init__(
        self,
        ledger: Partitioned,
        *,
        batch: int = BATCH,
        fields_cap: int = FIELDS_CAP,
    ) -> None:
        settings = ledger.settings
        self._calls = ledger.calls
        self._prefixes = keys.partition_prefixes(settings.key_prefix, settings.partitions)
        self._hours_kept = settings.stats_retention
        self._batch = batch
        self._fields_cap = fields_cap
        #: How far each partition is folded, as far as this process knows.
        self._cursors: dict[str, str] = {}

    def run(self, *, batches: int = BATCHES) -> int:
        """Fold up to so many batches of each partition; answers with the number of events."""
        return sum(self._partition(prefix, batches) for prefix in self._prefixes)

    def _partition(self, prefix: str, batches: int) -> int:
        done = 0
        for _ in range(batches):
            count = self._one(prefix)
            done += count
            if count < self._batch:
                break
        return done

    def _one(self, prefix: str) -> int:
        """One batch; none if somebody else folded meanwhile: the next begins where they ended."""
        cursor = self._cursors.get(prefix) or self._calls.run("GET", keys.folded(prefix)) or START
        stream = keys.events(prefix)
        found = self._calls.run("XRANGE", stream, cursor, "+", "COUNT", self._batch + 1)
        seen = bool(found) and found[0][0] == cursor
        events = [(event_id, _read(event_id, row["data"])) for event_id, row in found[seen:]]
        if not events:
            return 0
        missed = cursor != START and not seen
        batch = events[: self._batch]
        folded = figures.fold(batch, after=cursor)
        answer = self._calls.one("fold", prefix, **self._request(cursor, folded, missed))
        self._cursors[prefix] = answer[1]
        if answer[0] != "folded":
            return 0
        if missed:
            log.warning("events after %s were trimmed before they were counted", cursor)
        # Whoever dies before this leaves it to the first report that asks.
        keep_lines(self._calls, prefix, list(_ended_cycles(data for _, data in batch)))
        return len(batch)

    def _request(self, after: str, folded: Folded, missed: bool) -> dict[str, Any]:
        total = folded.total
        if missed:
            total = total + Counter({figures.name("missed"): 1})
        return {
            "after": after,
            "last": folded.last,
            "fields_cap": self._fields_cap,
            "minutes_ms": MINUTES_KEPT * 1000,
            "hours_ms": self._hours_kept * 1000,
            "minutes": _buckets(folded.minutes, {}),
            "hours": _buckets(folded.hours, folded.examples),
            "total": _rows(total),
        }


def _ended_cycles(events: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for data in events:
        if data.get("type") == "cycle" and data.get("status") in ENDED:
            yield str(data.get("cycle"))


def _read(event_id: str, text: str) -> Mapping[str, Any]:
    """An event that nobody can read counts for nothing, and stops nobody."""
    try:
        data = json.loads(text)
    except ValueError as error:
        log.warning("event %s cannot be read: %s", event_id, error)
        return {}
    return data if isinstance(data, dict) else {}


def _buckets(
    buckets: Mapping[int, Counter[str]], examples: Mapping[int, Mapping[str, str]]
) -> list[dict[str, Any]]:
    return [
        {"start": start, "rows": _rows(rows), "examples": list(examples.get(start, {}).items())}
        for start, rows in buckets.items()
    ]


def _rows(counts: Mapping[str, int]) -> list[tuple[str, int, str]]:
    return [(field, amount, figures.overflow(field)) for field, amount in counts.items()]
