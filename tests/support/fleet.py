"""A fleet for tests: a separate Redis and real worker processes that tests may kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mulligan.policies.jobs.job import TERMINAL
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.celery.broker.queues import Pool
from mulligan.workers.celery.factory import create_app
from mulligan.workers.local.supervisor import Child, Stack, child_environment
from mulligan.workers.services import Services, app_services
from mulligan.workers.settings.model import Settings
from support.jobs import read_job
from support.processes import processes_with
from support.redis_server import RedisServer
from support.waiting import wait_for

CONTROL = Pool(name="control", queues=("control", "mulligan.submit"), kind="solo")
WORK = Pool(name="work", queues=("repair", "verify", "attempt"), slots=4)


def wait_for_exit(child: Child, *, seconds: float = 90.0) -> int:
    """Wait for a worker that was asked to stop and return its exit code. A worker that does not
    stop is aborted: it writes the stack of every thread to its log (PYTHONFAULTHANDLER)."""
    process = child.process
    assert process is not None
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        process.wait()
        raise AssertionError(f"{child.name} did not end within {seconds:g} s") from None


class Fleet:
    """A way to submit jobs to real workers and wait for their results."""

    def __init__(self, services: Services, stack: Stack, server: RedisServer, folder: Path) -> None:
        self.services = services
        self.ledger = services.ledger
        self.stack = stack
        self.server = server
        self.folder = folder

    def submit(self, *jobs: dict[str, Any]) -> list[str]:
        accepted = submit_jobs(self.services.intake, [read_job(job) for job in jobs])
        return [answer.id for answer in accepted]

    def wait_until_finished(self, ids: Sequence[str], *, seconds: float = 60.0) -> list[JobView]:
        """Return the jobs when all have ended and no cycle is open. Restart dead workers."""

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

    def run(self, job: dict[str, Any], *, seconds: float = 60.0) -> JobView:
        return self.wait_until_finished(self.submit(job), seconds=seconds)[0]

    def holder(self, job_id: str) -> Child | None:
        """Return the worker that runs the first attempt of a job."""
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
    binary: str | None = None,
    server: RedisServer | None = None,
    broker_url: str | None = None,
    environment: dict[str, str] | None = None,
    **changes: Any,
) -> Iterator[Fleet]:
    """Start Redis and workers, and stop them at the end in any case.

    The Redis is the ledger and the broker, unless ``ledger_url`` or ``broker_url`` name others.
    """
    server = server or RedisServer(folder / "redis", persistent=persistent, binary=binary)
    server.start()
    broker_url = broker_url or server.url
    fields = {"allow_inline": True, "lease": 5.0, "backoff_base": 0.05, "sweep_interval": 0.3,
              "republish_after": 2.0, "outbox_grace": 0.5, "ledger_url": server.ledger_url,
              **changes}  # fmt: skip
    settings = Settings(broker_url=broker_url, home=folder, **fields)
    names = {
        f"MULLIGAN_{name.upper()}": json.dumps(value) if isinstance(value, dict) else str(value)
        for name, value in fields.items()
    }
    names["PYTHONFAULTHANDLER"] = "1"
    stack = Stack(
        folder,
        child_environment(settings, broker_url=broker_url, **names, **(environment or {})),
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
        left = processes_with(str(server.socket))
        assert not left, f"still running: {left}"
