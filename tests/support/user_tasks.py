"""A user's Celery project for tests, and the jobs of its messages."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from celery import Celery

from mulligan.policies.jobs.job import TERMINAL
from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.ledger.connection.calls import connect
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stored import job_ids
from mulligan.workers.local.supervisor import Stack
from mulligan.workers.settings.model import Settings
from support.redis_server import RedisServer
from support.waiting import wait_for


def job_of(ledger: RedisLedger, message_id: str) -> JobView:
    """Return the job of a user's task."""
    view = ledger.job(job_ids.user_task_job_id(message_id, partitions=1))
    assert view is not None
    return view


@contextmanager
def delivered(task: Any, **route: Any) -> Iterator[None]:
    """Run a task as a worker does: not inline, so that tests see what it publishes."""
    task.app.conf.task_always_eager = False
    route = {"exchange": "", "routing_key": "celery", **route}
    task.push_request(called_directly=False, id="a-message", delivery_info=route)
    try:
        yield
    finally:
        task.pop_request()


class UserProject:
    """A user's project with one module, tasks.py, a Redis and a worker."""

    def __init__(self, folder: Path, code: str, *options: str) -> None:
        (folder / "tasks.py").write_text(code)
        self.server = RedisServer(folder / "r")
        url = self.server.url
        self.app = Celery("client", broker=url, backend=url, set_as_current=False)
        environment = {**os.environ, "BROKER": url, "PYTHONPATH": str(folder)}
        self.stack = Stack(folder, environment, backoff=0.1, backoff_cap=0.2)
        argv = [sys.executable, "-P", "-m", "celery", "--workdir", str(folder), "-A", "tasks"]
        argv += ["worker", "-l", "info"]
        self._argv = [*argv, "--without-gossip", "--without-mingle", *options]
        settings = Settings(broker_url=url)
        self.ledger = RedisLedger(connect(settings.ledger or ""), settings, patience=10)

    def start_worker(self) -> None:
        self.stack.add("worker", self._argv)

    def send(self, name: str, *args: Any, queue: str | None = None) -> Any:
        return self.app.send_task(f"tasks.{name}", args=args, queue=queue)

    def wait_until_ended(self, message_id: str) -> JobView:
        def ended() -> JobView | None:
            self.stack.watch()
            view = self.ledger.job(job_ids.user_task_job_id(message_id, partitions=1))
            return view if view and view.state in TERMINAL else None

        found: JobView = wait_for(ended, "the task to end")
        return found


@contextmanager
def user_project(folder: Path, code: str, *options: str) -> Iterator[UserProject]:
    """Open a user's project. Its worker's log is printed if a test fails."""
    project = UserProject(folder, code, *options)
    project.server.start()
    try:
        yield project
    except BaseException:
        log = folder / "logs" / "worker.log"
        sys.stderr.write(log.read_text()[-5000:] if log.exists() else "no log")
        raise
    finally:
        project.stack.stop()
        project.server.kill(signal.SIGTERM)
        assert not [p for p in psutil.process_iter() if _broker_of(p) == project.server.url]


def _broker_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("BROKER")
    except psutil.Error:
        return None
