"""The event streams of all partitions, read by position, for broadcasts and lists."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mulligan.workers.ledger import keys
from mulligan.workers.ledger.connection.calls import RedisCalls
from mulligan.workers.ledger.partitions import REFRESH
from mulligan.workers.ledger.stored.stored_bodies import read_records

#: The last id that a reader has seen in each partition's stream. As text, joined by commas, it is
#: the id by which readers know an event: it says what they have seen of every partition.
Position = tuple[str, ...]
_ID = re.compile(r"\d{1,15}(-\d{1,15})?")
#: A process may learn this late that there is a new partition, and have read the others meanwhile.
_UNHEARD_MS = 2 * int(REFRESH * 1000)


@dataclass(frozen=True)
class StoredEvent:
    """One event as it is stored."""

    partition: int
    id: str
    #: JSON.
    data: str

    @property
    def order(self) -> tuple[int, int]:
        return event_order(self.id)

    def parse(self) -> dict[str, Any] | None:
        """Return the data of the event; None, with a line in the log, if it is damaged."""
        found = read_records([(f"event {self.id}", lambda: _read_data(self.data))])
        return found[0] if found else None


def _read_data(text: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(text)
    if not all(isinstance(data[name], str) for name in ("type", "job")):
        raise ValueError("its type or its job is no text")
    return data


def event_order(event_id: str) -> tuple[int, int]:
    """Return the sort key of an event id: as text, 10-0 would come before 9-0."""
    milliseconds, _, number = event_id.partition("-")
    return int(milliseconds), int(number or 0)


def in_order(
    stored: Iterable[StoredEvent], position: Position
) -> Iterator[tuple[StoredEvent, Position]]:
    """Yield events by time, each with the position after it."""
    ids = list(position)
    for event in sorted(stored, key=lambda event: event.order):
        ids[event.partition] = event.id
        yield event, tuple(ids)


class EventStreams:
    """A reader of events, which the ledger's scripts write."""

    def __init__(self, calls: RedisCalls, prefixes: Callable[[], Sequence[str]]) -> None:
        self._calls = calls
        self._prefixes = prefixes

    def _streams(self) -> list[str]:
        return [keys.events(prefix) for prefix in self._prefixes()]

    @property
    def count(self) -> int:
        return len(self._prefixes())

    def newest(self) -> Position:
        """Return the position after the last event."""
        streams = self._streams()
        found = [self._calls.run("XREVRANGE", name, "+", "-", "COUNT", 1) for name in streams]
        return tuple(items[0][0] if items else "0-0" for items in found)

    def position(self, text: str) -> Position:
        """Parse a position, an event's id, or one time in milliseconds for all partitions."""
        parts = text.split(",")
        if not all(_ID.fullmatch(part) for part in parts):
            raise ValueError(f"{text!r} is not the id of an event")
        if "-" not in text:
            return (f"{min(map(int, parts))}-0",) * self.count
        return self.extended(tuple(part if "-" in part else f"{part}-0" for part in parts))

    def extended(self, position: Position) -> Position:
        """Return a position with a part for each partition that was added since it was taken.

        A new partition may have events that are older than those of the others and were not heard,
        so it starts a little earlier: hearing an event twice is better than missing it.
        """
        count = self.count
        if len(position) == count:
            return position
        milliseconds, _ = event_order(min(position, key=event_order))
        return (position + (f"{max(0, milliseconds - _UNHEARD_MS)}-0",) * count)[:count]

    def read(self, after: Position, *, limit: int, block: float | None = None) -> list[StoredEvent]:
        """Return the events after a position, waiting up to ``block`` seconds for the first."""
        waiting = () if block is None else ("BLOCK", max(1, int(block * 1000)))
        streams = self._streams()[: len(after)]
        found = self._calls.run(
            "XREAD", "COUNT", limit, *waiting, "STREAMS", *streams, *after, block=block
        )
        return _whole([(streams.index(name), items) for name, items in found or []], limit)

    def page(self, after: Position, upto: Position, *, limit: int) -> list[StoredEvent]:
        """Return the events between two positions, at most ``limit`` of each partition."""
        found = [
            (number, self._calls.run("XRANGE", name, f"({start}", end, "COUNT", limit))
            for number, (name, start, end) in enumerate(
                zip(self._streams(), after, upto, strict=False)
            )
        ]
        return _whole(found, limit)

    def latest(self, partition: int, *, limit: int, before: str | None = None) -> list[StoredEvent]:
        """Return the newest events of one partition, or the newest before an id, newest first."""
        start = "+" if before is None else f"({before}"
        stream = self._streams()[partition]
        items = self._calls.run("XREVRANGE", stream, start, "-", "COUNT", limit)
        return [StoredEvent(partition, event_id, fields["data"]) for event_id, fields in items]


def _whole(found: Sequence[tuple[int, Sequence[Any]]], limit: int) -> list[StoredEvent]:
    """Return what was read of the streams up to the time up to which all of them were read.

    A stream with more events than ``limit`` was read to an earlier time than the others.
    """
    ends = [event_order(items[-1][0]) for _, items in found if len(items) >= limit]
    events = [
        StoredEvent(number, event_id, fields["data"])
        for number, items in found
        for event_id, fields in items
    ]
    return [event for event in events if not ends or event.order <= min(ends)]
