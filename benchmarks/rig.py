"""Shared by the benchmarks: a new Redis, worker processes, and their costs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import redis

from mulligan.workers.celery.factory import create_app
from mulligan.workers.local.server_binary import find_server
from mulligan.workers.services import Services, app_services
from mulligan.workers.settings.model import Settings

_QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")
SCHEMA = {
    "type": "object",
    "required": ["name", "age"],
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
}
GOOD = '{"name": "Alice", "age": 31}'
WRONG = '{"name": "Alice", "age": "31"}'


@dataclass
class Rig:
    """A Redis and its workers."""

    folder: Path
    client: redis.Redis
    server: psutil.Process
    workers: list[psutil.Process]

    @property
    def broker(self) -> str:
        return f"redis+socket://{self.folder / 'r.sock'}"

    def start(self, app: str, *options: str, **environment: str) -> None:
        argv = [sys.executable, "-m", "celery", "-A", app, "--quiet", "worker", "-l", "error"]
        argv += ["-n", f"w{len(self.workers)}@%h", *_QUIET, *options]
        env = {**os.environ, "BENCH_BROKER": self.broker, **self.settings_environment()}
        log = (self.folder / f"w{len(self.workers)}.log").open("wb")
        process = subprocess.Popen(argv, env={**env, **environment}, stdout=log, stderr=log)
        self.workers.append(psutil.Process(process.pid))

    def settings_environment(self) -> dict[str, str]:
        return {
            "MULLIGAN_BROKER_URL": self.broker,
            "MULLIGAN_ALLOW_INLINE": "true",
            "MULLIGAN_TASK_EVENTS": "false",
        }

    def services(self) -> Services:
        settings = Settings(broker_url=self.broker, allow_inline=True, task_events=False)
        return app_services(settings, create_app(settings), local_paths=True)

    def cpu(self) -> tuple[float, float]:
        """Return the CPU seconds used so far by the workers and by Redis."""
        tree = [p for worker in self.workers for p in (worker, *worker.children(recursive=True))]
        return sum(map(_seconds, tree)), _seconds(self.server)

    def commands(self) -> int:
        info: Any = self.client.info("stats")
        return int(info["total_commands_processed"])


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def wait_until(condition: Callable[[], bool], *, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("the benchmark bench no progress; see the workers' logs")
        time.sleep(0.01)


@contextmanager
def rig(folder: Path) -> Iterator[Rig]:
    """Start a rig and stop its processes at the end."""
    folder.mkdir(parents=True)
    socket = folder / "r.sock"
    argv = [find_server().path, "--port", "0", "--unixsocket", str(socket), "--save", ""]
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    wait_until(socket.exists, seconds=10)
    client = redis.Redis(unix_socket_path=str(socket), decode_responses=True)
    bench = Rig(folder, client, psutil.Process(server.pid), [])
    try:
        yield bench
    finally:
        _stop([p for w in bench.workers for p in (*w.children(recursive=True), w)])
        _stop([bench.server])


def _stop(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=10)
    for process in alive:
        process.kill()
