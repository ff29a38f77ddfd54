"""A replica becomes the primary while a fleet works: nothing is lost that it had received."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chaos.invariants import (
    check_failures_counted_once,
    check_no_answer_bought_twice,
    check_no_job_lost,
    check_one_retry_per_low_score,
    check_settled_once,
    jobs,
)
from support.fleet import CONTROL, Fleet, running_fleet
from support.replicated_redis import ReplicatedRedis
from support.waiting import wait_for

from mulligan.workers.celery.broker.queues import Pool

WORK = Pool(name="work", queues=("repair", "verify", "attempt"), slots=12)
#: Seconds that an answer takes, so that each failover meets some in flight.
ANSWER = 0.3


@contextmanager
def replicated_fleet() -> Iterator[tuple[Fleet, ReplicatedRedis, Path]]:
    """Start a fleet whose ledger and broker are a primary with a replica."""
    # Not tmp_path: the kernel allows 108 bytes for the path of a socket.
    with tempfile.TemporaryDirectory(prefix="mulligan-") as name:
        folder = Path(name)
        server, trace = ReplicatedRedis(folder / "redis"), folder / "trace"
        with running_fleet(
            folder / "fleet",
            pools=[CONTROL, WORK],
            server=server,
            environment={"MULLIGAN_TRACE": str(trace)},
            lease=3.0,
        ) as fleet:
            yield fleet, server, trace


def keep_connections(server: ReplicatedRedis) -> None:
    """A name moves: clients stay connected to the old primary, which is read-only now."""
    server.hand_over()
    server.switch(close=False)


def stay_read_only(server: ReplicatedRedis) -> None:
    """A proxy notices a second later that the primary has become a replica."""
    server.hand_over()
    time.sleep(1)
    server.switch()


def kill_the_primary(server: ReplicatedRedis) -> None:
    """The primary dies, and its replica is promoted a second later."""
    server.synchronise()
    old = server.primary
    old.kill()
    time.sleep(1)
    server.promote()
    server.switch()
    old.start()
    server.attach_replica()


FAILOVERS: tuple[Callable[[ReplicatedRedis], None], ...] = (
    keep_connections,
    stay_read_only,
    kill_the_primary,
)


def test_a_fleet_follows_three_failovers() -> None:
    """Given a fleet at work, when its Redis fails over three times, each in another way, then no
    worker ends, no job is lost or settled twice, and no stored answer is requested again."""
    with replicated_fleet() as (fleet, server, trace):
        submitter = Submitter(fleet)
        processes = _processes(fleet)
        for failover in FAILOVERS:
            _wait_for_work(server)
            failover(server)
            _wait_for_work(server)
        views = fleet.wait_until_finished(submitter.stop(), seconds=60)
        assert _processes(fleet) == processes
        check_no_job_lost(views)
        check_one_retry_per_low_score(views)
        check_settled_once(fleet, views)
        check_failures_counted_once(fleet, views)
        check_no_answer_bought_twice(views, trace)


def test_jobs_of_the_lost_second_can_be_submitted_again() -> None:
    """Given jobs that the replica did not receive, when it is promoted, then they are gone, their
    messages and running attempts change nothing, and the same keys give the same jobs again."""
    with replicated_fleet() as (fleet, server, _):
        kept = fleet.submit(*keyed(16))
        _wait_for_work(server)
        server.synchronise()
        server.promote()
        lost = fleet.submit(*keyed(16, first=16))
        wait_for(lambda: fleet.holder(lost[0]), "a lost job to run", seconds=20)
        server.demote()
        server.switch()
        wait_for(lambda: _gone(fleet, lost), "the promoted server to answer")
        assert fleet.submit(*keyed(16, first=16)) == lost
        views = fleet.wait_until_finished([*kept, *lost], seconds=60)
        check_no_job_lost(views)
        check_one_retry_per_low_score(views)
        check_settled_once(fleet, views)
        check_failures_counted_once(fleet, views)


class Submitter:
    """Submits jobs all the time, and again with the same keys if the ledger refuses."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._ids: list[str] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> list[str]:
        self._stopped.set()
        self._thread.join()
        return self._ids

    def _run(self) -> None:
        while not self._stopped.wait(0.3):
            self._ids += self._fleet.submit(*keyed(4, first=len(self._ids)))


def keyed(count: int, *, first: int = 0) -> list[dict[str, Any]]:
    found = jobs(count, first=first, delay=ANSWER)
    return [{**job, "idempotency_key": job["name"]} for job in found]


def _wait_for_work(server: ReplicatedRedis) -> None:
    """Wait until eight more jobs have ended."""
    with server.primary.client() as client:

        def ended() -> int:
            return int(client.zcard("mulligan:{p00}:jobs:succeeded"))

        before = ended()
        wait_for(lambda: ended() >= before + 8, "jobs to end", seconds=20)


def _gone(fleet: Fleet, ids: list[str]) -> bool:
    return all(fleet.ledger.job(job_id) is None for job_id in ids)


def _processes(fleet: Fleet) -> list[int]:
    return [child.process.pid for child in fleet.stack.children if child.process]
