"""The costs of loops: `python -m benchmarks.loops`.

How long a plan takes from its hint to its write, what loops cost that have nothing to do, and what
a budget adds to a claim.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.rig import GOOD, Rig, percentile, rig, wait_until
from mulligan.policies.loops.spec import LoopDocument
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.loops import change
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.plan import run_plan
from mulligan.tasks.ports.ledger import Claim, Entry, Requester
from mulligan.workers.services import Services

console = Console(width=110)
_CALLER = Requester(by="benchmark")
#: An item depends on three of the ten before it, so that ten can run at once.
_WIDTH = 10
#: Other loops that ask for slots.
_OTHERS = 200


def document(name: str, items: int, *, chained: bool = True, **config: Any) -> LoopDocument:
    """Return a loop of scripted items."""
    runner = {"kind": "scripted", "answers": [GOOD]}
    return LoopDocument.model_validate(
        {
            "loop": {"name": name, "runner": runner, "concurrency": 1000, **config},
            "items": [
                {
                    "id": f"ITEM-{n:04d}",
                    "title": f"The work item number {n}",
                    "prompt": f"Answer with a name and an age, for the {n}th time. " * 8,
                    "depends_on": [f"ITEM-{n - each:04d}" for each in (8, 9, 10)]
                    if chained and n >= _WIDTH
                    else [],
                    "verifiers": ["json.object"],
                }
                for n in range(items)
            ],
        }
    )


@dataclass(frozen=True, kw_only=True)
class PlanTime:
    """Milliseconds of one plan: by the clock, and of CPU in the process. Redis is not in it."""

    elapsed: float
    cpu: float


class Bench:
    """A ledger with loops. Messages are not sent: the benchmark plans and works by itself."""

    def __init__(self, made: Rig, *, slots: int = 8) -> None:
        self.services: Services = made.services()
        self.slots = slots
        self.context: LoopContext = replace(
            self.services.loops, publish=lambda _: None, slots=lambda: self.slots
        )

    def create(self, made: LoopDocument) -> str:
        change.create_loop(self.context, made, by="benchmark")
        change.move(self.context, made.loop.name, "start", _CALLER)
        return made.loop.name

    def jobs(self, name: str) -> list[str]:
        """Return the jobs of a loop's running items."""
        reading = self.context.ledger.read_loop(name)
        assert reading is not None
        return [r.job_id for r in reading.snapshot.items.values() if r.state == "running"]

    def timed_plan(self, name: str) -> PlanTime:
        started, cpu = time.perf_counter(), time.process_time()
        planned = run_plan(self.context, name)
        elapsed, used = time.perf_counter() - started, time.process_time() - cpu
        assert planned.result == "written", planned
        return PlanTime(elapsed=elapsed * 1000, cpu=used * 1000)


# -- plans -----------------------------------------------------------------------------------------


def plan_times(folder: Path, *, items: int, rounds: int) -> dict[str, list[PlanTime]]:
    """Return the times of plans: read, decided and written."""
    few = max(3, rounds // 10)
    with rig(folder) as made:
        bench = Bench(made)
        bench.timed_plan(bench.create(document("small", 10)))
        change.move(bench.context, "small", "stop", _CALLER)
        name = bench.create(document("loop", items))
        run_plan(bench.context, name)
        idle = [bench.timed_plan(name) for _ in range(rounds)]
        settled = list(_after_settling(bench, name, rounds))
        unparsed = [_new_process(made).timed_plan(name) for _ in range(few)]
        for n in range(_OTHERS):
            run_plan(bench.context, bench.create(document(f"other-{n}", 10, concurrency=2)))
        crowded = [bench.timed_plan(name) for _ in range(few)]
        for each in (name, *(f"other-{n}" for n in range(_OTHERS))):
            change.move(bench.context, each, "stop", _CALLER)
        first = [
            bench.timed_plan(bench.create(document(f"new-{n}", items, chained=False)))
            for n in range(few)
        ]
    return {
        "nothing to do": idle,
        "after one item passed": settled,
        "in a new process, which parses the items": unparsed,
        f"nothing to do, beside {_OTHERS} loops that wait for slots": crowded,
        f"the first: {items:,} items become ready": first,
    }


def _new_process(made: Rig) -> Bench:
    """Return a bench that has parsed nothing yet, but is connected."""
    bench = Bench(made)
    bench.timed_plan("small")
    return bench


def _after_settling(bench: Bench, name: str, rounds: int) -> Iterator[PlanTime]:
    for _ in range(rounds):
        job_id = bench.jobs(name)[0]
        run_attempt(bench.services.context, Entry("attempt", job_id, 1))
        yield bench.timed_plan(name)


# -- idle loops ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class IdleCost:
    """Shares of one core."""

    control: float
    redis: float
    #: How many plans were made meanwhile.
    plans: int


def idle_cost(folder: Path, *, loops: int, items: int, seconds: float) -> IdleCost:
    """Measure a control process whose loops wait for slots that long items hold."""
    environment = {"MULLIGAN_LOOP_SLOTS": "8", "MULLIGAN_LEASE": "3600"}
    os.environ.update(environment)  # the benchmark claims the items, for as long as it takes
    with rig(folder) as made:
        bench = Bench(made)
        names = [bench.create(document(f"loop-{n}", items)) for n in range(loops)]
        for name in names:
            run_plan(bench.context, name)
        for name in names:
            for job_id in bench.jobs(name):
                bench.context.ledger.claim(Entry("attempt", job_id, 1), worker="benchmark")
        with _control(made) as process:
            wait_until(lambda: _all_planned(bench), seconds=120)
            time.sleep(10)
            return _cost(bench, made, process, seconds)


@contextmanager
def _control(made: Rig) -> Iterator[psutil.Process]:
    """Start the pool that accepts, sweeps and plans."""
    argv = [sys.executable, "-m", "mulligan.console", "worker", "control"]
    log = (made.folder / "control.log").open("wb")
    environment = {**os.environ, **made.settings_environment()}
    process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def _all_planned(bench: Bench) -> bool:
    return all(loop.dirty == loop.planned for loop in bench.context.ledger.loops())


def _cost(bench: Bench, made: Rig, control: psutil.Process, seconds: float) -> IdleCost:
    def used() -> tuple[float, float]:
        tree = [control, *control.children(recursive=True)]
        times = [process.cpu_times() for process in (*tree, made.server)]
        each = [t.user + t.system for t in times]
        return sum(each[:-1]), each[-1]

    def plans() -> set[tuple[str, float | None]]:
        return {(loop.name, loop.planned_at) for loop in bench.context.ledger.loops()}

    first = plans()
    seen = set(first)
    before, started = used(), time.monotonic()
    while time.monotonic() < started + seconds:
        time.sleep(10)
        seen |= plans()
    after, elapsed = used(), time.monotonic() - started
    control_share, redis_share = ((b - a) / elapsed for a, b in zip(before, after, strict=True))
    return IdleCost(control=control_share, redis=redis_share, plans=len(seen - first))


# -- claims ----------------------------------------------------------------------------------------


def claim_rates(folders: Callable[[], Path], *, items: int, rounds: int) -> dict[str, list[float]]:
    """Return the claims per second of 16 threads, in alternating rounds."""
    budgets: dict[str, dict[str, Any]] = {
        "without a budget": {},
        "against one budget": {
            "attempt": {"tokens": 1000, "seconds": 60},
            "loop": {"tokens": "100M"},
            "day": {"tokens": "100M", "seconds": "1000h"},
        },
    }
    found: dict[str, list[float]] = {name: [] for name in budgets}
    for _ in range(rounds):
        for name, budget in budgets.items():
            found[name].append(_claim_rate(folders(), items, budget))
    return found


def _claim_rate(folder: Path, items: int, budget: dict[str, Any]) -> float:
    with rig(folder) as made:
        bench = Bench(made, slots=items)
        name = bench.create(document("loop", items, chained=False, budget=budget))
        while len(jobs := bench.jobs(name)) < items:
            run_plan(bench.context, name)

        def claim(job_id: str) -> bool:
            entry = Entry("attempt", job_id, 1)
            return isinstance(bench.context.ledger.claim(entry, worker="benchmark"), Claim)

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda _: bench.context.ledger.now(), range(64)))  # connects
            started = time.perf_counter()
            claimed = sum(pool.map(claim, jobs))
            elapsed = time.perf_counter() - started
        assert claimed == items, claimed
        return items / elapsed


# -- the report ------------------------------------------------------------------------------------


def _print_plans(found: dict[str, list[PlanTime]]) -> None:
    table = Table(title="from a hint to the written plan, in ms")
    for column in ("plan", "median", "p95", "min", "max", "CPU, median", "n"):
        table.add_column(column, justify="left" if column == "plan" else "right", no_wrap=True)
    for name, times in found.items():
        values, cpu = [each.elapsed for each in times], [each.cpu for each in times]
        marks = (statistics.median(values), percentile(values, 0.95), min(values), max(values))
        cells = [f"{mark:.1f}" for mark in (*marks, statistics.median(cpu))]
        table.add_row(name, *cells, str(len(values)))
    console.print(table)


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f}–{max(values):,.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loops", description=__doc__)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--loops", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=120.0, help="of idling")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="mb-"))
    folders = (root / str(n) for n in range(1000))
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    try:
        _print_plans(plan_times(next(folders), items=options.items, rounds=options.rounds))
        rates = claim_rates(lambda: next(folders), items=options.items, rounds=3)
        for name, values in rates.items():
            console.print(f"claims per second of 16 threads, {name}: {_spread(values)}")
        cost = idle_cost(
            next(folders), loops=options.loops, items=options.items, seconds=options.seconds
        )
        console.print(
            f"{options.loops} idle loops of {options.items:,} items:"
            f" control {cost.control:.1%} and Redis {cost.redis:.1%} of one core,"
            f" {cost.plans} plans in {options.seconds:.0f} s"
        )
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
