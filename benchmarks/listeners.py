"""Events to many listeners over HTTP: `python -m benchmarks.listeners`.

The server is limited to one core. Each event carries the time when it was written, so that a
listener knows its age on arrival.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.rig import Rig, rig, wait_until

_WRITTEN = re.compile(rb'"written": ([\d.]+)')


@dataclass(frozen=True, kw_only=True)
class Figures:
    listeners: int
    per_second: float
    delivered: int
    expected: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    #: The share of one core.
    server_cpu: float


def measure(folder: Path, *, listeners: int, per_second: int, seconds: float) -> Figures:
    """Write events at a steady rate and measure when every listener has them."""
    with rig(folder) as bench, _console(bench) as (server, port):
        return asyncio.run(_run(bench, server, port, listeners, per_second, seconds))


@contextmanager
def _console(bench: Rig) -> Iterator[tuple[psutil.Process, int]]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    environment = {**os.environ, **bench.settings_environment()}
    argv = [sys.executable, "-m", "mulligan.console", "console", "--port", str(port)]
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL)
    server = psutil.Process(process.pid)
    server.cpu_affinity([max(os.sched_getaffinity(0))])
    try:
        wait_until(lambda: _answers(port), seconds=60)
        yield server, port
    finally:
        process.terminate()
        process.wait(20)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1):
            return True
    except OSError:
        return False


async def _run(
    bench: Rig, server: psutil.Process, port: int, listeners: int, per_second: int, seconds: float
) -> Figures:
    ages: list[float] = []
    ready = asyncio.Semaphore(0)
    tasks = [asyncio.create_task(_listen(port, ages, ready)) for _ in range(listeners)]
    for _ in tasks:
        await ready.acquire()
    expected = int(per_second * seconds)
    before, started = _cpu(server), time.monotonic()
    await asyncio.to_thread(_write, bench, expected, per_second)
    elapsed = time.monotonic() - started
    cpu = (_cpu(server) - before) / elapsed
    deadline = time.monotonic() + 10
    while len(ages) < expected * listeners and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    ordered = sorted(ages) or [float("nan")]
    return Figures(
        listeners=listeners,
        per_second=expected / elapsed,
        delivered=len(ages),
        expected=expected * listeners,
        p50_ms=statistics.median(ordered) * 1000,
        p99_ms=ordered[int(len(ordered) * 0.99)] * 1000,
        max_ms=ordered[-1] * 1000,
        server_cpu=cpu,
    )


async def _listen(port: int, ages: list[float], ready: asyncio.Semaphore) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    writer.write(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b"retry: 2000\n")
    ready.release()
    rest = b""
    while chunk := await reader.read(1 << 16):
        now = time.time()
        rest += chunk
        for found in _WRITTEN.finditer(rest):
            ages.append(now - float(found[1]))
        rest = rest[rest.rfind(b"\n") + 1 :]


def _write(bench: Rig, count: int, per_second: int) -> None:
    """Write events like those of a settled attempt, at a steady rate."""
    started = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, started + number / per_second - time.monotonic()))
        event = {
            "written": time.time(), "type": "attempt", "state": "settled", "attempt": 1,
            "job": f"p00-1m7hc2ve8a7zdc4syz{number:04d}", "score": 100, "success": True,
            "kind": None, "next": None, "mode": "initial", "task_type": "extract_person",
            "runner": "scripted", "prompt_tokens": 120, "completion_tokens": 40,
            "total_tokens": 160, "seconds": 0.812,
        }  # fmt: skip
        bench.client.xadd("mulligan:{p00}:events", {"data": json.dumps(event)}, maxlen=100_000)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listeners", type=int, default=50)
    parser.add_argument("--per-second", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="mb-"))
    try:
        found = measure(
            root / "1",
            listeners=options.listeners,
            per_second=options.per_second,
            seconds=options.seconds,
        )
    finally:
        shutil.rmtree(root, ignore_errors=True)
    sys.stdout.write(
        f"{found.per_second:.0f} events/s to {found.listeners} listeners:"
        f" {found.delivered:,} of {found.expected:,} delivered;"
        f" age p50 {found.p50_ms:.0f} ms, p99 {found.p99_ms:.0f} ms, max {found.max_ms:.0f} ms;"
        f" server {found.server_cpu:.0%} of one core\n"
    )


if __name__ == "__main__":
    main()
