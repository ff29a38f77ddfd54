"""Follow the jobs of one command by their events until all have ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mulligan.policies.figures.waiting_words import waiting_event_words
from mulligan.policies.jobs.job import TERMINAL
from mulligan.tasks.ports.errors import LedgerRefused, LedgerUnavailable
from mulligan.tasks.ports.ledger import Event, JobView, LedgerReader
from mulligan.workers.backends.follow import EventFeed, read_feed

T = TypeVar("T")
#: Seconds between two tries to read an unreachable ledger.
_PAUSE = 0.25


@dataclass
class FollowedJob:
    """What the events say about one job."""

    id: str
    label: str
    state: str = "queued"
    reason: str = ""
    attempt: int = 0
    mode: str = "initial"
    doing: str = "queued"
    scores: list[float] = field(default_factory=list)
    open_cycles: set[str] = field(default_factory=set)

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL


@dataclass
class FollowedJobs:
    """The jobs that a command follows."""

    jobs: dict[str, FollowedJob]
    wait_cycles: bool = False

    @classmethod
    def of(cls, labels: Mapping[str, str], *, wait_cycles: bool = False) -> FollowedJobs:
        return cls({i: FollowedJob(i, label) for i, label in labels.items()}, wait_cycles)

    @property
    def ended(self) -> list[FollowedJob]:
        return [job for job in self.jobs.values() if job.ended]

    @property
    def unfinished(self) -> list[FollowedJob]:
        """The jobs that are still waited for."""
        return [
            job
            for job in self.jobs.values()
            if not job.ended or (self.wait_cycles and job.open_cycles)
        ]

    def note(self, event: Event) -> FollowedJob:
        """Record an event of one of these jobs and return the job."""
        job = self.jobs[event.job_id]
        if event.type in _NOTES:
            _NOTES[event.type](job, event.data)
        return job

    def note_any(self, event: Event, label: Callable[[str], str]) -> FollowedJob:
        """Record an event of any job; add the job if it is new."""
        if event.job_id not in self.jobs:
            self.jobs[event.job_id] = FollowedJob(event.job_id, label(event.job_id))
        return self.note(event)

    def note_view(self, view: JobView) -> None:
        """Record a job's state as the ledger has it."""
        job = self.jobs[view.id]
        job.state, job.reason = view.state, view.reason or ""
        job.open_cycles = {cycle.id for cycle in view.cycles if cycle.open}


def _job(job: FollowedJob, data: Mapping[str, Any]) -> None:
    job.state = str(data["state"])
    job.reason = str(data.get("reason") or "")
    job.doing = job.state


def _attempt(job: FollowedJob, data: Mapping[str, Any]) -> None:
    job.attempt = int(data.get("attempt") or job.attempt)  # another release may leave it out
    job.mode = str(data.get("mode") or job.mode)
    job.doing = str(data["state"])
    if data["state"] == "waiting":
        job.doing = waiting_text(data)
    if data["state"] == "settled":
        if isinstance(data.get("score"), int | float):
            job.scores.append(float(data["score"]))
        job.doing = f"next: {data['next']}" if data.get("next") else "settled"


def waiting_text(data: Mapping[str, Any]) -> str:
    """Say what a waiting attempt waits for, and why."""
    why = f": {data['detail']}" if data.get("detail") else ""
    return f"waiting for {waiting_event_words(data)}{why}"


def _cycle(job: FollowedJob, data: Mapping[str, Any]) -> None:
    if str(data["status"]).startswith("pending"):
        job.open_cycles.add(str(data["cycle"]))
    else:
        job.open_cycles.discard(str(data["cycle"]))


_NOTES = {"job": _job, "attempt": _attempt, "cycle": _cycle}


@dataclass(kw_only=True)
class LedgerRetry:
    """Repeats a read while the ledger cannot be reached."""

    #: Seconds to retry, and the time (monotonic) at which all waiting ends.
    seconds: float = 0.0
    deadline: float | None = None
    #: Restarts what died; called between two tries.
    restart_dead: Callable[[], None] = lambda: None
    #: Called once each time the ledger becomes unreachable.
    on_unreachable: Callable[[Exception], None] = lambda _: None

    def __call__(self, read: Callable[[], T]) -> T:
        """Return the result of ``read``, or raise LedgerUnavailable when time is up."""
        began = time.monotonic()
        is_unreachable = False
        while True:
            try:
                return read()
            except LedgerRefused:
                raise
            except LedgerUnavailable as error:
                if self.is_over or time.monotonic() - began >= self.seconds:
                    raise
                if not is_unreachable:
                    self.on_unreachable(error)
                is_unreachable = True
            time.sleep(_PAUSE)
            self.restart_dead()

    @property
    def is_over(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline


def follow(
    ledger: LedgerReader,
    jobs: FollowedJobs,
    feed: EventFeed,
    *,
    retry: LedgerRetry,
    show: Callable[[FollowedJob, Event], None] = lambda *_: None,
    on_silence: Callable[[], None] = lambda: None,
) -> bool:
    """Follow until all have ended; return False if the deadline comes first."""
    readings = read_feed(lambda: retry(feed.take), follows=jobs.jobs.__contains__)
    while jobs.unfinished:
        reading = next(readings)
        for event in reading.events:
            show(jobs.note(event), event)
        retry.restart_dead()
        if retry.is_over:
            return not jobs.unfinished
        if reading.silent:
            retry(on_silence)
            retry(lambda: read_again(ledger, jobs))
    return True


def read_again(ledger: LedgerReader, jobs: FollowedJobs) -> None:
    """Read the jobs that are still waited for: some of their events may be missing."""
    for job in jobs.unfinished:
        view = ledger.job(job.id)
        if view is not None:
            jobs.note_view(view)
