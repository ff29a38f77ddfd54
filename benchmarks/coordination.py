"""What declared files cost: one plan among 200 active loops, with and without `touches`.

``python -m benchmarks.coordination`` prints the medians of one plan, by the clock, and the ratio to
the same plan without declared files. One slot is free in each plan.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.loops import Bench, document
from benchmarks.rig import rig
from mulligan.policies.loops.spec import LoopDocument
from mulligan.tasks.loops.plan import run_plan

console = Console(width=110)
#: Loops that ask for slots, and the items of each.
_LOOPS, _ITEMS = 200, 10
#: What the items that wait declare, by the name of the case.
_CASES: dict[str, Callable[[int, int, int], list[str]]] = {
    "no files": lambda _loop, _item, _locks: [],
    "files that are free": lambda loop, item, _locks: [f"lib/part-{loop}/file-{item}.py"],
    "files that are locked": lambda loop, item, locks: [
        f"src/part-{(loop * _ITEMS + item) % locks}/file-{item}.py"
    ],
}


def _with_files(made: LoopDocument, files: Callable[[int], list[str]]) -> LoopDocument:
    items: list[dict[str, Any]] = [
        {**item.model_dump(mode="json", exclude_unset=True), "touches": files(place)}
        for place, item in enumerate(made.items)
    ]
    loop = made.loop.model_dump(mode="json", exclude_unset=True)
    return LoopDocument.model_validate({"loop": loop, "items": items})


def plan_times(folder: Path, *, case: str, locks: int, rounds: int) -> list[float]:
    """Return the milliseconds of plans of one of the loops, beside items with these locks."""
    touches = _CASES[case]
    with rig(folder) as made:
        bench = Bench(made, slots=locks)
        holder = document("holder", locks, chained=False)
        run_plan(
            bench.context,
            bench.create(_with_files(holder, lambda place: [f"src/part-{place}/**"])),
        )
        assert len(bench.context.ledger.coordination().locks) == locks
        for n in range(_LOOPS):
            other = document(f"loop-{n}", _ITEMS, chained=False, concurrency=2)
            files = [touches(n, item, locks) for item in range(_ITEMS)]
            run_plan(bench.context, bench.create(_with_files(other, files.__getitem__)))
        found = []
        for n in range(rounds + 1):
            bench.slots = len(bench.context.ledger.live_items()) + 1
            found.append(bench.timed_plan(f"loop-{n % _LOOPS}").elapsed)
    return found[1:]  # the first one records who is denied what


def _print(found: dict[tuple[str, int], list[float]]) -> None:
    table = Table(title=f"one plan among {_LOOPS} loops of {_ITEMS} items, in ms")
    for column in ("declared", "locks", "median", "min", "max", "to no files"):
        table.add_column(column, justify="left" if column == "declared" else "right")
    for (case, locks), times in found.items():
        marks = [f"{mark:.1f}" for mark in (statistics.median(times), min(times), max(times))]
        table.add_row(case, str(locks), *marks, _ratio(times, found["no files", locks]))
    console.print(table)


def _ratio(times: Sequence[float], plain: Sequence[float]) -> str:
    """Return the ratio of the medians, and its spread by quartiles."""
    base = statistics.median(plain)
    low, _, high = statistics.quantiles(times, n=4)
    return f"{statistics.median(times) / base:.2f} ({low / base:.2f}–{high / base:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coordination", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--locks", type=int, nargs="+", default=[10, 500])
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="mb-"))
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    try:
        found = {
            (case, locks): plan_times(
                root / f"{n}-{locks}", case=case, locks=locks, rounds=options.rounds
            )
            for locks in options.locks
            for n, case in enumerate(_CASES)
        }
        _print(found)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
