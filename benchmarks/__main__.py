"""`make bench`: every figure the README shows, measured in one run."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import latency, throughput
from benchmarks.rig import percentile

console = Console(width=110)


def spread(values: Sequence[float], form: str = "{:,.0f}") -> str:
    low, mid, high = min(values), statistics.median(values), max(values)
    return f"{form.format(mid)} ({form.format(low)}–{form.format(high)})"


class Folders:
    """A new folder for each rig, with a short path, because socket paths must be short."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="mb-"))
        self.count = 0

    def __call__(self) -> Path:
        self.count += 1
        return self.root / str(self.count)


def measure_throughput(folders: Callable[[], Path], rounds: int, tasks: int) -> dict[str, Any]:
    """Measure in alternating rounds, so that both sides have the same noise."""
    plain, solo, ours = [], [], []
    for number in range(1, rounds + 1):
        with console.status(f"throughput, round {number} of {rounds}"):
            plain.append(throughput.plain(folders(), tasks))
            solo.append(throughput.plain(folders(), tasks, solo=True))
            ours.append(throughput.mulligan(folders(), tasks))
    ratios = [b.per_second / a.per_second for a, b in zip(plain, ours, strict=True)]
    table = Table(title="2 worker processes, 1 KB payload, per task: median (range)")
    for column in ("", "tasks/s", "worker µs", "Redis µs", "commands"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    rows = (
        ("Celery no-op, prefork", plain),
        ("Celery no-op, solo", solo),
        ("mulligan attempt, solo", ours),
    )
    for name, rates in rows:
        table.add_row(
            name,
            spread([rate.per_second for rate in rates]),
            spread([rate.worker_cpu for rate in rates]),
            spread([rate.redis_cpu for rate in rates]),
            spread([rate.commands for rate in rates], "{:.1f}"),
        )
    console.print(table)
    console.print(f"mulligan / Celery with default settings (prefork): {spread(ratios, '{:.2f}')}")
    trips = throughput.round_trips(folders())
    console.print(f"ledger round trips per attempt on the happy path: {trips:.2f}\n")
    return {
        "plain": [vars(rate) for rate in plain],
        "plain_solo": [vars(rate) for rate in solo],
        "mulligan": [vars(rate) for rate in ours],
        "ratio": ratios,
        "round_trips": trips,
    }


def measure_latency(folders: Callable[[], Path], backlogs: Sequence[int]) -> dict[str, Any]:
    table = Table(title="from a low score to the start of its retry, in ms")
    for column in ("", "jobs waiting", "p50", "p99", "max", "n"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    found: dict[str, Any] = {}
    for waiting in backlogs:
        for name, measure in (
            ("Celery self.retry", latency.plain),
            ("mulligan", latency.mulligan),
        ):
            with console.status(f"retry latency, {name}, {waiting:,} waiting"):
                values = measure(folders(), waiting)
            found[f"{name}, {waiting}"] = values
            marks = (percentile(values, 0.5), percentile(values, 0.99), max(values))
            cells = [f"{mark:,.1f}" for mark in marks]
            table.add_row(name, f"{waiting:,}", *cells, str(len(values)))
    console.print(table)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=4000)
    parser.add_argument("--waiting", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    options = parser.parse_args()
    folders = Folders()
    load = os.getloadavg()[0]
    console.print(f"{os.cpu_count()} cores, load {load:.1f} at the start")
    try:
        figures = {
            "throughput": measure_throughput(folders, options.rounds, options.tasks),
            "latency_ms": measure_latency(folders, options.waiting),
        }
    finally:
        shutil.rmtree(folders.root, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
