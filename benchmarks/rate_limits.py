"""Jobs for a provider with limits: `python -m benchmarks.rate_limits`.

A provider takes five requests at once, refuses the rest with 429 and Retry-After, and a worker has
many more threads than that; or it fails for one second. The ideal is the time in which the provider
could have answered all jobs without an idle moment.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.limited_server import Limits, limited_server, read_figures
from benchmarks.rig import Rig, rig, wait_until
from mulligan.policies.jobs.job import TERMINAL, Job
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.workers.services import Services

console = Console(width=140)


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    limits: Limits
    jobs: int
    threads: int
    #: More fields of each job.
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def ideal(self) -> float:
        """Seconds in which the provider could have answered all jobs."""
        at_once = min(self.limits.at_once, self.threads)
        return self.limits.fails_for + math.ceil(self.jobs / at_once) * self.limits.seconds


CASES = {
    "a": Case(
        name="5 at once, Retry-After 5",
        limits=Limits(at_once=5, seconds=0.2, retry_after=5),
        jobs=300,
        threads=64,
    ),
    "b": Case(
        name="5 at once, Retry-After 1",
        limits=Limits(at_once=5, seconds=0.2, retry_after=1),
        jobs=200,
        threads=16,
    ),
    "c": Case(name="503 for 1 s", limits=Limits(fails_for=1.0), jobs=40, threads=16),
    "d": Case(
        name="503 for 1 s, deadline 60",
        limits=Limits(fails_for=1.0),
        jobs=40,
        threads=16,
        options={"deadline": 60},
    ),
}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One round of a case."""

    ideal: float
    #: Until the last job ended, or until the time limit.
    seconds: float
    answered: int
    refused: int
    #: Jobs that did not succeed: not ended in time, or escalated.
    not_done: int
    most_at_once: int

    @property
    def ratio(self) -> float:
        return self.seconds / self.ideal

    @property
    def refused_share(self) -> float:
        """Refusals in all requests."""
        return self.refused / max(1, self.refused + self.answered)


def measure(folder: Path, case: Case, *, time_limit: float) -> Figures:
    """Run a case on a new Redis, a control worker and a worker with threads."""
    with limited_server(case.limits) as provider, rig(folder) as bench:
        bench.start("mulligan.workers.app", "-P", "solo", "-Q", "control,mulligan.submit", "-B",
                    "--scheduler", "celery.beat.Scheduler")  # fmt: skip
        slots = str(case.threads)
        bench.start("mulligan.workers.app", "-P", "threads", "-c", slots, "-Q", "repair,attempt")
        services = bench.services()
        _warm_up(bench, services)
        job = Job.model_validate(_job(provider) | case.options)
        started = time.perf_counter()
        submit_jobs(services.intake, [job] * case.jobs)
        while (ended := _count(bench, *TERMINAL) - 1) < case.jobs:
            if time.perf_counter() - started > time_limit:
                break
            time.sleep(0.02)
        elapsed = time.perf_counter() - started
        seen = read_figures(provider)
        escalated = ended - (_count(bench, "succeeded") - 1)
        return Figures(
            ideal=case.ideal,
            seconds=elapsed,
            answered=seen.answered,
            refused=seen.refused,
            not_done=case.jobs - ended + escalated,
            most_at_once=seen.most_at_once,
        )


def _warm_up(bench: Rig, services: Services) -> None:
    """Run one job at another provider, so that the workers have started and loaded everything."""
    with limited_server(Limits(seconds=0)) as provider:
        submit_jobs(services.intake, [Job.model_validate(_job(provider))])
        wait_until(lambda: _count(bench, "succeeded") == 1, seconds=120)


def _job(provider: str) -> dict[str, Any]:
    return {
        "task_type": "bench",
        "prompt": "Extract the person as JSON: 'Alice is 31 years old.'",
        "runner": {"kind": "openai", "base_url": f"{provider}/v1", "model": "limited"},
        "verifiers": ["json.object"],
    }


def _count(bench: Rig, *states: str) -> int:
    cards: list[object] = [bench.client.zcard(f"mulligan:{{p00}}:jobs:{name}") for name in states]
    return sum(int(str(each)) for each in cards)


def spread(values: Sequence[float], form: str) -> str:
    low, mid, high = (form.format(f(values)) for f in (min, statistics.median, max))
    return mid if low == high else f"{mid} ({low}–{high})"


def show(results: dict[str, list[Figures]]) -> None:
    rounds = max(map(len, results.values()))
    table = Table(title=f"a provider with limits, {rounds} rounds: median (range)")
    table.add_column("provider")
    for column in ("jobs", "threads", "ideal s", "seconds", "ratio", "refused", "share",
                   "not done", "most at once"):  # fmt: skip
        table.add_column(column, justify="right")
    for key, figures in results.items():
        case = CASES[key]
        table.add_row(
            case.name,
            str(case.jobs),
            str(case.threads),
            f"{case.ideal:.1f}",
            spread([each.seconds for each in figures], "{:.1f}"),
            spread([each.ratio for each in figures], "{:.2f}"),
            spread([each.refused for each in figures], "{:.0f}"),
            spread([each.refused_share for each in figures], "{:.0%}"),
            spread([each.not_done for each in figures], "{:.0f}"),
            spread([each.most_at_once for each in figures], "{:.0f}"),
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=180.0, help="seconds per round")
    parser.add_argument("--json", action="store_true", help="print every round as JSON")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="mb-"))
    results: dict[str, list[Figures]] = {}
    try:
        for key in options.cases:
            for number in range(1, options.rounds + 1):
                with console.status(f"{CASES[key].name}, round {number} of {options.rounds}"):
                    folder = root / f"{key}{number}"
                    figures = measure(folder, CASES[key], time_limit=options.time_limit)
                    results.setdefault(key, []).append(figures)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if options.json:
        rows = {key: [asdict(each) for each in rounds] for key, rounds in results.items()}
        print(json.dumps(rows, indent=2))
    else:
        show(results)


if __name__ == "__main__":
    main()
