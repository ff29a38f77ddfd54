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
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import Event, JobView, LedgerReader

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

    def job(self, job_id: str) -> JobView | None: ...

    def states(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """The state of each job; unknown jobs are left out."""

    def feed(self, job_id: str | None = None, *, after: str | None = None) -> EventFeed:
        """Events after a position or from now on: of all jobs, or at least of this one."""


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


def look_at(
    take: Callable[[], Sequence[Event] | None], *, follows: Callable[[str], bool]
) -> Iterator[Look]:
    """Look at a feed again and again; ``follows`` selects jobs by their ids."""
    heard = time.monotonic()
    while True:
        taken = take()
        events = [event for event in taken or () if follows(event.job_id)]
        silent = not events and time.monotonic() - heard >= SILENCE
        if events or silent or taken is None:
            heard = time.monotonic()
        newest = _time_of(taken[-1]) if taken else None
        yield Look(events=events, newest=newest, lost=taken is None, silent=silent)


def job_events(reader: JobReader, job_id: str) -> Iterator[Event | None]:
    """One job's events from its beginning to its end; None now and then while nothing happens."""
    view = reader.job(job_id)
    if view is None:
        raise BadInput(f"there is no job {job_id}")
    feed = reader.feed(job_id, after=f"{max(0, int(view.created_at * 1000) - _SKEW_MS)}-0")
    heard, ended_at = time.monotonic(), _ended_at(view)
    try:
        for look in look_at(feed.take, follows=lambda each: each == job_id):
            for event in look.events:
                yield event
                if ends_job(event):
                    return
            if ended_at is None and (look.lost or look.silent):
                ended_at = _ended_at(reader.job(job_id))
            if look.newest is None:
                yield None
            else:
                heard = time.monotonic()
            waited = max(time.monotonic() - heard, (look.newest or 0) - (ended_at or 0))
            if ended_at is not None and waited >= LAST_EVENTS:
                return  # the last events were trimmed away
    finally:
        feed.close()


def _ended_at(view: JobView | None) -> float | None:
    """When a job ended; None: it has not."""
    if view is None:
        return 0.0
    return view.finished_at if view.state in TERMINAL else None


def ends_job(event: Event) -> bool:
    """Whether a job has ended with this event."""
    return event.type == "job" and event.data.get("state") in TERMINAL


def _time_of(event: Event) -> float:
    return int(event.id.partition("-")[0]) / 1000
