"""When jobs are done: their events, and the moments at which their states must be asked for.

An event can be lost (a connection broke) or trimmed away (a stream has a cap). So whoever follows
jobs by their events also asks for their states, once nothing has been heard of them for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mulligan.policies.jobs.job import TERMINAL
from mulligan.tasks.ports.ledger import Event, LedgerReader

#: Seconds that one look at a feed waits for the first event.
BLOCK = 0.25
#: Seconds without an event after which states are asked for.
SILENCE = 5.0
#: Seconds that the last events of a job may take to arrive after it has ended.
LAST_EVENTS = 1.0
#: How far the clock of a job's creation may be ahead of the clock that numbers events.
_SKEW_MS = 1000


class EventFeed(Protocol):
    """The events of jobs from one moment on."""

    def take(self) -> Sequence[Event] | None:
        """The events of the next moment. None: some may have been lost."""

    def close(self) -> None: ...


class JobReader(Protocol):
    """Answers questions about jobs."""

    def feed(self) -> EventFeed:
        """The events of all jobs from now on."""

    def states(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """The state of each job; unknown jobs are left out."""


class LedgerFeed:
    """The events of a ledger: those to come, or those after a position."""

    def __init__(self, ledger: LedgerReader, *, after: str | None = None) -> None:
        self._ledger = ledger
        self._after = after or f"{int(ledger.now() * 1000) - 1}-0"

    def take(self) -> Sequence[Event]:
        found = list(self._ledger.events(after=self._after, block=BLOCK))
        if found:
            self._after = found[-1].id
        return found

    def close(self) -> None:
        """Nothing is open between two looks."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """The result of one look at a feed."""

    #: The events of the jobs that are followed.
    events: Sequence[Event]
    #: When the newest event of any job happened; None if there was none.
    newest: float | None
    #: Whether the feed lost events, of any job.
    lost: bool
    #: Whether nothing was heard of the followed jobs for a while.
    silent: bool


def look_at(feed: EventFeed, *, follows: Callable[[str], bool]) -> Iterator[Look]:
    """Look at a feed again and again; ``follows`` selects jobs by their ids."""
    heard = time.monotonic()
    while True:
        taken = feed.take()
        events = [event for event in taken or () if follows(event.job_id)]
        silent = not events and time.monotonic() - heard >= SILENCE
        if events or silent or taken is None:
            heard = time.monotonic()
        newest = _time_of(taken[-1]) if taken else None
        yield Look(events=events, newest=newest, lost=taken is None, silent=silent)


def job_events(
    feed: EventFeed, job_id: str, *, ended_at: Callable[[], float | None]
) -> Iterator[Event | None]:
    """One job's events to its end; None now and then while nothing happens.

    ``ended_at`` asks when the job ended; None: it has not. The feed is closed at the end.
    """
    try:
        ended = ended_at()
        heard = time.monotonic()
        for look in look_at(feed, follows=lambda each: each == job_id):
            for event in look.events:
                yield event
                if ends_job(event):
                    return
            if ended is None and (look.lost or look.silent):
                ended = ended_at()
            if look.newest is not None:
                heard = time.monotonic()
            else:
                yield None
            # The job's last events may have been trimmed away.
            if ended is not None and (
                time.monotonic() - heard >= LAST_EVENTS or (look.newest or 0) > ended + LAST_EVENTS
            ):
                return
    finally:
        feed.close()


def position_before(created_at: float) -> str:
    """A position in the events before the first one of a job."""
    return f"{max(0, int(created_at * 1000) - _SKEW_MS)}-0"


def ends_job(event: Event) -> bool:
    """Whether a job has ended with this event."""
    return event.type == "job" and event.data.get("state") in TERMINAL


def _time_of(event: Event) -> float:
    return int(event.id.partition("-")[0]) / 1000
