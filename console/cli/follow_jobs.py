"""Following jobs by the ledger's events: what is known of each, until all have ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from mulligan.policies.jobs.job import TERMINAL
from mulligan.tasks.ports.errors import LedgerRefused, LedgerUnavailable
from mulligan.tasks.ports.ledger import Event, JobView, LedgerReader

T = TypeVar("T")
#: How long one look at the stream waits for news.
_BLOCK = 0.25
#: After so much silence the jobs themselves are asked: an event may have been trimmed away.
_SILENCE = 15.0
#: After so much silence it is worth a question whether anybody is there to run them.
_QUIET = 5.0


@dataclass
class FollowedJob:
    """What the events have said of one job."""

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
    """Some jobs on their way."""

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
        """Those still waited for."""
        return [
            job
            for job in self.jobs.values()
            if not job.ended or (self.wait_cycles and job.open_cycles)
        ]

    def feed(self, event: Event) -> FollowedJob | None:
        """Take note of an event; the job it is about, if it is one of ours."""
        job = self.jobs.get(event.job_id)
        if job is None:
            return None
        {"job": _job, "attempt": _attempt, "cycle": _cycle}.get(event.type, _other)(job, event.data)
        return job

    def meet(self, event: Event, label: Callable[[str], str]) -> FollowedJob:
        """Take note of an event of any job, getting to know the job if it is new."""
        if event.job_id not in self.jobs:
            self.jobs[event.job_id] = FollowedJob(event.job_id, label(event.job_id))
        self.feed(event)
        return self.jobs[event.job_id]

    def look(self, view: JobView) -> None:
        """Take over what the ledger itself says of a job."""
        job = self.jobs[view.id]
        job.state, job.reason = view.state, view.reason or ""
        job.open_cycles = {cycle.id for cycle in view.cycles if cycle.open}


def _job(job: FollowedJob, data: Mapping[str, Any]) -> None:
    job.state = str(data["state"])
    job.reason = str(data.get("reason") or "")
    job.doing = job.state


def _attempt(job: FollowedJob, data: Mapping[str, Any]) -> None:
    job.attempt = int(data["attempt"])
    job.mode = str(data.get("mode") or job.mode)
    job.doing = str(data["state"])
    if data["state"] == "waiting":
        job.doing = f"waiting: {data.get('detail') or data.get('waiting_for')}"
    if data["state"] == "settled":
        if isinstance(data.get("score"), int | float):
            job.scores.append(float(data["score"]))
        job.doing = f"next: {data['next']}" if data.get("next") else "settled"


def _cycle(job: FollowedJob, data: Mapping[str, Any]) -> None:
    if str(data["status"]).startswith("pending"):
        job.open_cycles.add(str(data["cycle"]))
    else:
        job.open_cycles.discard(str(data["cycle"]))


def _other(_job: FollowedJob, _data: Mapping[str, Any]) -> None:
    """Events of kinds that are not about the state of a job."""


@dataclass(kw_only=True)
class LedgerRetry:
    """Repeats what reads the ledger while it is away, and has it looked after meanwhile."""

    #: How long it may be away, in seconds, and the end of all waiting (monotonic).
    seconds: float = 0.0
    deadline: float | None = None
    #: Starts again what died; called now and then.
    watch: Callable[[], None] = lambda: None
    #: Told once each time the ledger goes away.
    on_away: Callable[[Exception], None] = lambda _: None

    def __call__(self, read: Callable[[], T]) -> T:
        """What ``read`` returns; LedgerUnavailable if the ledger stayed away too long."""
        began = time.monotonic()
        told = False
        while True:
            try:
                return read()
            except LedgerRefused:
                raise
            except LedgerUnavailable as error:
                if self.is_over or time.monotonic() - began >= self.seconds:
                    raise
                if not told:
                    self.on_away(error)
                told = True
            time.sleep(_BLOCK)
            self.watch()

    @property
    def is_over(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline


def follow(
    ledger: LedgerReader,
    following: FollowedJobs,
    *,
    after: str,
    patience: LedgerRetry,
    show: Callable[[FollowedJob, Event], None] = lambda *_: None,
    on_silence: Callable[[], None] = lambda: None,
) -> bool:
    """Follow until all have ended; False if the deadline came first."""
    heard = asked = time.monotonic()
    while following.unfinished:
        for event in patience(partial(_news, ledger, after)):
            after = event.id
            job = following.feed(event)
            if job is not None:
                heard = asked = time.monotonic()
                show(job, event)
        patience.watch()
        if patience.is_over:
            return not following.unfinished
        if time.monotonic() - asked > _QUIET:
            asked = time.monotonic()
            patience(on_silence)
        if time.monotonic() - heard > _SILENCE:
            heard = time.monotonic()
            patience(lambda: look_again(ledger, following))
    return True


def _news(ledger: LedgerReader, after: str) -> list[Event]:
    return list(ledger.events(after=after, block=_BLOCK))


def look_again(ledger: LedgerReader, following: FollowedJobs) -> None:
    """Ask the ledger about the jobs that are still waited for."""
    for job in following.unfinished:
        view = ledger.job(job.id)
        if view is not None:
            following.look(view)


def latest_event_id(ledger: LedgerReader) -> str:
    """The id of an event that would happen now: what comes later is news."""
    return f"{int(ledger.now() * 1000)}-0"
