"""Operations: Redis restarts, workers stop, retries overtake, jobs carry no authority."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from celery import Celery
from support.fleet import CONTROL, WORK, Fleet, running_fleet, wait_for_exit
from support.jobs import GOOD, WRONG_TYPE, gated, scripted
from support.redis_server import RedisServer
from support.waiting import wait_for

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.celery.broker.queue_depth import depths


def test_nothing_is_lost_when_redis_is_killed_while_two_workers_sweep(tmp_path: Path) -> None:
    """Given an AOF that is always synced, when Redis is killed and restarted, then nothing is
    lost."""
    second = replace(CONTROL, name="control2")
    with running_fleet(tmp_path, pools=[CONTROL, second, WORK], persistent=True) as fleet:
        jobs = [scripted(WRONG_TYPE, GOOD, name=f"job-{i}") for i in range(60)]
        ids = fleet.submit(*jobs)
        wait_for(lambda: fleet.ledger.jobs(state="succeeded"), "the first job to succeed")
        fleet.server.kill(signal.SIGKILL)
        fleet.server.start()
        views = fleet.wait_until_finished(ids, seconds=120)
        assert {view.state for view in views} == {"succeeded"}
        assert {len(view.attempts) for view in views} == {2}
        assert {len(view.cycles) for view in views} == {1}


def test_a_retry_overtakes_every_waiting_job(tmp_path: Path) -> None:
    with running_fleet(tmp_path, pools=[CONTROL, replace(WORK, slots=2)]) as fleet:
        fleet.ledger.pause("queue:attempt")  # the backlog is complete before anything runs
        backlog = fleet.submit(*[scripted(GOOD) for _ in range(400)])
        probes = fleet.submit(*[scripted(WRONG_TYPE, GOOD, priority=0) for _ in range(5)])
        wait_for(
            lambda: all(v.waiting_for for v in fleet.ledger.jobs(limit=500)), "all jobs to wait"
        )
        fleet.ledger.resume("queue:attempt")
        views = fleet.wait_until_finished([*probes, *backlog], seconds=120)
        starts = sorted(view.attempts[0].started_at or 0.0 for view in views[len(probes) :])
        for view in views[: len(probes)]:
            failed, retried = view.attempts[0].settled_at, view.attempts[1].started_at
            assert failed is not None
            assert retried is not None
            overtaken = [start for start in starts if failed < start < retried]
            # Only jobs that the slots had already fetched may start before it.
            assert len(overtaken) <= 8, f"{len(overtaken)} jobs went first"


@pytest.mark.real_models("command")
def test_a_quitting_worker_releases_its_attempt_at_once(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Given a lease of ten minutes and a slow answer, when its worker receives SIGQUIT, then
    another worker gets the attempt, and the first claim is not counted."""
    gate = tmp_path_factory.mktemp("gate") / "open"
    pools = [CONTROL, *(replace(WORK, name=name, slots=1) for name in ("one", "two"))]
    with running_fleet(tmp_path, pools=pools, lease=600.0) as fleet:
        (job_id,) = fleet.submit(gated(gate))
        quitting = wait_for(lambda: fleet.holder(job_id), "the attempt to be claimed")
        quitting.process.send_signal(signal.SIGQUIT)
        wait_for(lambda: fleet.holder(job_id) not in (None, quitting), "another worker to have it")
        assert quitting.alive, "the attempt was released before the process ended"
        gate.touch()
        view = fleet.wait_until_finished([job_id])[0]
        assert view.state == "succeeded"
        assert view.attempts[0].claims == 1


def test_a_submission_that_the_ledger_refuses_stays_in_the_broker(tmp_path: Path) -> None:
    """Given a ledger without memory, then a message that is the only copy of a job is returned to
    the broker and accepted later."""
    ledger = RedisServer(tmp_path / "ledger")
    ledger.start()
    try:
        with running_fleet(
            tmp_path, pools=[CONTROL], ledger_url=f"unix://{ledger.socket}"
        ) as fleet:
            ledger.client().config_set("maxmemory", "1kb")
            job = {**scripted(GOOD), "idempotency_key": "k"}
            Celery(broker=fleet.server.url).send_task(
                "mulligan.submit", queue="mulligan.submit", kwargs=job
            )
            wait_for(lambda: "stays on mulligan.submit" in fleet.logs(), "the refusal in the log")
            ledger.client().config_set("maxmemory", "0")
            wait_for(lambda: fleet.ledger.jobs(), "the job to be accepted")
    finally:
        ledger.kill(signal.SIGTERM)


def test_a_submission_that_is_taken_from_a_full_broker_is_not_lost(tmp_path: Path) -> None:
    """Given one full Redis for the broker and the ledger, when a worker takes a message that is the
    only copy of a job, then it keeps the job until the ledger can store it."""
    with running_fleet(tmp_path, pools=[CONTROL]) as fleet, fleet.server.client() as client:
        app = Celery(broker=fleet.server.url, set_as_current=False)
        wait_for(lambda: app.control.ping(timeout=0.5), "the worker")
        (worker,) = fleet.stack.children
        assert worker.process is not None
        worker.process.send_signal(signal.SIGSTOP)
        app.send_task("mulligan.submit", queue="mulligan.submit", kwargs=scripted(GOOD))
        client.config_set("maxmemory", "1kb")
        worker.process.send_signal(signal.SIGCONT)
        wait_for(lambda: "stays on mulligan.submit" in fleet.logs(), "the refusal")
        client.config_set("maxmemory", "0")
        wait_for(lambda: fleet.ledger.jobs(), "the job to be accepted")


def test_a_worker_that_keeps_a_submission_can_be_stopped(tmp_path: Path) -> None:
    """Given a ledger that refuses, when the worker is stopped, then the broker has the job."""
    ledger = RedisServer(tmp_path / "ledger")
    ledger.start()
    try:
        with running_fleet(tmp_path, pools=[CONTROL], ledger_url=ledger.ledger_url) as fleet:
            ledger.client().config_set("maxmemory", "1kb")
            app = Celery(broker=fleet.server.url, set_as_current=False)
            app.send_task("mulligan.submit", queue="mulligan.submit", kwargs=scripted(GOOD))
            wait_for(lambda: "stays on mulligan.submit" in fleet.logs(), "the refusal in the log")
            (worker,) = fleet.stack.children
            assert worker.process is not None
            worker.process.terminate()
            assert wait_for_exit(worker) == 0
            assert depths(app, ["mulligan.submit"]) == {"mulligan.submit": 1}
    finally:
        ledger.kill(signal.SIGTERM)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Fleet:  # type: ignore[misc]
    folder = tmp_path_factory.mktemp("strict")
    config = folder / "mulligan.toml"
    config.write_text(
        '[runners.good]\nkind = \'scripted\'\nanswers = [\'{"name": "A", "age": 1}\']\n'
        "[commands.fine]\nargv = ['true']\n"
    )
    with running_fleet(
        folder, environment={"MULLIGAN_CONFIG": str(config)}, allow_inline=False
    ) as fleet:
        yield fleet


@pytest.mark.parametrize(
    "job",
    [
        scripted(GOOD, runner={"kind": "command", "argv": ["rm", "-rf", "/"]}),
        scripted(GOOD, runner={"kind": "openai", "base_url": "http://evil", "model": "m"}),
        scripted(GOOD, runner={"profile": "good", "base_url": "http://evil"}),
        scripted(GOOD, runner="good", verifiers=[{"id": "command.subprocess", "argv": ["reboot"]}]),
        scripted(GOOD, runner="good", workspace={"path": "/etc"}),
    ],
    ids=["command", "base_url", "override", "argv", "path"],
)
def test_a_job_from_the_broker_carries_no_authority(strict: Fleet, job: dict[str, object]) -> None:
    client = Celery(broker=strict.server.url)
    client.send_task("mulligan.submit", kwargs=job, queue="mulligan.submit")
    name = f"after-{id(job)}"
    allowed = scripted(
        GOOD, runner="good", name=name, verifiers=["json.object", {"id": "command.subprocess",
                                                                   "command": "fine"}]
    )  # fmt: skip
    client.send_task("mulligan.submit", kwargs=allowed, queue="mulligan.submit")
    done = wait_for(
        lambda: [v for v in strict.ledger.jobs(state="succeeded") if v.job.name == name],
        "the job that only names profiles",
    )
    assert len(done) == 1
    assert {v.job.name for v in strict.ledger.jobs(limit=100)} == {
        v.job.name for v in strict.ledger.jobs(state="succeeded", limit=100)
    }, "the refused job left something behind"


def test_a_worker_refuses_what_its_configuration_does_not_allow(strict: Fleet) -> None:
    """Given a producer whose settings allow inline runners, then the worker still decides."""
    from support.jobs import read_job

    from mulligan.tasks.ports.ledger import Submission
    from mulligan.workers.ledger.stored.job_ids import job_id as new_id

    job = read_job(scripted(GOOD))
    submission = Submission(id=new_id(partitions=1), job=job)
    strict.ledger.accept([submission])
    view = strict.wait_until_finished([submission.id])[0]
    assert (view.state, view.reason) == ("escalated", "unsafe_request")
    assert "profile" in (view.detail or "")


def test_one_invalid_job_refuses_the_whole_submission(strict: Fleet) -> None:
    before = len(strict.ledger.jobs(limit=1000))
    with pytest.raises(BadInput, match=r"jobs\[1\]\.runner"):
        strict.submit(scripted(GOOD, runner="good"), scripted(GOOD, runner="unknown"))
    assert len(strict.ledger.jobs(limit=1000)) == before
