"""A Redis that is full, read-only or busy: what waits, what is refused, and what goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import BusyLoadingError
from support.jobs import make_job, passed
from support.redis_server import RedisServer
from support.replicated_redis import ReplicatedRedis
from support.servers import SERVERS, require
from support.settlements import succeeds
from support.waiting import wait_for

from mulligan.policies.jobs.job import Output
from mulligan.tasks.ports.errors import LedgerRefused, LedgerUnavailable
from mulligan.tasks.ports.ledger import Claim, Entry, EntryRequeued, Submission
from mulligan.workers.ledger.connection import waits
from mulligan.workers.ledger.connection.calls import connect
from mulligan.workers.ledger.connection.connections import SHARED, Connections
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stored import job_ids
from mulligan.workers.ledger.stores.beats import Beat
from mulligan.workers.settings.model import Settings


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    found = RedisServer(tmp_path, binary=require(request.param))
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
        self.folder = server.folder

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

    def break_disk(self) -> None:
        """Put a directory where Redis stores its snapshot."""
        (self.folder / "dump.rdb").mkdir()
        self.redis.config_set("save", "3600 1")
        self.redis.bgsave()
        wait_for(lambda: self._last_save() == "err", "a failed snapshot")

    def repair_disk(self) -> None:
        (self.folder / "dump.rdb").rmdir()
        self.redis.bgsave()

    def _last_save(self) -> str:
        return str(self.redis.info("persistence")["rdb_last_bgsave_status"])


REFUSALS: list[tuple[Callable[[World], None], Callable[[World], None]]] = [
    (World.fill, World.free),
    (World.demote, World.promote),
    (World.break_disk, World.repair_disk),
]
IDS = ["full", "read-only", "disk"]


@pytest.mark.parametrize(("refuse", "relent"), REFUSALS, ids=IDS)
def test_what_was_paid_for_waits_until_redis_stores_again(
    server: RedisServer,
    refuse: Callable[[World], None],
    relent: Callable[[World], None],
) -> None:
    """Given an answer, a verification and a verdict, and a Redis that refuses them for longer than
    the ledger's patience, then they are stored as soon as Redis relents."""
    world = World(server, patience=0.0)
    ledger = world.ledger
    answered, verified, settled = (world.claim(world.submit()) for _ in range(3))
    ledger.store_output(verified.lease, Output(text="paid"), verifications=[0])
    ledger.store_output(settled.lease, Output(text="paid"))
    verification = ledger.claim_verification(
        Entry("verification", verified.job_id, 1, 0), worker="w"
    )
    assert isinstance(verification, Claim)
    refuse(world)
    with ThreadPoolExecutor(3) as pool:
        calls: list[Future[object]] = [
            pool.submit(ledger.store_output, answered.lease, Output(text="paid")),
            pool.submit(ledger.store_result, verification.lease, passed(), elapsed=1.0),
            pool.submit(ledger.settle, settled.lease, succeeds(settled)),
        ]
        wait_for(lambda: _blocked(world) == 3)
        assert not any(call.done() for call in calls)
        relent(world)
        stored, last, published = (call.result(60) for call in calls)
    assert (stored, published) == ([], [])
    assert isinstance(last, Claim)
    view = ledger.job(answered.job_id)
    assert view is not None
    assert view.attempts[0].output == Output(text="paid")
    assert ledger.job_states([settled.job_id]) == {settled.job_id: "succeeded"}


def _blocked(world: World) -> int:
    """Return how many calls wait because Redis refused them."""
    return sum(bool(call.reason) for call in world.ledger.calls.waits._calls.copy())


def test_a_worker_that_stops_waits_only_with_what_was_paid_for(server: RedisServer) -> None:
    """Given a full Redis, an answer and a claim that wait, then a shutdown ends the claim at
    once, and the answer is stored when there is room."""
    world = World(server, patience=600.0)
    claim, waiting = world.claim(world.submit()), world.submit()
    world.fill()
    with ThreadPoolExecutor(2) as pool:
        stored = pool.submit(world.ledger.store_output, claim.lease, Output(text="paid"))
        claimed = pool.submit(world.claim, waiting)
        wait_for(lambda: _blocked(world) == 2)
        world.ledger.calls.stop_waiting()
        with pytest.raises(LedgerRefused, match="is full"):
            claimed.result(60)
        assert not stored.done()
        world.free()
        assert stored.result(60) == []


def test_a_redis_that_loads_its_data_is_waited_for(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a Redis that reads its file after a start, then an answer is stored when it is done,
    and a call without patience says that Redis is loading."""

    def loading(*_: object, **__: object) -> None:
        raise BusyLoadingError("Redis is loading the dataset in memory")

    world = World(server, patience=0.0)
    claim = world.claim(world.submit())
    monkeypatch.setattr(redis.Redis, "execute_command", loading)
    assert _reason(world) == "loading"
    with ThreadPoolExecutor(1) as pool:
        stored = pool.submit(world.ledger.store_output, claim.lease, Output(text="paid"))
        wait_for(lambda: _blocked(world))
        assert not stored.done()
        monkeypatch.undo()
        assert stored.result(60) == []


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
    world.ledger.stamp([Entry("attempt", waiting, 1)])  # or the sweep would send it again and again
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
    wait_for(lambda: _reason(world) == "busy", "a busy Redis")
    with ThreadPoolExecutor(1) as pool:
        stored = pool.submit(world.ledger.store_output, claim.lease, Output(text="paid"))
        wait_for(lambda: _blocked(world))
        world.redis.execute_command("SCRIPT", "KILL")
        assert stored.result(60) == []
    endless.join()


def _run_until_killed(server: RedisServer) -> None:
    with pytest.raises(Exception, match=r"(?i)script killed"):
        server.client().eval("while true do end", 0)


def _reason(world: World) -> str:
    """Return why a call without patience fails; nothing if it succeeds."""
    try:
        world.ledger.now()
    except LedgerUnavailable as error:
        return error.reason
    return ""


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


def test_a_read_only_server_is_left_for_the_one_at_its_address(tmp_path: Path) -> None:
    """Given threads with connections to a primary, when it becomes a replica and the address leads
    to another server, then their next calls are served there."""
    servers = ReplicatedRedis(tmp_path)
    servers.start()
    try:
        world = World(servers, patience=5.0)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: world.submit(), range(32)))
            servers.promote()
            servers.demote()
            servers.switch(close=False)
            submitted = list(pool.map(lambda _: world.submit(), range(32)))
        assert None not in world.ledger.job_states(submitted)
    finally:
        servers.kill()
