"""Publishing: each entry is sent, stamped or counted as failed by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from mulligan.tasks.jobs.publish import Publisher
from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.tasks.ports.ledger import Entry, Publication
from mulligan.tasks.ports.message_broker import BrokerAway


@dataclass
class FakeBroker:
    """Refuses the messages of some jobs, and all of them from some job on."""

    refused: Sequence[str] = ()
    away_from: str | None = None
    sent: list[str] = field(default_factory=list)
    calls: int = 0
    #: The queue that it sends to, whatever it is asked for.
    lane: str | None = None

    def send_batch(self, publications: Sequence[Publication]) -> list[Publication]:
        self.calls += 1
        return [self._send(publication) for publication in publications]

    def send(self, publication: Publication) -> Publication:
        self.calls += 1
        return self._send(publication)

    def _send(self, publication: Publication) -> Publication:
        job_id = publication.entry.job_id
        if job_id == self.away_from:
            raise BrokerAway("full")
        if job_id in self.refused:
            raise ValueError("WRONGTYPE of\na key")
        self.sent.append(job_id)
        return replace(publication, queue=self.lane or publication.queue)


@dataclass
class FakeLedger:
    """Records stamps and failures; each call may find it unreachable."""

    unreachable: bool = False
    stamped: list[str] = field(default_factory=list)
    moved: list[tuple[str, str]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def stamp(self, entries: Sequence[Entry], *, moved: Sequence[Publication] = ()) -> None:
        if self.unreachable:
            raise LedgerUnavailable("no Redis")
        self.stamped += [entry.job_id for entry in entries]
        self.moved += [(each.entry.job_id, each.queue) for each in moved]

    def published_queues(self) -> set[str]:
        raise NotImplementedError

    def fail(self, failures: Mapping[Entry, str]) -> list[Entry]:
        self.failed |= {entry.job_id: error for entry, error in failures.items()}
        return list(failures)

    def sweep(self, *, empty_queues: Sequence[str], by_priority: bool = True) -> list[Publication]:
        raise NotImplementedError

    def pause(self, what: str) -> None:
        raise NotImplementedError

    def resume(self, what: str) -> bool:
        raise NotImplementedError

    def paused(self) -> list[str]:
        raise NotImplementedError


def publications(*names: str, failures: int = 0) -> list[Publication]:
    return [Publication(Entry("attempt", name, 1), "attempt", 5, failures) for name in names]


def test_a_batch_is_sent_in_one_call_and_stamped() -> None:
    broker, ledger = FakeBroker(), FakeLedger()
    names = [f"job{number}" for number in range(250)]
    Publisher(ledger=ledger, broker=broker).publish(publications(*names))
    assert broker.calls == 3
    assert broker.sent == ledger.stamped == names


def test_the_queue_that_a_message_was_sent_to_is_noted() -> None:
    ledger = FakeLedger()
    Publisher(ledger=ledger, broker=FakeBroker(lane="mine.repair")).publish(publications("job1"))
    assert ledger.moved == [("job1", "mine.repair")]
    Publisher(ledger=ledger, broker=FakeBroker(lane="attempt")).publish(publications("job2"))
    assert ledger.moved == [("job1", "mine.repair")]


def test_nothing_is_nothing() -> None:
    broker, ledger = FakeBroker(), FakeLedger()
    Publisher(ledger=ledger, broker=broker).publish([])
    assert broker.calls == 0


@pytest.mark.parametrize("bad", ["first", "middle", "last"])
def test_an_unsendable_entry_fails_alone(bad: str, caplog: pytest.LogCaptureFixture) -> None:
    broker, ledger = FakeBroker(refused=[bad]), FakeLedger()
    names = ["first", "middle", "last"]
    Publisher(ledger=ledger, broker=broker).publish(publications(*names))
    others = [name for name in names if name != bad]
    assert ledger.stamped == others
    assert set(broker.sent) == set(others)
    assert ledger.failed == {bad: "ValueError: WRONGTYPE of a key"}
    assert f"The entry a:{bad}/1 was quarantined" in caplog.text


def test_an_entry_that_failed_before_is_sent_alone() -> None:
    """The others need no second try because of it."""
    broker, ledger = FakeBroker(refused=["bad"]), FakeLedger()
    batch = [*publications("bad", failures=2), *publications("one", "two")]
    Publisher(ledger=ledger, broker=broker).publish(batch)
    assert broker.sent == ["one", "two"]
    assert broker.calls == 2


def test_a_broker_that_is_away_is_no_entry_s_fault() -> None:
    """Given a broker that becomes full, then what was sent before is stamped, and no entry counts
    as failed."""
    broker, ledger = FakeBroker(away_from="job150"), FakeLedger()
    told: list[BrokerAway] = []
    names = [f"job{number}" for number in range(250)]
    publisher = Publisher(ledger=ledger, broker=broker, on_unreachable=told.append)
    publisher.publish(publications(*names))
    assert ledger.stamped == names[:100]
    assert ledger.failed == {}
    assert [str(error) for error in told] == ["full"]


def test_a_broker_that_goes_away_after_a_failure_keeps_what_was_found_out() -> None:
    broker = FakeBroker(refused=["bad"], away_from="away")
    ledger = FakeLedger()
    Publisher(ledger=ledger, broker=broker).publish(publications("one", "bad", "two", "away", "x"))
    assert ledger.stamped == ["one", "two"]
    assert ledger.failed.keys() == {"bad"}


def test_a_ledger_that_is_away_after_sending_raises_nothing() -> None:
    """The jobs are stored and their messages sent; the sweep repeats what is not stamped."""
    broker = FakeBroker()
    Publisher(ledger=FakeLedger(unreachable=True), broker=broker).publish(publications("one"))
    assert broker.sent == ["one"]
