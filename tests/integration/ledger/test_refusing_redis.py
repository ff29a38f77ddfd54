"""A Redis that is full, read-only or busy: what waits, what is refused, and what goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.jobs import make_job
from support.redis_server import RedisServer
from support.servers import installed_versions
from support.waiting import wait_for

from mulligan.policies.jobs.job import Output
from mulligan.tasks.ports.errors import LedgerRefused, LedgerUnavailable
from mulligan.tasks.ports.ledger import Claim, Entry, EntryRequeued, Submission
from mulligan.workers.ledger import job_ids, waits
from mulligan.workers.ledger.calls import connect
from mulligan.workers.ledger.connections import SHARED, Connections
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stores.beats import Beat
from mulligan.workers.settings.model import Settings


@pytest.fixture(params=sorted(installed_versions()))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    found = RedisServer(tmp_path, binary=installed_versions()[request.param])
    found.start()
    yield found
    found.kill()


class World:
    """A ledger on a Redis that a test makes refuse."""

    def __init__(self, server: RedisServer, *, patience: float, keep: float = 60.0) -> None:
        self.settings = Settings(ledger_url=server.ledger_url, hard_limit=keep)
        client = connect(server.ledger_url)
        self.ledger = RedisLedger(client, self.settings, patience=patience, keep=keep)
        self.redis: Any = server.client()

    def submit(self) -> str:
        job = make_job()
        job_id = job_ids.job_id(partitions=1, key=None, scope=None)
        self.ledger.accept([Submission(id=job_id, job=job)])
        return job_id

    def claim(self, job_id: str) -> Claim:
        found = self.ledger.claim(Entry("attempt", job_id, 1), worker="w")
        assert isinstance(found, Claim)
        return found

    def fill(self) -> None:
        used = self.redis.info("memory")["used_memory"]
        self.redis.config_set("maxmemory", used - 100_000)

    def free(self) -> None:
        self.redis.config_set("maxmemory", 0)

    def demote(self) -> None:
        self.redis.execute_command("REPLICAOF", "127.0.0.1", "1")

    def promote(self) -> None:
        self.redis.execute_command("REPLICAOF", "NO", "ONE")


REFUSALS: list[tuple[Callable[[World], None], Callable[[World], None]]] = [
    (World.fill, World.free),
    (World.demote, World.promote),
]
IDS = ["full", "read-only"]


@pytest.mark.parametrize(("refuse", "relent"), REFUSALS, ids=IDS)
def test_an_answer_waits_until_redis_stores_again(
    server: RedisServer,
    refuse: Callable[[World], None],
    relent: Callable[[World], None],
) -> None:
    """Given an answer that was paid for and a Redis that refuses it for longer than the ledger's
    patience, then it is stored as soon as Redis relents."""
    world = World(server, patience=0.0)
    claim = world.claim(world.submit())
    refuse(world)
    with ThreadPoolExecutor(1) as pool:
        stored: Future[object] = pool.submit(
            world.ledger.store_output, claim.lease, Output(text="paid")
        )
        wait_for(lambda: _blocked(world))
        assert not stored.done()
        relent(world)
        assert stored.result(60) == []
    view = world.ledger.job(claim.job_id)
    assert view is not None
    assert view.attempts[0].output == Output(text="paid")


def _blocked(world: World) -> bool:
    return any(call.reason for call in world.ledger.calls.waits._calls.copy())


def test_a_full_redis_takes_no_claim_but_keeps_leases(server: RedisServer) -> None:
    """Given a full Redis, then no new attempt starts and none is counted, while leases are renewed,
    attempts are given back, jobs are cancelled, the sweep runs and workers report."""
    world = World(server, patience=0.0)
    waiting, running, given_back = (world.submit() for _ in range(3))
    claim, returned = world.claim(running), world.claim(given_back)
    world.fill()
    with pytest.raises(LedgerRefused, match=r"the ledger is full \(maxmemory\)") as refused:
        world.claim(waiting)
    assert refused.value.reason == "full"
    assert world.ledger.renew([claim.lease]) == set()
    requeued = world.ledger.requeue(returned.lease, delay=0.0, detail="a shutdown")
    assert requeued == EntryRequeued(delay=0)
    world.ledger.sweep(empty_queues=())
    world.ledger.beats.write(Beat(name="a@h", pool="a", host="h", pid=1, slots=1, active=1))
    assert [beat.name for beat in world.ledger.beats.live(now=world.ledger.now())] == ["a@h"]
    assert world.ledger.cancel(running) == "cancelled"
    world.free()
    assert world.claim(waiting).lease.token
    view = world.ledger.job(waiting)
    assert view is not None
    assert view.attempts[0].claims == 1


def test_a_submission_to_a_full_redis_says_so_at_once(server: RedisServer) -> None:
    world = World(server, patience=600.0)
    world.fill()
    with pytest.raises(LedgerRefused, match=r"the ledger is full \(maxmemory\)"):
        world.submit()


def test_writing_is_tried_without_writing(server: RedisServer) -> None:
    world = World(server, patience=0.0)
    assert world.ledger.write_problem() is None
    world.fill()
    assert "is full" in str(world.ledger.write_problem())
    world.free()
    world.demote()
    assert "is read-only" in str(world.ledger.write_problem())
    world.promote()
    world.ledger.sweep(empty_queues=())
    assert world.ledger.write_problem() is None


def test_a_busy_redis_is_waited_for(server: RedisServer) -> None:
    """Given a script that runs too long, then an answer is stored after it, and a call without
    patience says that Redis is busy."""
    world = World(server, patience=0.0)
    claim = world.claim(world.submit())
    world.redis.config_set("lua-time-limit", 10)
    endless = threading.Thread(target=_run_until_killed, args=(server,))
    endless.start()
    wait_for(lambda: _busy(world), "a busy Redis")
    with ThreadPoolExecutor(1) as pool:
        stored = pool.submit(world.ledger.store_output, claim.lease, Output(text="paid"))
        wait_for(lambda: _blocked(world))
        world.redis.execute_command("SCRIPT", "KILL")
        assert stored.result(60) == []
    endless.join()


def _run_until_killed(server: RedisServer) -> None:
    with pytest.raises(Exception, match=r"(?i)script killed"):
        server.client().eval("while true do end", 0)


def _busy(world: World) -> bool:
    try:
        world.ledger.now()
    except LedgerUnavailable as error:
        return error.reason == "busy"
    return False


def test_a_long_wait_is_logged_once_and_reported(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waits, "LONG", 0.1)
    caplog.set_level(logging.WARNING)
    world = World(server, patience=0.0)
    claims = [world.claim(world.submit()) for _ in range(4)]
    world.fill()
    with ThreadPoolExecutor(4) as pool:
        stored = [
            pool.submit(world.ledger.store_output, claim.lease, Output(text="paid"))
            for claim in claims
        ]
        wait_for(lambda: (wait := world.ledger.calls.waits.longest()) and wait.calls == 4)
        wait = world.ledger.calls.waits.longest()
        assert wait is not None
        assert "is full" in wait.reason
        world.free()
        assert [each.result(60) for each in stored] == [[], [], [], []]
    assert world.ledger.calls.waits.longest() is None
    messages = [record.getMessage() for record in caplog.records]
    assert len([text for text in messages if text.startswith("Waiting for the ledger")]) == 1
    assert len([text for text in messages if text.startswith("The ledger works again")]) == 1


# -- connections -----------------------------------------------------------------------------------


def test_many_threads_share_few_connections(server: RedisServer) -> None:
    """Given 300 threads that call at once and 5 that block, then no call fails and no more
    connections are open than are needed."""
    world = World(server, patience=0.0)
    started = threading.Barrier(305)

    def call(number: int) -> object:
        started.wait(60)
        if number < 5:
            return list(world.ledger.events(after="$", block=0.2))
        return [world.ledger.now(), world.ledger.job_states(["p00-x"])]

    with ThreadPoolExecutor(305) as pool:
        assert len(list(pool.map(call, range(305)))) == 305
    # A pipeline needs a second connection of its own for its round trip.
    assert world.redis.info("clients")["connected_clients"] <= 2 * SHARED + 5 + 1


def test_a_connection_that_cannot_be_opened_is_not_counted(tmp_path: Path) -> None:
    nobody = Connections(connect(f"unix://{tmp_path}/nobody"), limit=1)
    for _ in range(3):
        with pytest.raises(Exception, match="No such file"), nobody.taken():
            pass
