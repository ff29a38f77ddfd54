"""What people see of the sessions of agents: transcripts, also of attempts that run.

The repository keeps whole transcripts. Of an attempt that runs, it has what was saved last, and the
ledger has the last events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mulligan.policies.jobs.job import TERMINAL
from mulligan.policies.loops.loop import LoopSnapshot
from mulligan.policies.value import Json
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.rollback import readable_repository
from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable

#: ``seq``, ``at``, ``kind``, ``text`` and more; see the port for sessions.
Event = Mapping[str, Json]
#: The states of an attempt whose agent has ended.
_AGENT_ENDED = frozenset({"verifying", "settled"})


class NoSuchSession(BadInput):
    """The item has no such attempt."""


@dataclass(frozen=True, kw_only=True)
class SessionTranscript:
    """What an agent did in an attempt."""

    job_id: str
    attempt: int
    #: In the order of ``seq``.
    events: Sequence[Event] = ()
    #: Whether nothing will be added.
    has_ended: bool = False


def last_session(
    context: LoopContext, snapshot: LoopSnapshot, item: str, attempt: int | None = None
) -> tuple[str, int]:
    """Return the job of an item's last run, and its newest attempt or the chosen one.

    Raises NoSuchSession.
    """
    runs = snapshot.record(item).runs
    if not runs:
        raise NoSuchSession(f"{item} has not run yet")
    job_id = context.ledger.item_job_id(snapshot.loop, item, runs)
    job = context.ledger.job(job_id)
    found = len(job.attempts) if job is not None else 0
    if attempt is not None and not 1 <= attempt <= found:
        raise NoSuchSession(f"the last run of {item} has {found} attempts")
    begun = [each.plan.number for each in job.attempts if each.started_at] if job else []
    return job_id, attempt or max(begun, default=1)


def read_session(
    context: LoopContext,
    snapshot: LoopSnapshot,
    item: str,
    job_id: str,
    attempt: int,
    *,
    after: int = 0,
) -> SessionTranscript:
    """Return what the agent of an attempt did after an event. Raises NoSuchSession.

    Only jobs of the item are read: others may belong to somebody else.
    """
    ended = _has_ended(context, snapshot, item, job_id, attempt)
    live = _newest(context.live_transcript(job_id, attempt))
    if ended or not _has_all(live, after):
        live = _merged(_kept(context, snapshot, item, job_id, attempt, live), live)
    events = [each for each in live if int(each["seq"]) > after]
    return SessionTranscript(job_id=job_id, attempt=attempt, events=events, has_ended=ended)


def session_tail(context: LoopContext, job_id: str, attempt: int, *, most: int) -> Sequence[Event]:
    """Return the last events of an attempt that runs, without asking its repository."""
    return _newest(context.live_transcript(job_id, attempt))[-most:]


@dataclass(kw_only=True)
class SessionFollower:
    """Follows an attempt. Each event is returned once."""

    context: LoopContext
    snapshot: LoopSnapshot
    item: str
    job_id: str
    attempt: int
    after: int = 0
    has_ended: bool = False
    #: When each event that was returned happened.
    _seen: dict[int, Any] = field(default_factory=dict)
    _has_begun: bool = False

    def poll(self) -> list[Event]:
        """Return new events. The last ones are those that the tail did not have."""
        ended = _has_ended(self.context, self.snapshot, self.item, self.job_id, self.attempt)
        if ended or not self._has_begun:
            found: Sequence[Event] = read_session(
                self.context, self.snapshot, self.item, self.job_id, self.attempt
            ).events
        else:
            found = _newest(self.context.live_transcript(self.job_id, self.attempt))
        self._has_begun, self.has_ended = True, ended
        if any(self._seen.get(int(each["seq"]), each["at"]) != each["at"] for each in found):
            self._seen, self.after = {}, 0  # the attempt began again, with another worker
        new = [
            each
            for each in found
            if int(each["seq"]) > self.after and int(each["seq"]) not in self._seen
        ]
        self._seen |= {int(each["seq"]): each["at"] for each in new}
        return new


def _has_ended(
    context: LoopContext, snapshot: LoopSnapshot, item: str, job_id: str, attempt: int
) -> bool:
    """Whether the agent of an attempt has ended. Raises NoSuchSession."""
    runs = range(snapshot.record(item).runs, 0, -1)
    if all(context.ledger.item_job_id(snapshot.loop, item, run) != job_id for run in runs):
        raise NoSuchSession(f"{item} has no job {job_id!r}")
    job = context.ledger.job(job_id)
    if job is None:  # it is no longer kept, but its transcripts may be
        return True
    if not 1 <= attempt <= len(job.attempts):
        raise NoSuchSession(f"the job {job_id} has {len(job.attempts)} attempts")
    return job.state in TERMINAL or job.attempts[attempt - 1].state in _AGENT_ENDED


def _has_all(live: Sequence[Event], after: int) -> bool:
    """Whether the tail has every event after another. It leaves out those that are very long."""
    new = [int(each["seq"]) for each in live if int(each["seq"]) > after]
    return bool(live) and new == list(range(after + 1, after + 1 + len(new)))


def _kept(
    context: LoopContext,
    snapshot: LoopSnapshot,
    item: str,
    job_id: str,
    attempt: int,
    live: Sequence[Event],
) -> list[Event]:
    repository = readable_repository(context, snapshot)
    try:
        files = repository.transcript(snapshot.loop.name, item, f"{job_id}/{attempt}")
    except RepositoryUnavailable:
        if live:
            return []
        raise
    return [each for each in context.parse_transcript(files) if "at" in each]


def _newest(tail: Any) -> list[Event]:
    """Return the events of the last worker: one that was lost had numbered its own."""
    events: list[Event] = []
    for each in tail:
        if events and int(each["seq"]) <= int(events[-1]["seq"]):
            events.clear()
        if "at" in each:
            events.append(each)
    return events


def _merged(kept: Sequence[Event], live: Sequence[Event]) -> list[Event]:
    by_seq = {int(each["seq"]): each for each in kept}
    if any(by_seq.get(int(each["seq"]), each)["at"] != each["at"] for each in live):
        return list(live)  # what is kept is of a worker that was lost
    by_seq.update((int(each["seq"]), each) for each in live)
    return [by_seq[seq] for seq in sorted(by_seq)]
