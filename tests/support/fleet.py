"""A fleet for tests: a Redis of its own and real worker processes that may be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from mulligan.policies.jobs.job import TERMINAL
from mulligan.tasks.jobs.submit import read_job, submit_jobs
from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.celery.factory import create_app
from mulligan.workers.celery.queues import Pool
from mulligan.workers.local.embedded_redis import find_server
from mulligan.workers.local.supervisor import Child, Stack, child_environment
from mulligan.workers.services import Services, app_services
from mulligan.workers.settings.model import Settings

SCHEMA = {
    "type": "object",
    "required": ["name", "age"],
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
}
GOOD = '{"name": "Alice", "age": 31}'
WRONG_TYPE = '{"name": "Alice", "age": "31"}'
MISSING = '{"name": "Alice"}'
CONTROL = Pool(name="control", queues=("control", "mulligan.submit"), kind="solo", beat=True)
WORK = Pool(name="work", queues=("repair", "verify", "attempt"), slots=4)


def wait_for(condition: Callable[[], Any], what: str, *, seconds: float = 60.0) -> Any:
    """Poll until a condition holds and answer with its value; say what did not happen."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds:g} s in vain for {what}")


def ended_by_itself(child: Child, *, seconds: float = 90.0) -> int:
    """The exit code of a worker that was told to go. One that stays says where it is stuck:
    aborted, it writes the stack of every thread into its log (PYTHONFAULTHANDLER)."""
    process = child.process
    assert process is not None
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        process.wait()
        raise AssertionError(f"{child.name} did not end within {seconds:g} s") from None


def scripted(*answers: Any, **changes: Any) -> dict[str, Any]:
    """A job whose answers are given; its contract wants a name and an age."""
    return {
        "task_type": "extract_person",
        "prompt": "Extract the person.",
        "runner": {"kind": "scripted", "answers": list(answers)},
        "verifiers": ["json.object", {"id": "contract.schema", "schema": SCHEMA}],
        "delayed_verification": {"after": 0.2},
        **changes,
    }


class Server:
    """A Redis that can be killed and started again with its data."""

    def __init__(self, folder: Path, *, persistent: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.socket = folder / "r.sock"
        self.url = f"redis+socket://{self.socket}"
        self._folder = folder
        self._persistent = persistent
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [find_server(), "--port", "0", "--unixsocket", str(self.socket), "--save", ""]
        argv += ["--dir", str(self._folder), "--appendfsync", "always"]
        argv += ["--appendonly", "yes" if self._persistent else "no"]
        self._process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        wait_for(self._answers, "Redis to answer")

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket), decode_responses=True)

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


class Fleet:
    """Submits jobs to real workers and waits for what becomes of them."""

    def __init__(self, services: Services, stack: Stack, server: Server, folder: Path) -> None:
        self.services = services
        self.ledger = services.ledger
        self.stack = stack
        self.server = server
        self.folder = folder

    def submit(self, *jobs: dict[str, Any]) -> list[str]:
        accepted = submit_jobs(self.services.intake, [read_job(job) for job in jobs])
        return [answer.id for answer in accepted]

    def finished(self, ids: Sequence[str], *, seconds: float = 60.0) -> list[JobView]:
        """The jobs, once all have ended and no cycle is open; dead workers are restarted."""

        found: dict[str, JobView] = {}

        def ended() -> bool:
            self.stack.watch()
            for job_id in ids:
                if job_id in found:
                    continue
                view = self.ledger.job(job_id)
                assert view is not None, f"{job_id} is gone"
                if view.state not in TERMINAL or any(cycle.open for cycle in view.cycles):
                    return False
                found[job_id] = view
            return True

        wait_for(ended, f"{len(ids)} jobs to end", seconds=seconds)
        return [found[job_id] for job_id in ids]

    def one(self, job: dict[str, Any], *, seconds: float = 60.0) -> JobView:
        return self.finished(self.submit(job), seconds=seconds)[0]

    def holder(self, job_id: str) -> Child | None:
        """The worker that has the first attempt of a job in hand."""
        view = self.ledger.job(job_id)
        if view is None or view.state != "running":
            return None
        pid = str(view.attempts[0].worker).rpartition(":")[2]
        return next(c for c in self.stack.children if c.process and str(c.process.pid) == pid)

    def logs(self) -> str:
        files = sorted((self.folder / "logs").glob("*.log"))
        return "\n".join(f"== {file.name}\n{file.read_text()[-20_000:]}" for file in files)


@contextmanager
def running_fleet(
    folder: Path,
    *,
    pools: Sequence[Pool] = (CONTROL, WORK),
    persistent: bool = False,
    environment: dict[str, str] | None = None,
    **changes: Any,
) -> Iterator[Fleet]:
    """Redis and workers, stopped at the end whatever happens."""
    server = Server(folder / "redis", persistent=persistent)
    server.start()
    fields = {"allow_inline": True, "lease": 5.0, "backoff_base": 0.05, "sweep_interval": 0.3,
              "republish_after": 2.0, "outbox_grace": 0.5, **changes}  # fmt: skip
    settings = Settings(broker_url=server.url, home=folder, **fields)
    names = {f"MULLIGAN_{name.upper()}": str(value) for name, value in fields.items()}
    names["PYTHONFAULTHANDLER"] = "1"
    stack = Stack(
        folder,
        child_environment(settings, broker_url=server.url, **names, **(environment or {})),
        backoff=0.1,
        backoff_cap=0.2,
    )
    fleet = Fleet(
        app_services(settings, create_app(settings), patience=10, local_paths=True),
        stack,
        server,
        folder,
    )
    try:
        for pool in pools:
            stack.add(pool.name, pool.argv())
        yield fleet
    except BaseException:
        sys.stderr.write(fleet.logs())
        raise
    finally:
        stack.stop()
        server.kill(signal.SIGTERM)
        left = _left_behind(server.socket)
        assert not left, f"left behind: {left}"


def _left_behind(socket: Path) -> list[str]:
    """Command lines of processes that still have this fleet's broker in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if str(socket).encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text())
        except OSError:
            continue
    return found
