"""What a program pays before its first job is in the ledger: CPU seconds, in a process of its own.

A client is made in an instant, because it loads nothing; what it needs is loaded by the first job.
So three moments are measured: made, ready (settings read, ledger opened) and the first job handed
in, which for a broker includes Celery. What Python itself needs to start is told apart.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.rig import rig

_PROGRAM = """
import sys, time
marks = [time.process_time()]
def mark(): marks.append(time.process_time())
from mulligan import Client
url, home = sys.argv[1:]
client = Client(url or None, home=home)
mark()
client.handle("p00-x", returns={"type": "object"})
mark()
job = dict(runner={"kind": "scripted", "answers": ["{}"]}, verifiers=["json.object"])
client.submit("x", **job)
mark()
client.close()
print(*marks)
"""
_COLUMNS = ("Python itself", "made", "ready", "first job handed in")


def measure(url: str, home: Path) -> list[float]:
    """CPU seconds since the process began: at its first line, and at each of the three moments."""
    argv = [sys.executable, "-c", _PROGRAM, url, str(home)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return [float(value) for value in done.stdout.split()]


def cells(runs: Sequence[Sequence[float]]) -> list[str]:
    """The median and the range of what each step adds to the one before it."""
    steps = [[b - a for a, b in zip((0.0, *run), run, strict=False)] for run in runs]
    columns = zip(*steps, strict=True)
    return [f"{statistics.median(c):.2f} ({min(c):.2f}–{max(c):.2f})" for c in columns]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client_start", description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    table = Table(title="CPU seconds that each step adds: median (range)")
    table.add_column("")
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    with tempfile.TemporaryDirectory(prefix="mb-") as folder, rig(Path(folder) / "rig") as made:
        for name, url in (("embedded stack", ""), ("broker", made.broker)):
            home = Path(folder) / "home"
            measure(url, home)  # what Python compiles is compiled
            table.add_row(name, *cells([measure(url, home) for _ in range(options.runs)]))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
