"""Fold the event streams of all partitions into figures, by time and in total.

Idempotent by stream id: a batch is written together with its last id, and only if it begins where
the last batch ended. So each event counts once, however many processes fold.
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
from mulligan.workers.ledger.partitions import Partitioned
from mulligan.workers.ledger.stored.cycle_rows import ENDED, precompute_rows

log = logging.getLogger(__name__)

#: How long figures by the minute are kept.
MINUTES_KEPT = 3 * 3600
#: Maximum distinct fields of one bucket; further ones count under `(other)`.
FIELDS_CAP = 5_000
#: Events per batch, and batches per run, so that a backlog does not delay the sweep.
BATCH = 2_000
BATCHES = 10
START = "0-0"


class Fold:
    """Folds the events since the last run."""

    def __init__(
        self,
        ledger: Partitioned,
        *,
        batch: int = BATCH,
        fields_cap: int = FIELDS_CAP,
    ) -> None:
        settings = ledger.settings
        self._calls = ledger.calls
        self._prefixes = ledger.prefixes
        self._hours_kept = settings.stats_retention
        self._batch = batch
        self._fields_cap = fields_cap
        #: The last folded event of each partition that this process knows of.
        self._cursors: dict[str, str] = {}

    def run(self, *, batches: int = BATCHES) -> int:
        """Fold up to ``batches`` batches of each partition. Return the number of events."""
        return sum(self._fold_partition(prefix, batches) for prefix in self._prefixes())

    def _fold_partition(self, prefix: str, batches: int) -> int:
        done = 0
        for _ in range(batches):
            count = self._fold_batch(prefix)
            done += count
            if count < self._batch:
                break
        return done

    def _fold_batch(self, prefix: str) -> int:
        """Fold one batch. Return 0 if another process folded meanwhile."""
        cursor = self._cursors.get(prefix) or self._calls.run("GET", keys.folded(prefix)) or START
        stream = keys.events(prefix)
        found = self._calls.run("XRANGE", stream, cursor, "+", "COUNT", self._batch + 1)
        cursor_exists = bool(found) and found[0][0] == cursor
        new = found[cursor_exists:]
        events = [(event_id, _read(event_id, row["data"])) for event_id, row in new]
        if not events:
            return 0
        missed = cursor != START and not cursor_exists
        batch = events[: self._batch]
        folded = figures.fold(batch, after=cursor)
        answer = self._calls.one("fold", prefix, **self._request(cursor, folded, missed))
        self._cursors[prefix] = answer[1]
        if answer[0] != "folded":
            return 0
        if missed:
            log.warning("Events after %s were trimmed before they were counted.", cursor)
        # If this process dies here, the first report reads these rows.
        precompute_rows(self._calls, prefix, list(_ended_cycles(data for _, data in batch)))
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
    """Read an event. An unreadable one counts for nothing and does not stop the fold."""
    try:
        data = json.loads(text)
    except ValueError as error:
        log.warning("The event %s cannot be read: %s", event_id, error)
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
