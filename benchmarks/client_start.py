"""The CPU seconds of a program until its first job is in the ledger, in a separate process.

Creating a client loads nothing; the first job loads what it needs. So three steps are measured:
created, ready (settings read, ledger opened) and first job submitted, which with a broker includes
Celery. The start of Python itself is a separate column.
"""

from __future__ import annotations

import argparse
import os
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
_COLUMNS = ("Python itself", "created", "ready", "first job submitted")


def measure(url: str, home: Path) -> list[float]:
    """Return the CPU seconds since the process began, at its first line and after each step."""
    argv = [sys.executable, "-c", _PROGRAM, url, str(home)]
    # Without cached bytecode, most of the time would be spent on compiling.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    return [float(value) for value in done.stdout.split()]


def cells(runs: Sequence[Sequence[float]]) -> list[str]:
    """Return the median and the range of the seconds that each step adds."""
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
    with tempfile.TemporaryDirectory(prefix="mb-") as folder, rig(Path(folder) / "rig") as bench:
        for name, url in (("embedded stack", ""), ("broker", bench.broker)):
            home = Path(folder) / "home"
            measure(url, home)  # so that every module is compiled
            table.add_row(name, *cells([measure(url, home) for _ in range(options.runs)]))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
