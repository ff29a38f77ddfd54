"""What confinement adds to one verification: programs run in turn with and without it.

Each round runs the same program once in every way, so that a busy computer slows all of them. The
differences are those of one round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from time import perf_counter
from typing import Literal
from unittest import mock

from rich.console import Console
from rich.table import Table

from mulligan.workers.sandbox import subprocesses
from mulligan.workers.sandbox.confinement import Confinement
from mulligan.workers.sandbox.isolation import Isolation, NotConfined
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.private import private_directory

_NOTHING = [sys.executable, "-I", "-S", "-c", ""]
_KINDS: tuple[Literal["bubblewrap", "landlock"], ...] = ("bubblewrap", "landlock")


def milliseconds(isolation: Isolation, work: Path) -> float:
    """Return how long a program that does nothing takes."""
    started = perf_counter()
    found = mock.patch.object(subprocesses, "isolation_of", return_value=isolation)
    with found:
        done = subprocesses.run(
            _NOTHING,
            cwd=work,
            timeout=60,
            env=subprocesses.clean_environment(work.parent),
            limits=Limits(),
        )
    assert done.exit_code == 0, done.stderr
    return 1000 * (perf_counter() - started)


def spread(values: list[float]) -> str:
    """Return the median and the middle half."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.1f} ms ({low:.1f}–{high:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.isolation", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    ways = {"none": Isolation("none")}
    for kind in _KINDS:
        try:
            ways[kind] = subprocesses.isolation_of(Confinement(kind=kind))
        except NotConfined as error:
            print(error)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    with private_directory() as work:
        for _ in range(rounds):
            for name, isolation in ways.items():
                taken[name].append(milliseconds(isolation, work))
    table = Table("confined by", "layers", "a program that does nothing", "more than unconfined")
    for name, isolation in ways.items():
        added = [a - b for a, b in zip(taken[name], taken["none"], strict=True)]
        more = spread(added) if name != "none" else ""
        table.add_row(name, ", ".join(isolation.layers), spread(taken[name]), more)
    Console().print(table)


if __name__ == "__main__":
    main()
