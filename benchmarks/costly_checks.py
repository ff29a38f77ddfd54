"""What a check in a killable child costs, beside the same check in the worker's own process.

A schema that is cheap by construction is checked in the worker; a recursive one in a child. The
first call of a process starts the child and imports the verifiers.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from mulligan.workers.verifiers.contract_schema import Contract

_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
}
#: The same, with people inside people: nobody knows how deep.
_FAMILY = {**_PERSON, "properties": {**_PERSON["properties"], "child": {"$ref": "#"}}}  # type: ignore[dict-item]
_RIGHT: dict[str, Any] = {"name": "Alice", "age": 31}
_WRONG: dict[str, Any] = {"name": "Alice", "age": "31"}
_THREADS = 50


def milliseconds(call: Callable[[], Any], number: int) -> list[float]:
    """Return the time of each call."""
    found = []
    for _ in range(number):
        started = perf_counter()
        call()
        found.append((perf_counter() - started) * 1000)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.costly_checks", description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    calls = parser.parse_args().calls
    console = Console(width=110)
    (cold,) = milliseconds(lambda: Contract.of(_FAMILY).errors(_RIGHT, 30), 1)
    table = Table(title="contract.schema, milliseconds per check of a small answer")
    for column in ("", "median", "p99"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for place, schema in (("in the worker", _PERSON), ("in a warm child", _FAMILY)):
        contract = Contract.of(schema)
        for kind, value in (("a right answer", _RIGHT), ("a wrong answer", _WRONG)):
            times = sorted(milliseconds(partial(contract.errors, value, 30), calls))
            p99 = times[int(len(times) * 0.99)]
            table.add_row(f"{place}, {kind}", f"{statistics.median(times):.3f}", f"{p99:.3f}")
    console.print(table)
    console.print(f"the first check in a child, with its start: {cold:.0f} ms")
    contract = Contract.of(_FAMILY)
    with ThreadPoolExecutor(_THREADS) as threads:
        started = perf_counter()
        list(threads.map(lambda _: contract.errors(_RIGHT, 30), range(calls)))
        rate = calls / (perf_counter() - started)
    console.print(f"checks per second in children, {_THREADS} threads: {rate:,.0f}")


if __name__ == "__main__":
    main()
