"""Workers are killed at random moments and at every named step, and the invariants hold."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import psutil
import pytest
from support.fleet import CONTROL, Fleet, running_fleet
from support.waiting import wait_for

from chaos.invariants import (
    check_failures_counted_once,
    check_no_answer_bought_twice,
    check_no_job_lost,
    check_one_retry_per_low_score,
    check_settled_once,
    jobs,
)
from mulligan.workers.celery.broker.queues import Pool
from mulligan.workers.crash_points import STEPS

pytestmark = pytest.mark.chaos

JOBS = 300
WORKERS = [
    Pool(name=name, queues=("repair", "verify", "attempt"), slots=4) for name in ("one", "two")
]


def workers(fleet: Fleet) -> list[psutil.Process]:
    alive = [c for c in fleet.stack.children if c.alive and c.name != "control"]
    return [psutil.Process(child.process.pid) for child in alive if child.process]


def test_nothing_is_lost_or_doubled_while_workers_are_killed(tmp_path: Path) -> None:
    crashes = tmp_path / "crashes"
    crashes.mkdir()
    trace = tmp_path / "trace"
    for name in STEPS:
        (crashes / name).touch()
    with running_fleet(
        tmp_path / "fleet",
        pools=[CONTROL, *WORKERS],
        environment={"MULLIGAN_CRASH_DIR": str(crashes), "MULLIGAN_TRACE": str(trace)},
        lease=2.0,
        max_claims=50,
    ) as fleet:
        ids = fleet.submit(*jobs(JOBS))
        seed = int(os.environ.get("CHAOS_SEED", "7"))
        _kill_at_random(fleet, random.Random(seed), ids, kills=6)
        _stop_one_past_its_lease(fleet, ids)
        views = fleet.wait_until_finished(ids, seconds=240)
        check_no_job_lost(views)
        check_one_retry_per_low_score(views)
        check_no_answer_bought_twice(views, trace)
        check_failures_counted_once(fleet, views)
        check_settled_once(fleet, views)
        left = [name for name in STEPS if (crashes / name).exists()]
        assert not left, f"no process ever reached {left}"


def _kill_at_random(fleet: Fleet, dice: random.Random, ids: list[str], *, kills: int) -> None:
    """Kill a worker each time another share of the jobs has ended."""
    client = fleet.server.client()
    for share in range(1, kills + 1):

        def reached(share: int = share) -> bool:
            fleet.stack.watch()
            done = sum(
                int(client.zcard(f"mulligan:{{p00}}:jobs:{state}"))
                for state in ("succeeded", "escalated")
            )
            return done >= len(ids) * share / (kills + 2)

        wait_for(reached, f"share {share} of the jobs", seconds=120)
        alive = workers(fleet)
        if alive:
            dice.choice(alive).send_signal(signal.SIGKILL)


def _stop_one_past_its_lease(fleet: Fleet, ids: list[str]) -> None:
    """Freeze a worker until the sweep has taken its work. Its later writes are refused."""

    def frozen() -> psutil.Process | None:
        fleet.stack.watch()
        found = workers(fleet)
        if found:
            found[0].send_signal(signal.SIGSTOP)
            return found[0]
        return None

    process: psutil.Process = wait_for(frozen, "a worker to freeze")
    key = "mulligan:{p00}:leases"
    client = fleet.server.client()
    now = fleet.ledger.now() * 1000
    wait_for(
        lambda: not client.zrangebyscore(key, "-inf", now + 2000),
        "its leases to be taken away",
    )
    process.send_signal(signal.SIGCONT)
