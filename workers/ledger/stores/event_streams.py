"""The event streams of all partitions, read by position, for broadcasts and lists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mulligan.workers.ledger import keys
from mulligan.workers.ledger.connection.calls import RedisCalls
from mulligan.workers.ledger.stored.stored_bodies import read_records

#: The last id that a reader has seen in each partition's stream. As text, joined by commas, it is
#: the id by which readers know an event: it says what they have seen of every partition.
Position = tuple[str, ...]
_ID = re.compile(r"\d{1,15}(-\d{1,15})?")


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

    def position(self, text: str) -> Position:
        """Parse a position, an event's id, or one time in milliseconds for all partitions."""
        parts = text.split(",")
        if not all(_ID.fullmatch(part) for part in parts):
            raise ValueError(f"{text!r} is not the id of an event")
        parts = [part if "-" in part else f"{part}-0" for part in parts]
        if len(parts) == self.count:
            return tuple(parts)
        # The number of partitions has changed: sending too much is better than too little.
        return (min(parts, key=event_order),) * self.count

    def read(self, after: Position, *, limit: int, block: float | None = None) -> list[StoredEvent]:
        """Return the events after a position, waiting up to ``block`` seconds for the first."""
        waiting = () if block is None else ("BLOCK", max(1, int(block * 1000)))
        found = self._calls.run(
            "XREAD", "COUNT", limit, *waiting, "STREAMS", *self._streams, *after, block=block
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
