"""Transcripts of agents: what is kept and what is live, put together and followed."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mulligan.policies.loops.loop import ItemRecord, LoopRecord, LoopSnapshot
from mulligan.policies.loops.spec import ItemSpec, LoopConfig
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.session_views import (
    NoSuchSession,
    SessionFollower,
    last_session,
    read_session,
)
from mulligan.tasks.ports.errors import RepositoryUnavailable

ITEM = ItemSpec.model_validate({"id": "A", "prompt": "p", "verifiers": ["json.object"]})
CONFIG = LoopConfig(name="demo", repo="shop")
SNAPSHOT = LoopSnapshot(
    loop=LoopRecord(name="demo", config=CONFIG), specs=[ITEM], items={"A": ItemRecord(runs=2)}
)


def event(seq: int, at: float = 1.0) -> dict[str, Any]:
    return {"seq": seq, "at": at, "kind": "text", "text": f"{seq}"}


@dataclass
class Session:
    """An attempt: its kept and its live events, and its state."""

    kept: list[dict[str, Any]] = field(default_factory=list)
    live: list[dict[str, Any]] = field(default_factory=list)
    state: str = "running"
    is_away: bool = False
    reads: int = 0

    @property
    def context(self) -> LoopContext:
        ledger = SimpleNamespace(item_job_id=lambda _, item, run: f"{item}-{run}", job=self._job)
        return LoopContext(
            ledger=cast("Any", ledger),
            intake=cast("Any", None),
            publish=lambda _: None,
            slots=lambda: 1,
            price=lambda _: None,
            repository=lambda _: cast("Any", SimpleNamespace(transcript=self._transcript)),
            parse_transcript=lambda _: self.kept,
            live_transcript=lambda _job, _attempt: self.live,
        )

    def _job(self, job_id: str) -> Any:
        plans = [SimpleNamespace(number=1), SimpleNamespace(number=2)]
        begun = [SimpleNamespace(plan=plans[0], state=self.state, started_at=1.0)]
        planned = SimpleNamespace(plan=plans[1], state="queued", started_at=None)
        state = "running" if self.state != "cancelled" else "cancelled"
        return SimpleNamespace(state=state, attempts=[*begun, planned])

    def _transcript(self, loop: str, item: str, attempt: str) -> dict[str, bytes]:
        assert (loop, item, attempt) == ("demo", "A", "A-2/1")
        self.reads += 1
        if self.is_away:
            raise RepositoryUnavailable("away")
        return {}

    def read(self, after: int = 0) -> list[tuple[int, float]]:
        found = read_session(self.context, SNAPSHOT, "A", "A-2", 1, after=after)
        return [(each["seq"], each["at"]) for each in found.events]

    def follower(self) -> SessionFollower:
        return SessionFollower(
            context=self.context, snapshot=SNAPSHOT, item="A", job_id="A-2", attempt=1
        )


def seqs(events: list[Any]) -> list[int]:
    return [each["seq"] for each in events]


def test_what_is_kept_and_what_is_live_are_one_transcript() -> None:
    session = Session(kept=[event(1), event(2), event(3)], live=[event(3), event(5)])
    assert session.read() == [(1, 1.0), (2, 1.0), (3, 1.0), (5, 1.0)]
    assert session.read(after=4) == [(5, 1.0)]


def test_polling_a_running_attempt_does_not_ask_git() -> None:
    session = Session(live=[event(4), event(5), event(6)])
    assert session.read(after=4) == [(5, 1.0), (6, 1.0)]
    assert session.read(after=6) == []
    assert session.reads == 0
    session.state = "verifying"
    session.read(after=6)
    assert session.reads == 1, "an agent that has ended may have said more"


def test_events_that_the_tail_left_out_are_looked_for() -> None:
    session = Session(kept=[event(1), event(2)], live=[event(1), event(3)])
    assert session.read() == [(1, 1.0), (2, 1.0), (3, 1.0)]


def test_a_new_worker_replaces_the_session_of_a_lost_one() -> None:
    session = Session(
        kept=[event(1), event(2), event(3)],
        live=[event(2), event(3), event(1, at=9.0), event(2, at=9.1)],
    )
    assert session.read() == [(1, 9.0), (2, 9.1)]


def test_without_the_repository_the_tail_is_shown() -> None:
    session = Session(live=[event(7)], is_away=True)
    assert session.read() == [(7, 1.0)]
    session.live.clear()
    with pytest.raises(RepositoryUnavailable):
        session.read()


@pytest.mark.parametrize(("job_id", "attempt"), [("B-1", 1), ("A-3", 1), ("A-2", 3), ("A-2", 0)])
def test_only_attempts_of_the_item_are_found(job_id: str, attempt: int) -> None:
    with pytest.raises(NoSuchSession):
        read_session(Session().context, SNAPSHOT, "A", job_id, attempt)


def test_the_last_session_is_the_newest_attempt_that_has_begun() -> None:
    context = Session().context
    assert last_session(context, SNAPSHOT, "A") == ("A-2", 1)
    assert last_session(context, SNAPSHOT, "A", 2) == ("A-2", 2)
    with pytest.raises(NoSuchSession, match="has 2 attempts"):
        last_session(context, SNAPSHOT, "A", 3)
    with pytest.raises(NoSuchSession, match="B has not run yet"):
        last_session(context, SNAPSHOT, "B")


def test_a_follower_gets_each_event_once_and_at_last_what_the_tail_left_out() -> None:
    session = Session(kept=[event(1)], live=[event(1), event(2)])
    follower = session.follower()
    assert seqs(follower.poll()) == [1, 2]
    session.live.append(event(4))
    assert seqs(follower.poll()) == [4]
    assert seqs(follower.poll()) == []
    assert (session.reads, follower.has_ended) == (0, False)
    session.kept, session.state = [event(n) for n in range(1, 6)], "settled"
    assert seqs(follower.poll()) == [3, 5]
    assert follower.has_ended


def test_a_follower_notices_that_the_attempt_began_again() -> None:
    session = Session(live=[event(1), event(2)])
    follower = session.follower()
    follower.poll()
    session.live += [event(1, at=9.0)]
    assert [(each["seq"], each["at"]) for each in follower.poll()] == [(1, 9.0)]


def test_a_cancelled_job_ends_its_session() -> None:
    session = Session(live=[event(1)], state="cancelled")
    follower = session.follower()
    assert seqs(follower.poll()) == [1]
    assert follower.has_ended
