"""Reports of a full ledger over HTTP: `python -m benchmarks.reports`.

The ledger has 50,000 cycles and 60 days of figures. The console answers over a real socket: first
with an empty cache, then with the ended cycles cached. A report must take less than a second.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console
from rich.table import Table

from benchmarks.rig import rig, wait_until
from mulligan.console.http.context import open_context
from mulligan.console.server import ConsoleServer, listen
from mulligan.policies.figures.facts import name
from mulligan.workers.figures.fold import Fold
from mulligan.workers.services import Services
from mulligan.workers.settings.model import Settings

console = Console(width=110)

CYCLES, HOURS, TASK_TYPES, SIGNATURES = 50_000, 60 * 24, 6, 40
ALLOWED_SECONDS = 1.0
_P = "mulligan:{p00}:"
_CAUSES = ("json_invalid.fence", "schema_invalid.type", "test_failed.assertion")
REPORTS = (
    f"/api/quality/self-repair-immediate-loop?windowDays=30&limit={CYCLES}",
    f"/api/quality/self-repair-delayed-verification?windowDays=30&limit={CYCLES}",
    f"/api/quality/self-repair-budget?windowDays=30&limit={CYCLES}",
    "/api/failures?window=7d",
    "/api/cost?by=task_type,model&window=30d",
)


def fill_cycles(client: Any, count: int) -> None:
    """Write cycles as the ledger stores them, one every 30 seconds back in time."""
    now = time.time() * 1000
    pipe = client.pipeline(transaction=False)
    for number in range(count):
        cycle = f"p00-bench{number:017d}:1:1"
        created = now - number * 30_000
        metadata = {
            "taskType": f"type_{number % TASK_TYPES}",
            "prompt": "Extract the person as JSON with name and age. " * 10,
            "targetNodes": ["$.age"],
            "causeLabel": _CAUSES[number % len(_CAUSES)],
        }
        record = {
            "job_id": cycle.partition(":")[0],
            "source_attempt": 1,
            "loop_index": 1,
            "status": "completed" if number % 10 else "escalated",
            "created_at": f"{created:.3f}",
            "immediate_at": f"{created + 900:.3f}",
            "immediate_attempt_id": f"{cycle.partition(':')[0]}-2",
            "reason": "",
            "tenant": "",
            "metadata": json.dumps(metadata, separators=(",", ":")),
        }
        pipe.hset(f"{_P}cycle:{cycle}", mapping=record)
        pipe.zadd(f"{_P}cycles", {cycle: created})
        event = {
            "type": "cycle",
            "job": record["job_id"],
            "cycle": cycle,
            "status": record["status"],
        }
        pipe.xadd(f"{_P}events", {"data": json.dumps(event)})
        if number % 2000 == 0:
            pipe.execute()
    pipe.execute()


def fill_figures(client: Any, hours: int) -> None:
    """Write hourly figures with as many dimensions as a busy fleet has."""
    rows: dict[str, int] = {}
    for kind in range(TASK_TYPES):
        of = (f"type_{kind}", "small", "model-1", "", "")
        for repair in ("no", "yes"):
            for measure, n in (("n", 900), ("ok", 700), ("prompt", 90_000), ("completion", 30_000)):
                rows[name("use", *of, repair, measure=measure)] = n
        rows[name("job", f"type_{kind}", "", "succeeded", "1")] = 700
    for number in range(SIGNATURES):
        dims = (f"v1:{number:020d}", "json_invalid", "fence", f"type_{number % TASK_TYPES}")
        rows[name("failure", *dims, "model-1", "")] = number + 1
        rows[name("repair", dims[0], "drop_fence", "", measure="tried")] = number + 1
    pipe = client.pipeline(transaction=False)
    for back in range(hours):
        pipe.hset(f"{_P}figures:h:{int(time.time()) // 3600 - back}", mapping=rows)
    pipe.execute()


def fold(services: Services) -> float:
    """Fold all events, as the control worker does every second. Return the seconds."""
    started = time.perf_counter()
    folding = Fold(services.ledger)
    while folding.run():
        pass
    return time.perf_counter() - started


@contextmanager
def answering(broker: str) -> Iterator[str]:
    """Run a console on a free port, in a thread."""
    context = open_context(Settings(broker_url=broker, console_port=0))
    socket = listen("127.0.0.1", 0)
    server = ConsoleServer(context)
    thread = threading.Thread(target=lambda: server.run(sockets=[socket]), daemon=True)
    thread.start()
    wait_until(lambda: server.started, seconds=20)
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        socket.close()


def measure(broker: str, paths: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each answer. Each path has a new console, so the first one is cold."""
    found: dict[str, list[float]] = {}
    for path in paths:
        with answering(broker) as url, httpx2.Client(base_url=url, timeout=60) as client:
            client.get("/healthz").raise_for_status()
            for _ in range(rounds):
                started = time.perf_counter()
                client.get(path).raise_for_status()
                found.setdefault(path, []).append(time.perf_counter() - started)
    return found


def run(cycles: int = CYCLES, rounds: int = 4) -> dict[str, list[float]]:
    """Fill a ledger, request every report and print the seconds of each."""
    folder = Path(tempfile.mkdtemp(prefix="mb-"))
    try:
        with rig(folder / "r") as bench, console.status(f"reports over {cycles:,} cycles"):
            fill_cycles(bench.client, cycles)
            folding = fold(bench.services())
            fill_figures(bench.client, HOURS)
            found = measure(bench.broker, REPORTS, rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table = Table(title=f"reports over {cycles:,} cycles, seconds over HTTP")
    for column in ("report", "first", "next", f"under {ALLOWED_SECONDS:g} s"):
        table.add_column(column, justify="left" if column == "report" else "right", no_wrap=True)
    for path, seconds in found.items():
        repeated = max(seconds[1:], default=seconds[0])
        good = "yes" if max(seconds) < ALLOWED_SECONDS else "no"
        table.add_row(path.partition("?")[0], f"{seconds[0]:.2f}", f"{repeated:.2f}", good)
    console.print(table)
    console.print(f"folding the {cycles:,} events took {folding:.1f} s")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reports", description=__doc__)
    parser.add_argument("--cycles", type=int, default=CYCLES)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    options = parser.parse_args()
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    found = run(options.cycles, options.rounds)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
