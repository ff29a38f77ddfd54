"""Workers are killed at random moments and at every named step, and the invariants hold."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.fleet import CONTROL, Fleet, running_fleet
from support.jobs import GOOD, MISSING, WRONG_TYPE, scripted, verdict_of
from support.waiting import wait_for

from mulligan.policies.repair.retry import PASSING_SCORE, Escalate
from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.celery.broker.queues import Pool
from mulligan.workers.crash_points import STEPS

pytestmark = pytest.mark.chaos

JOBS = 300
WORKERS = [
    Pool(name=name, queues=("repair", "verify", "attempt"), slots=4) for name in ("one", "two")
]
SLOW = {"id": "command.subprocess", "argv": ["true"]}
FAST = ["json.object", {"id": "contract.schema", "schema": scripted()["verifiers"][1]["schema"]}]

#: The answers of a job, and its state and number of attempts at the end.
CASES: list[tuple[tuple[str, ...], str, int]] = [
    ((GOOD,), "succeeded", 1),
    ((WRONG_TYPE, GOOD), "succeeded", 2),
    ((WRONG_TYPE, MISSING, GOOD), "succeeded", 3),
    ((WRONG_TYPE,), "escalated", 3),  # the same failure three times
]


def jobs() -> list[dict[str, Any]]:
    found = []
    for i in range(JOBS):
        answers, _, _ = CASES[i % len(CASES)]
        # Every fifth job has a slow verification, so that crashes hit the hand-over, too.
        verifiers = [*FAST, SLOW] if i % 5 == 0 else FAST
        found.append(scripted(*answers, name=f"job-{i}", verifiers=verifiers))
    return found


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
        ids = fleet.submit(*jobs())
        seed = int(os.environ.get("CHAOS_SEED", "7"))
        _kill_at_random(fleet, random.Random(seed), ids, kills=6)
        _stop_one_past_its_lease(fleet, ids)
        views = fleet.wait_until_finished(ids, seconds=240)
        check_no_job_lost(views)
        check_one_retry_per_low_score(views)
        check_no_answer_bought_twice(views, trace)
        check_failures_counted_once(fleet, views)
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


def check_no_job_lost(views: list[JobView]) -> None:
    """Invariant 1: each job reached the end that follows from its answers."""
    for view in views:
        number = int((view.job.name or "").removeprefix("job-"))
        _, state, attempts = CASES[number % len(CASES)]
        ended = (view.state, len(view.attempts))
        assert ended == (state, attempts), f"{view.job.name}: {view.reason} {view.detail}"


def check_one_retry_per_low_score(views: list[JobView]) -> None:
    """Invariant 2: exactly one retry, unless a limit was reached."""
    for view in views:
        low = [
            a.plan.number
            for a in view.attempts
            if a.plan.mode != "immediate_retry"
            and (a.score or 0) < PASSING_SCORE
            and not isinstance(verdict_of(a).decision, Escalate)
        ]
        retries = [a.plan.number for a in view.attempts if a.plan.mode == "immediate_retry"]
        assert retries == [n + 1 for n in low], view.job.name
        assert [cycle.source_attempt for cycle in view.cycles] == low
        assert low[:1] == ([] if verdict_of(view.attempts[0]).success else [1])
        assert [a.plan.number for a in view.attempts] == list(range(1, len(view.attempts) + 1))


def check_no_answer_bought_twice(views: list[JobView], trace: Path) -> None:
    """Invariant 3: after an answer is stored, its runner is not called again."""
    asked: dict[str, list[float]] = defaultdict(list)
    stored: dict[str, float] = {}
    for line in trace.read_text().splitlines():
        at, name, entry = line.split()
        if name == "asking":
            asked[entry].append(float(at))
        if name == "output_stored":
            stored.setdefault(entry, float(at))
    for entry, times in asked.items():
        late = [at for at in times if at > stored.get(entry, float("inf"))]
        assert not late, f"{entry}: the runner was called again after its answer was stored"
    assert len(asked) == sum(len(view.attempts) for view in views)


def check_failures_counted_once(fleet: Fleet, views: list[JobView]) -> None:
    """Invariant 4: the memory counts each attempt's failure once."""
    client = fleet.server.client()
    for view in views:
        expected = Counter(s for a in view.attempts for s in verdict_of(a).signatures)
        memory: Any = client.hgetall(f"mulligan:{{p00}}:memory:job:{view.id}")
        assert {key: int(count) for key, count in memory.items()} == dict(expected)
