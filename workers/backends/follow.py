"""Following jobs by their events, with checks of their states.

An event can be lost (a connection broke) or trimmed away (a stream has a cap). So callers also
check the jobs' states after some time without events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mulligan.policies.jobs.job import TERMINAL
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import Event, JobView, LedgerReader

#: Seconds to wait for the first event when reading a feed.
BLOCK = 0.25
#: Seconds without an event after which to check states.
SILENCE = 5.0
#: Seconds to wait for the last events of a job that has ended.
LAST_EVENTS = 1.0
#: How far the clock that dates jobs may be ahead of the one that dates events.
_SKEW_MS = 1000


class EventFeed(Protocol):
    """The events of jobs from one moment on."""

    def take(self) -> Sequence[Event] | None:
        """Return new events, perhaps none; None if some may have been lost."""

    def close(self) -> None: ...


class JobReader(Protocol):
    """A source of jobs and their events."""

    def job(self, job_id: str) -> JobView | None: ...

    def states(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """Return the state of each known job."""

    def feed(self, job_id: str | None = None, *, after: str | None = None) -> EventFeed:
        """Open a feed after a position or from now on, of all jobs or at least of this one."""


class LedgerFeed:
    """The events of a ledger, from now on or after a position."""

    def __init__(self, ledger: LedgerReader, *, after: str | None = None) -> None:
        self._ledger = ledger
        self._after = after or str(int(ledger.now() * 1000) - 1)

    def take(self) -> Sequence[Event]:
        found = list(self._ledger.events(after=self._after, block=BLOCK))
        if found:
            self._after = found[-1].id
        return found

    def close(self) -> None:
        """Do nothing: no connection stays open."""


@dataclass(frozen=True, kw_only=True)
class FeedReading:
    """The result of reading a feed once."""

    #: The events of the followed jobs.
    events: Sequence[Event]
    #: The time of the newest event of any job; None if there was none.
    newest: float | None
    #: Whether the feed may have lost events of any job.
    lost: bool
    #: Whether the followed jobs had no events for a while.
    silent: bool


def read_feed(
    take: Callable[[], Sequence[Event] | None], *, follows: Callable[[str], bool]
) -> Iterator[FeedReading]:
    """Read a feed repeatedly; ``follows`` selects jobs by their ids."""
    last_event = time.monotonic()
    while True:
        taken = take()
        events = [event for event in taken or () if follows(event.job_id)]
        silent = not events and time.monotonic() - last_event >= SILENCE
        if events or silent or taken is None:
            last_event = time.monotonic()
        newest = _time_of(taken[-1]) if taken else None
        yield FeedReading(events=events, newest=newest, lost=taken is None, silent=silent)


def job_events(reader: JobReader, job_id: str) -> Iterator[Event | None]:
    """Yield a job's events from its beginning to its end, and None while nothing happens."""
    view = reader.job(job_id)
    if view is None:
        raise BadInput(f"there is no job {job_id!r}")
    feed = reader.feed(job_id, after=str(max(0, int(view.created_at * 1000) - _SKEW_MS)))
    last_event, ended_at = time.monotonic(), _ended_at(view)
    try:
        for reading in read_feed(feed.take, follows=lambda each: each == job_id):
            for event in reading.events:
                yield event
                if ends_job(event):
                    return
            if ended_at is None and (reading.lost or reading.silent):
                ended_at = _ended_at(reader.job(job_id))
            if reading.newest is None:
                yield None
            else:
                last_event = time.monotonic()
            waited = max(time.monotonic() - last_event, (reading.newest or 0) - (ended_at or 0))
            if ended_at is not None and waited >= LAST_EVENTS:
                return  # the last events were trimmed away
    finally:
        feed.close()


def _ended_at(view: JobView | None) -> float | None:
    """Return when a job ended; None if it has not."""
    if view is None:
        return 0.0
    return view.finished_at if view.state in TERMINAL else None


def ends_job(event: Event) -> bool:
    """Whether this event is the end of a job."""
    return event.type == "job" and event.data.get("state") in TERMINAL


def _time_of(event: Event) -> float:
    """Return when an event was written. With several partitions, an id names the last event of
    each, and the latest of them is this one: events are read in the order of time."""
    return max(int(part.partition("-")[0]) for part in event.id.split(",")) / 1000
