"""Pools that grow and shrink while attempts run in them: none is lost, none is run twice."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.fleet import CONTROL, Fleet, running_fleet, wait_for_exit
from support.jobs import GOOD, WRONG_TYPE, scripted
from support.waiting import wait_for

from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.celery.queues import Pool
from mulligan.workers.local.supervisor import Child

#: Jobs are held by commands.
pytestmark = pytest.mark.real_models("command")
SCALED = Pool(name="attempt", queues=("repair", "verify", "attempt"), slots=1, most=4)


def held(gate: Path) -> dict[str, Any]:
    """A job whose answer comes as soon as a file is there."""
    wait = f"until [ -e '{gate}' ]; do sleep 0.05; done; echo '{GOOD}'"
    return scripted(runner={"kind": "command", "argv": ["sh", "-c", wait]})


def child(fleet: Fleet, name: str) -> Child:
    return next(one for one in fleet.stack.children if one.name == name)


def processes(fleet: Fleet) -> int:
    """The processes of the prefork pool, without their parent and what they run."""
    parent = child(fleet, "attempt").process
    assert parent is not None
    return sum(_lives(one) for one in psutil.Process(parent.pid).children())


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it went while we looked
        return False


def is_running(fleet: Fleet, job_id: str) -> Callable[[], bool]:
    def asked() -> bool:
        view = fleet.ledger.job(job_id)
        return view is not None and view.state == "running"

    return asked


def asked(trace: Path) -> Counter[str]:
    """How often each attempt's runner was asked."""
    lines = [line.split() for line in trace.read_text().splitlines()]
    return Counter(entry for _, name, entry in lines if name == "asking")


def check_once(views: list[JobView], trace: Path) -> None:
    assert {view.state for view in views} == {"succeeded"}
    assert {attempt.claims for view in views for attempt in view.attempts} == {1}
    assert set(asked(trace).values()) == {1}
    assert len(asked(trace)) == sum(len(view.attempts) for view in views)


def test_a_pool_grows_for_what_waits_and_gives_back_only_what_is_idle(tmp_path: Path) -> None:
    """Given one long attempt among short ones, when the pool shrinks, then it goes on."""
    gate, trace = tmp_path / "gate", tmp_path / "trace"
    with running_fleet(
        tmp_path,
        pools=(CONTROL, SCALED),
        environment={"MULLIGAN_TRACE": str(trace)},
        scale_quiet=0.2,
        lease=600.0,  # nothing here may wait for a lease to expire
    ) as fleet:
        (long,) = fleet.submit(held(gate))
        wait_for(is_running(fleet, long), "the long attempt to begin")
        assert processes(fleet) == 1
        slow = {"text": GOOD, "delay": 0.5}
        ids = [long, *fleet.submit(*[scripted(slow) for _ in range(9)])]
        wait_for(lambda: processes(fleet) == 4, "the pool to be as large as it may be")
        # One at work fits into two processes, with room for what comes next.
        wait_for(lambda: processes(fleet) == 2, "the pool to shrink")
        for _ in range(2):  # growing and shrinking in the middle of short attempts
            wave = fleet.submit(*[scripted({"text": WRONG_TYPE, "delay": 0.1}, slow)] * 6)
            ids += wave
            wait_for(lambda: processes(fleet) > 2, "the pool to grow again")
            fleet.wait_until_finished(wave)
        assert is_running(fleet, long)()
        gate.touch()
        check_once(fleet.wait_until_finished(ids), trace)


def test_threads_cannot_be_scaled_and_the_log_says_so(tmp_path: Path) -> None:
    pool = Pool(name="attempt", queues=("repair", "verify", "attempt"), slots=2, most=3)
    argv = ["threads" if word == "prefork" else word for word in pool.argv()]
    with running_fleet(tmp_path, pools=(CONTROL,)) as fleet:
        fleet.stack.add("attempt", argv)
        assert fleet.run(scripted(GOOD)).state == "succeeded"
        wait_for(lambda: "keeps its 2 slots; use -P prefork" in fleet.logs(), "a clear word")


def test_a_worker_that_is_scaled_down_ends_what_it_began(tmp_path: Path) -> None:
    """Given two workers, when one is told to go in the middle of an attempt, then that attempt
    comes to its end there, the other worker takes the rest, and nothing is done again."""
    gate, trace = tmp_path / "gate", tmp_path / "trace"
    queues = ("repair", "verify", "attempt")
    pools = [Pool(name=name, queues=queues, slots=2) for name in ("one", "two")]
    with running_fleet(
        tmp_path,
        pools=(CONTROL, *pools),
        environment={"MULLIGAN_TRACE": str(trace)},
        lease=600.0,
    ) as fleet:
        (slow,) = fleet.submit(held(gate))
        leaving = wait_for(lambda: fleet.holder(slow), "the attempt to begin")
        leaving.process.send_signal(signal.SIGTERM)
        staying = next(c for c in fleet.stack.children if c.name in ("one", "two") and c != leaving)
        assert staying.process is not None
        others = fleet.submit(*[scripted(GOOD) for _ in range(6)])
        wait_for(
            lambda: all((v := fleet.ledger.job(i)) and v.state == "succeeded" for i in others),
            "the other worker to go on",
        )
        assert leaving.alive, "it waits for its attempt"
        gate.touch()
        assert wait_for_exit(leaving) == 0
        views = fleet.wait_until_finished([slow, *others])
        check_once(views, trace)
        assert str(views[-1].attempts[0].worker).endswith(f":{staying.process.pid}")
