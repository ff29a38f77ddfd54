"""Pools that grow and shrink while attempts run: no attempt is lost or run twice."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.fleet import CONTROL, Fleet, running_fleet, wait_for_exit
from support.jobs import GOOD, WRONG_TYPE, gated, scripted
from support.waiting import wait_for

from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.celery.broker.queues import Pool
from mulligan.workers.local.supervisor import Child

#: Jobs wait in commands.
pytestmark = pytest.mark.real_models("command")
SCALED = Pool(name="attempt", queues=("repair", "verify", "attempt"), slots=1, most=4)


def child(fleet: Fleet, name: str) -> Child:
    return next(one for one in fleet.stack.children if one.name == name)


def processes(fleet: Fleet) -> int:
    """Return the number of processes in the prefork pool."""
    parent = child(fleet, "attempt").process
    assert parent is not None
    return sum(_is_alive(one) for one in psutil.Process(parent.pid).children())


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it has just ended
        return False


def is_running(fleet: Fleet, job_id: str) -> Callable[[], bool]:
    def running() -> bool:
        view = fleet.ledger.job(job_id)
        return view is not None and view.state == "running"

    return running


def calls_of(trace: Path) -> Counter[str]:
    """Return how often each attempt called its runner."""
    lines = [line.split() for line in trace.read_text().splitlines()]
    return Counter(entry for _, name, entry in lines if name == "asking")


def assert_ran_once(views: list[JobView], trace: Path) -> None:
    assert {view.state for view in views} == {"succeeded"}
    assert {attempt.claims for view in views for attempt in view.attempts} == {1}
    assert set(calls_of(trace).values()) == {1}
    assert len(calls_of(trace)) == sum(len(view.attempts) for view in views)


def test_a_pool_grows_for_waiting_jobs_and_gives_up_only_idle_processes(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Given one long attempt among short ones, when the pool shrinks, then it continues."""
    gate, trace = tmp_path_factory.mktemp("gate") / "open", tmp_path / "trace"
    with running_fleet(
        tmp_path,
        pools=(CONTROL, SCALED),
        environment={"MULLIGAN_TRACE": str(trace)},
        scale_quiet=0.2,
        lease=600.0,  # nothing here may wait for a lease to expire
    ) as fleet:
        (long,) = fleet.submit(gated(gate))
        wait_for(is_running(fleet, long), "the long attempt to begin")
        assert processes(fleet) == 1
        slow = {"text": GOOD, "delay": 0.5}
        ids = [long, *fleet.submit(*[scripted(slow) for _ in range(9)])]
        wait_for(lambda: processes(fleet) == 4, "the pool to reach its maximum")
        # One running attempt needs two processes, one of them spare.
        wait_for(lambda: processes(fleet) == 2, "the pool to shrink")
        for _ in range(2):  # growing and shrinking during short attempts
            wave = fleet.submit(*[scripted({"text": WRONG_TYPE, "delay": 0.1}, slow)] * 6)
            ids += wave
            wait_for(lambda: processes(fleet) > 2, "the pool to grow again")
            fleet.wait_until_finished(wave)
        assert is_running(fleet, long)()
        gate.touch()
        assert_ran_once(fleet.wait_until_finished(ids), trace)


def test_a_thread_pool_is_not_scaled_and_the_log_says_why(tmp_path: Path) -> None:
    pool = Pool(name="attempt", queues=("repair", "verify", "attempt"), slots=2, most=3)
    argv = ["threads" if word == "prefork" else word for word in pool.argv()]
    with running_fleet(tmp_path, pools=(CONTROL,)) as fleet:
        fleet.stack.add("attempt", argv)
        assert fleet.run(scripted(GOOD)).state == "succeeded"
        wait_for(lambda: "keeps its 2 slots. Use -P prefork" in fleet.logs(), "a log line")


def test_a_stopped_worker_finishes_its_attempt(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Given two workers, when one is asked to stop during an attempt, then it finishes it, the
    other worker takes the rest, and nothing is run again."""
    gate, trace = tmp_path_factory.mktemp("gate") / "open", tmp_path / "trace"
    queues = ("repair", "verify", "attempt")
    pools = [Pool(name=name, queues=queues, slots=2) for name in ("one", "two")]
    with running_fleet(
        tmp_path,
        pools=(CONTROL, *pools),
        environment={"MULLIGAN_TRACE": str(trace)},
        lease=600.0,
    ) as fleet:
        (slow,) = fleet.submit(gated(gate))
        leaving = wait_for(lambda: fleet.holder(slow), "the attempt to begin")
        leaving.process.send_signal(signal.SIGTERM)
        staying = next(c for c in fleet.stack.children if c.name in ("one", "two") and c != leaving)
        assert staying.process is not None
        others = fleet.submit(*[scripted(GOOD) for _ in range(6)])
        wait_for(
            lambda: all((v := fleet.ledger.job(i)) and v.state == "succeeded" for i in others),
            "the other worker to continue",
        )
        assert leaving.alive, "it waits for its attempt"
        gate.touch()
        assert wait_for_exit(leaving) == 0
        views = fleet.wait_until_finished([slow, *others])
        assert_ran_once(views, trace)
        assert str(views[-1].attempts[0].worker).endswith(f":{staying.process.pid}")
