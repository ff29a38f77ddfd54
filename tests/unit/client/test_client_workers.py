"""LocalWorkers: tasks on threads of this process, with a ledger on fakeredis and on Redis."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import redis
from support.doubles import fake_ledger
from support.jobs import make_job
from support.waiting import wait_for

from mulligan.policies.jobs.job import TERMINAL, Job, Output
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.tasks.ports.ledger import Entry, JobView, Lease, Publication
from mulligan.tasks.ports.runners import Request
from mulligan.workers.celery.broker.queues import JOB_QUEUES
from mulligan.workers.celery.leases import LeaseKeeper
from mulligan.workers.ledger.fake_redis import fake_client
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stored import job_ids
from mulligan.workers.local.local_stack import LocalStack, local_stack
from mulligan.workers.local.local_workers import LocalWorkers
from mulligan.workers.settings.model import Settings

QUICK: dict[str, Any] = {
    "allow_inline": True,
    "sweep_interval": 0.05,
    "outbox_grace": 0.1,
    "backoff_base": 0.01,
    "lease": 2.0,
    "republish_after": 0.3,
}

#: The depths of queues without entries.
EMPTY = dict.fromkeys(JOB_QUEUES, 0)


@pytest.fixture(params=["fakeredis", "redis"])
def ledger(request: pytest.FixtureRequest) -> RedisLedger:
    if request.param == "fakeredis":
        return fake_ledger(Settings(**QUICK))
    client: redis.Redis = request.getfixturevalue("redis_client")
    return RedisLedger(client, Settings(**QUICK), patience=5.0)


@pytest.fixture
def stack(ledger: RedisLedger, redis_url: str) -> Iterator[LocalStack]:
    with local_stack(Settings(broker_url=redis_url, **QUICK), ledger, slots=2, grace=3) as stack:
        yield stack


def submit(stack: LocalStack, *jobs: Job) -> list[str]:
    return [accepted.id for accepted in submit_jobs(stack.intake, jobs)]


def ended(stack: LocalStack, job_id: str) -> JobView:
    def view() -> JobView:
        found = stack.ledger.job(job_id)
        assert found is not None
        return found

    wait_for(lambda: view().state in TERMINAL)
    return view()


def scripted(*answers: Any) -> dict[str, Any]:
    return {"kind": "scripted", "answers": list(answers)}


def test_a_job_is_repaired(stack: LocalStack) -> None:
    (job_id,) = submit(stack, make_job(runner=scripted("nonsense", "{}")))
    view = ended(stack, job_id)
    assert (view.state, len(view.attempts), view.best_attempt) == ("succeeded", 2, 2)


def test_the_sweep_finds_delays_faults_and_delayed_verifications(stack: LocalStack) -> None:
    fault = {"fault": {"status": 503, "times": 2}, "text": "nonsense"}
    job = make_job(runner=scripted(fault, "{}"), delayed_verification={"after": 0.1})
    (job_id,) = submit(stack, job)
    assert ended(stack, job_id).attempts[0].faults == 2
    wait_for(lambda: [c.status for c in ended(stack, job_id).cycles] == ["completed"])


def test_slow_verifications_run_in_local_workers(stack: LocalStack) -> None:
    verifiers = [{"id": "command.subprocess", "argv": ["true"]}, "json.object"]
    (job_id,) = submit(stack, make_job(runner=scripted("{}"), verifiers=verifiers))
    assert ended(stack, job_id).state == "succeeded"


def test_no_thread_starts_before_the_first_job(stack: LocalStack) -> None:
    before = threading.active_count()
    assert stack.workers.depths() == EMPTY
    assert threading.active_count() == before


def test_entries_run_by_queue_then_priority_then_order() -> None:
    """Given one busy slot, waiting entries run in the order repair, verify, attempt."""
    claimed: list[Entry] = []
    busy, go = threading.Event(), threading.Event()

    class WatchedLedger(RedisLedger):
        def claim(self, entry: Entry, **terms: Any) -> Any:
            claimed.append(entry)
            busy.set()
            go.wait(10)
            return super().claim(entry, **terms)

    settings = Settings(**{**QUICK, "sweep_interval": 60})
    with local_stack(
        settings, WatchedLedger(fake_client(), settings, patience=5.0), slots=1
    ) as stack:

        def publication(job_id: str, queue: str, priority: int) -> Publication:
            return Publication(Entry("attempt", job_id, 1), queue, priority)

        stack.workers.publish([publication("p00-first", "attempt", 5)])
        busy.wait(10)
        stack.workers.publish(
            [publication("p00-d", "attempt", 5), publication("p00-e", "attempt", 5),
             publication("p00-c", "attempt", 1), publication("p00-b", "verify", 5),
             publication("p00-a", "repair", 9), publication("p00-e", "attempt", 5)]
        )  # fmt: skip
        assert stack.workers.depths() == {**EMPTY, "repair": 1, "verify": 1, "attempt": 3}
        go.set()
        wait_for(lambda: len(claimed) == 6)
        assert [entry.job_id[-1] for entry in claimed[1:]] == ["a", "b", "c", "d", "e"]


class GatedRunner:
    """A runner that answers when a test opens its gate."""

    provider = "gate"

    def __init__(self) -> None:
        self.requested = threading.Event()
        self.open = threading.Event()
        self.answered = threading.Event()

    def answer(self, request: Request) -> Output:
        self.requested.set()
        self.open.wait(60)
        self.answered.set()
        return Output(text="{}")


def gated_workers(
    stack: LocalStack, gate: GatedRunner, *, lease: float = QUICK["lease"], **more: Any
) -> LocalWorkers:
    """Return workers on the same ledger that use the gated runner."""
    context = stack.services.context
    resolved = replace(context.runner(make_job().runner), runner=gate)
    leases = LeaseKeeper(stack.ledger, interval=lease / 3)
    context = replace(
        context,
        runner=lambda _: resolved,
        publish=lambda publications: workers.publish(publications),
        holding=leases.holding,
    )
    workers = LocalWorkers(context, leases, slots=1, **more)
    return workers


def test_closing_waits_for_running_attempts(stack: LocalStack) -> None:
    gate = GatedRunner()
    with closing(gated_workers(stack, gate, grace=60)) as workers:
        intake = replace(stack.intake, publish=workers.publish)
        job_id = submit_jobs(intake, [make_job()])[0].id
        assert gate.requested.wait(10)
        threading.Timer(0.2, gate.open.set).start()
    view = stack.ledger.job(job_id)
    assert view is not None
    assert view.state == "succeeded"


def test_an_attempt_that_does_not_end_in_time_is_released(stack: LocalStack) -> None:
    gate = GatedRunner()
    with closing(gated_workers(stack, gate, grace=0.1, sweep_interval=60)) as workers:
        intake = replace(stack.intake, publish=workers.publish)
        job_id = submit_jobs(intake, [make_job(runner=scripted("{}"))])[0].id
        assert gate.requested.wait(10)
    assert not gate.answered.is_set(), "closing must not wait for the answer"
    view = stack.ledger.job(job_id)
    assert view is not None
    assert view.state in ("queued", "waiting")
    stack.workers.start()
    assert ended(stack, job_id).state == "succeeded"
    gate.open.set()


def test_a_lease_is_renewed_while_a_runner_works(
    stack: LocalStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """test_leases.py shows that renewing keeps the attempt."""
    gate, renewed, renew = GatedRunner(), list[Entry](), stack.ledger.renew

    def watched(leases: Sequence[Lease]) -> set[Entry]:
        lost = renew(leases)
        renewed.extend(lease.entry for lease in leases if lease.entry not in lost)
        return lost

    monkeypatch.setattr(stack.ledger, "renew", watched)
    with closing(
        gated_workers(stack, gate, grace=60, lease=0.03)
    ) as workers:  # renewed every 10 ms
        intake = replace(stack.intake, publish=workers.publish)
        job_id = submit_jobs(intake, [make_job()])[0].id
        wait_for(lambda: renewed.count(Entry("attempt", job_id, 1)) >= 3)
        gate.open.set()
    assert ended(stack, job_id).state == "succeeded"


def test_an_exception_is_logged_and_the_attempt_comes_back(
    stack: LocalStack, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [True]
    settle = stack.ledger.settle

    def failing(*args: Any) -> Any:
        if broken and broken.pop():
            raise ZeroDivisionError("a bug of ours")
        return settle(*args)

    monkeypatch.setattr(stack.ledger, "settle", failing)
    with caplog.at_level(logging.ERROR):
        (job_id,) = submit(stack, make_job(runner=scripted("{}")))
        view = ended(stack, job_id)
    assert (view.state, view.attempts[0].claims) == ("succeeded", 2)
    assert "a bug of ours" in caplog.text


def test_a_message_that_needs_a_broker_stays_in_the_outbox(stack: LocalStack) -> None:
    """Given a job with on_done, when it ends without a broker, its message is kept."""
    on_done = {"task": "shop.done", "queue": "shop"}
    (job_id,) = submit(stack, make_job(runner=scripted("{}"), on_done=on_done))
    assert ended(stack, job_id).state == "succeeded"
    end = Publication(Entry("done", job_id, 1), "shop", 5)
    stack.workers.publish([end])  # as the pool's sweep does
    wait_for(lambda: stack.ledger.sweep(empty_queues=[]) == [end])


def test_an_attempt_of_a_users_task_is_not_run_as_a_job(
    stack: LocalStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamped: list[Entry] = []
    monkeypatch.setattr(stack.ledger, "stamp", stamped.extend)
    job_id = job_ids.user_task_job_id("from-celery", partitions=1)
    stack.workers.publish([Publication(Entry("attempt", job_id, 1), "repair", 5)])
    assert stamped == []


def test_a_job_submitted_after_closing_stays_in_the_ledger(stack: LocalStack) -> None:
    stack.close()
    stack.close()
    (job_id,) = submit(stack, make_job(runner=scripted("{}")))
    assert stack.workers.depths() == EMPTY
    view = stack.ledger.job(job_id)
    assert view is not None
    assert view.state == "queued"
    with local_stack(stack.services.settings, stack.ledger) as next_stack:
        next_stack.workers.start()
        assert ended(next_stack, job_id).state == "succeeded"
