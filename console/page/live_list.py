"""The live list: the newest events, one row per job. page.js continues it in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mulligan.console.http.context import ConsoleContext
from mulligan.policies.figures import format as formatter
from mulligan.policies.figures.waiting_words import waiting_event_words
from mulligan.workers.ledger.stores.event_streams import EventStreams, event_order

ROWS = 15
#: Events per read, and the most that are read to find the rows of one tenant.
_EVENTS = 250
MAX_EVENTS = 20 * _EVENTS

#: An event's id and data.
Event = tuple[str, Mapping[str, Any]]


@dataclass
class Row:
    """One job, as of its newest event."""

    job: str
    at: float
    name: str = ""
    state: str = "queued"
    how: str = ""
    attempt: int = 0
    tenant: str | None = None
    scores: list[str] = field(default_factory=list)

    @property
    def path(self) -> str:
        """The scores so far, as ``40→100``."""
        return "→".join(self.scores[-4:])

    @property
    def task(self) -> str:
        """The id of the newest attempt in Flower."""
        return f"{self.job}-{self.attempt}" if self.attempt else ""


def newest(
    context: ConsoleContext, *, tenant: str | None, owner: str | None = None
) -> tuple[Sequence[Row], str]:
    """Return the first rows and the id of the newest event.

    For all tenants this is one round trip per partition. For one tenant or producer it may be
    more, because the newest events may belong to others.
    """

    def rows_of(events: Iterable[Event]) -> Sequence[Row]:
        rows = fold(events, tenant=tenant)
        owned = context.ledger.owned([row.job for row in rows], owner)
        return [row for row in rows if row.job in owned]

    streams = context.ledger.event_streams
    all_rows = tenant is None and owner is None
    found: list[Event] = []
    for partition in range(streams.count):
        found += _newest_of(streams, partition, None if all_rows else rows_of)
    found.sort(key=lambda event: event_order(event[0]))
    return rows_of(found)[:ROWS], found[-1][0] if found else ""


def _newest_of(
    streams: EventStreams,
    partition: int,
    rows_of: Callable[[Iterable[Event]], Sequence[Row]] | None,
) -> list[Event]:
    """Return the newest events of a partition, newest first, enough for the rows of a listener."""
    found: list[Event] = []
    before = None
    while True:
        events = streams.latest(partition, limit=_EVENTS, before=before)
        found += [(each.id, data) for each in events if (data := each.parse()) is not None]
        enough = rows_of is None or len(rows_of(reversed(found))) >= ROWS
        if enough or len(events) < _EVENTS or len(found) >= MAX_EVENTS:
            return found
        before = events[-1].id


def fold(events: Iterable[Event], *, tenant: str | None) -> Sequence[Row]:
    """Return one row per job, the newest first; for a tenant, only rows known to be its own."""
    rows: dict[str, Row] = {}
    for entry_id, data in events:
        if data.get("type") not in ("job", "attempt"):
            continue
        job = str(data["job"])
        row = rows.pop(job, None) or Row(job=job, at=0.0)
        rows[job] = row  # re-inserted, so that the newest is last
        row.at = int(entry_id.partition("-")[0]) / 1000
        row.name = str(data.get("name") or row.name or data.get("task_type") or "")
        row.tenant = data.get("tenant") or row.tenant
        (_apply_attempt if data["type"] == "attempt" else _apply_job)(row, data)
    return [row for row in reversed(rows.values()) if tenant is None or row.tenant == tenant]


def _apply_attempt(row: Row, data: Mapping[str, Any]) -> None:
    row.attempt = int(data.get("attempt") or row.attempt)  # another release may leave it out
    state = str(data["state"])
    nth = f"attempt {row.attempt} " if row.attempt > 1 else ""
    row.state = state
    if state == "settled":
        row.scores.append(formatter.score(data.get("score")))
        failed = f"{data.get('kind') or 'failed'}{', retrying' if data.get('next') else ''}"
        row.how = f"{nth}passed" if data.get("success") else failed
        row.state = "settled" if data.get("success") else "waiting"
    elif state == "waiting":
        row.how = f"{nth}waiting for {waiting_event_words(data)}"
    else:
        row.how = nth + formatter.words(state)


def _apply_job(row: Row, data: Mapping[str, Any]) -> None:
    row.state = str(data["state"])
    if row.state == "succeeded":
        first = data.get("first_try", len(row.scores) < 2)
        row.how = "first try" if first else "repaired"
    elif row.state == "escalated":
        row.how = f"escalated: {formatter.words(data.get('reason') or '')}"
    elif row.state == "queued" and data.get("requeued"):
        row.how = "requeued"
    else:
        row.how = row.state
