"""No-op tasks per second, with two worker processes and 1 KB payloads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rig import GOOD, SCHEMA, Rig, rig, wait_until
from mulligan.policies.jobs.job import Job
from mulligan.tasks.jobs.submit import submit_jobs

PAYLOAD = "x" * 1000


@dataclass(frozen=True)
class Rate:
    """The figures of the middle of a run, with warm workers and a full queue."""

    per_second: float
    #: CPU microseconds per task in the workers and in Redis: less noisy than the clock.
    worker_cpu: float
    redis_cpu: float
    commands: float


def plain(folder: Path, tasks: int, *, solo: bool = False) -> Rate:
    """Measure Celery with default settings: a prefork worker of two processes, or two solo ones."""
    with rig(folder) as bench:
        from benchmarks import plain as module

        app = module.app
        app.conf.broker_url = bench.broker
        with app.connection_for_write(bench.broker) as connection:
            producer = app.amqp.Producer(connection)
            for _ in range(tasks):
                app.send_task("noop", args=(PAYLOAD,), producer=producer)
        if solo:
            for _ in range(2):
                bench.start("benchmarks.plain", "-P", "solo")
        else:
            bench.start("benchmarks.plain", "-P", "prefork", "-c", "2")
        return _measure(bench, tasks, lambda: tasks - _length(bench, "celery"))


def mulligan(folder: Path, tasks: int) -> Rate:
    """Measure the complete attempt: claim, answer, store, json.object, contract.schema, settle."""
    with rig(folder) as bench:
        services = bench.services()
        job = Job.model_validate(
            {
                "task_type": "bench",
                "prompt": PAYLOAD,
                "runner": {"kind": "scripted", "answers": [GOOD]},
                "verifiers": ["json.object", {"id": "contract.schema", "schema": SCHEMA}],
            }
        )
        for _ in range(0, tasks, 500):
            submit_jobs(services.intake, [job] * 500)
        for _ in range(2):
            bench.start("mulligan.workers.app", "-P", "solo", "-Q", "repair,attempt")
        return _measure(bench, tasks, lambda: _count(bench, "jobs:succeeded"))


def _length(bench: Rig, queue: str) -> int:
    value: object = bench.client.llen(queue)
    return int(str(value))


def _count(bench: Rig, index: str) -> int:
    value: object = bench.client.zcard(f"mulligan:{{p00}}:{index}")
    return int(str(value))


def _measure(bench: Rig, tasks: int, done: Callable[[], int]) -> Rate:
    wait_until(lambda: done() >= tasks * 0.2)
    started, first, cpu, commands = time.perf_counter(), done(), bench.cpu(), bench.commands()
    wait_until(lambda: done() >= tasks * 0.9)
    elapsed, count = time.perf_counter() - started, done() - first
    used = bench.cpu()
    return Rate(
        per_second=count / elapsed,
        worker_cpu=(used[0] - cpu[0]) / count * 1e6,
        redis_cpu=(used[1] - cpu[1]) / count * 1e6,
        commands=(bench.commands() - commands) / count,
    )


def round_trips(folder: Path) -> float:
    """Return the ledger round trips of one successful attempt, counted in process."""
    from mulligan.tasks.jobs.attempt import run_attempt
    from mulligan.tasks.ports.ledger import Entry

    with rig(folder) as bench:
        services = bench.services()
        job = {
            "task_type": "bench",
            "prompt": PAYLOAD,
            "runner": {"kind": "scripted", "answers": [GOOD]},
            "verifiers": ["json.object", {"id": "contract.schema", "schema": SCHEMA}],
        }
        accepted = submit_jobs(services.intake, [Job.model_validate(job)] * 101)
        run_attempt(services.context, Entry("attempt", accepted[0].id, 1))
        before = services.ledger.round_trips
        for answer in accepted[1:]:
            run_attempt(services.context, Entry("attempt", answer.id, 1))
        return (services.ledger.round_trips - before) / 100
