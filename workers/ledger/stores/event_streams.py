"""The event streams of all partitions, read by position, for broadcasts and lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mulligan.workers.ledger import keys
from mulligan.workers.ledger.connection.calls import RedisCalls

#: The last id that a reader has seen in each partition's stream.
Position = tuple[str, ...]


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


def event_order(event_id: str) -> tuple[int, int]:
    """Return the sort key of an event id: as text, 10-0 would come before 9-0."""
    milliseconds, _, number = event_id.partition("-")
    return int(milliseconds), int(number or 0)


class EventStreams:
    """A reader of events, which the ledger's scripts write."""

    def __init__(self, calls: RedisCalls, prefixes: Sequence[str]) -> None:
        self._calls = calls
        self._streams = [keys.events(prefix) for prefix in prefixes]
        self._numbers = {name: number for number, name in enumerate(self._streams)}

    @property
    def count(self) -> int:
        return len(self._streams)

    def newest(self) -> Position:
        """Return the position after the last event."""
        found = [self._calls.run("XREVRANGE", name, "+", "-", "COUNT", 1) for name in self._streams]
        return tuple(items[0][0] if items else "0-0" for items in found)

    def wait(self, after: Position, *, seconds: float, limit: int) -> list[StoredEvent]:
        """Return the events after a position, waiting up to ``seconds`` for the first."""
        milliseconds = max(1, int(seconds * 1000))
        found = self._calls.run(
            "XREAD", "COUNT", limit, "BLOCK", milliseconds, "STREAMS", *self._streams, *after
        )
        return [
            StoredEvent(self._numbers[name], event_id, fields["data"])
            for name, items in found or []
            for event_id, fields in items
        ]

    def page(self, after: Position, upto: Position, *, limit: int) -> list[StoredEvent]:
        """Return the events between two positions, at most ``limit`` of each partition."""
        found: list[StoredEvent] = []
        for number, name in enumerate(self._streams):
            start, end = f"({after[number]}", upto[number]
            items = self._calls.run("XRANGE", name, start, end, "COUNT", limit)
            found += [StoredEvent(number, event_id, fields["data"]) for event_id, fields in items]
        return found

    def latest(self, partition: int, *, limit: int, before: str | None = None) -> list[StoredEvent]:
        """Return the newest events of one partition, or the newest before an id, newest first."""
        start = "+" if before is None else f"({before}"
        items = self._calls.run("XREVRANGE", self._streams[partition], start, "-", "COUNT", limit)
        return [StoredEvent(partition, event_id, fields["data"]) for event_id, fields in items]
