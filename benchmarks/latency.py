"""The time from a low score to the start of its retry while many jobs wait."""

from __future__ import annotations

from pathlib import Path

from benchmarks.plain import RETRIES
from benchmarks.rig import GOOD, SCHEMA, WRONG, Rig, rig, wait_until
from mulligan.policies.jobs.job import Job
from mulligan.tasks.jobs.submit import submit_jobs

PROBES = 200
WARM_UP = 20


def mulligan(folder: Path, waiting: int) -> list[float]:
    """Return milliseconds by the ledger's clock, from the verdict to the claim of the retry."""
    with rig(folder) as bench:
        services = bench.services()
        verifiers = ["json.object", {"id": "contract.schema", "schema": SCHEMA}]
        common = {"task_type": "bench", "prompt": "x" * 1000, "verifiers": verifiers}
        backlog = Job.model_validate({**common, "runner": {"kind": "scripted", "answers": [GOOD]}})
        for start in range(0, waiting, 500):
            submit_jobs(services.intake, [backlog] * min(500, waiting - start))
        probe = Job.model_validate(
            {**common, "priority": 0, "runner": {"kind": "scripted", "answers": [WRONG, GOOD]}}
        )
        bench.start("mulligan.workers.app", "-P", "threads", "-c", "4", "-Q", "repair")
        bench.start("mulligan.workers.app", "-P", "threads", "-c", "2", "-Q", "repair,attempt")
        # Measure when both workers are up and every slot is connected.
        for answer in submit_jobs(services.intake, [probe] * WARM_UP):
            _retry_delay(services.ledger, answer.id)
        probes = submit_jobs(services.intake, [probe] * PROBES)
        found = [_retry_delay(services.ledger, answer.id) for answer in probes]
        left: object = bench.client.zcard("mulligan:{p00}:jobs:queued")
        if int(str(left)) < waiting * 0.5:
            raise SystemExit("the backlog was empty before all probes were measured")
        return found


def _retry_delay(ledger: object, job_id: str) -> float:
    from mulligan.workers.ledger.redis_ledger import RedisLedger

    assert isinstance(ledger, RedisLedger)
    times: list[float] = []

    def retried() -> bool:
        view = ledger.job(job_id)
        if view is None or len(view.attempts) < 2 or view.attempts[1].started_at is None:
            return False
        settled, started = view.attempts[0].settled_at, view.attempts[1].started_at
        times.append((started - (settled or started)) * 1000)
        return True

    wait_until(retried)
    return times[0]


def plain(folder: Path, waiting: int) -> list[float]:
    """Return the same for Celery with default settings and self.retry(countdown=0)."""
    with rig(folder) as bench:
        from benchmarks import plain as module

        app = module.app
        probes = 20
        with app.connection_for_write(bench.broker) as connection:
            producer = app.amqp.Producer(connection)
            for _ in range(probes):
                app.send_task("again", producer=producer)
            for _ in range(waiting):
                app.send_task("noop", args=("x" * 1000,), producer=producer)
        bench.start("benchmarks.plain", "-P", "prefork", "-c", "2")
        wait_until(lambda: _retries(bench) >= probes)
        values: object = bench.client.lrange(RETRIES, 0, -1)
        assert isinstance(values, list)
        return [float(value) for value in values]


def _retries(bench: Rig) -> int:
    value: object = bench.client.llen(RETRIES)
    return int(str(value))
