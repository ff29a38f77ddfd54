"""One entry that the broker refuses hurts nobody else; a broker that refuses all is away."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from support.jobs import answer, make_job
from support.ledger_scenario import Scenario, ScenarioMaker, intake_of
from support.redis_server import RedisServer
from support.settlements import succeeds

from mulligan.tasks.jobs.publish import Publisher
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.tasks.jobs.sweep import run_sweep
from mulligan.tasks.ports.ledger import Entry, Publication
from mulligan.tasks.ports.message_broker import BrokerAway
from mulligan.workers.celery.broker.celery_broker import CeleryBroker
from mulligan.workers.celery.broker.queue_depth import depths, empty_queues
from mulligan.workers.celery.factory import create_app
from mulligan.workers.settings.model import Settings

#: The broker has a key of this name that is no list, so it cannot be a queue.
POISON = {"task": "mine.done", "queue": "taken"}
StartBroker = Callable[..., RedisServer]


@pytest.fixture
def start_broker() -> Iterator[StartBroker]:
    """``start_broker("--maxmemory-policy", "noeviction")`` starts a Redis that is only a broker."""
    with ExitStack() as stack:

        def start(*options: str) -> RedisServer:
            # Not tmp_path: the kernel allows 108 bytes for the path of a socket.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mulligan-"))
            server = RedisServer(Path(folder), *options)
            server.start()
            stack.callback(server.kill)
            return server

        yield start


def app_of(server: RedisServer) -> Celery:
    return create_app(Settings(broker_url=server.url, ledger_url=server.ledger_url))


class Stack:
    """A ledger, a broker and the publisher between them."""

    def __init__(self, scenario: Scenario, server: RedisServer) -> None:
        self.scenario = scenario
        self.app = app_of(server)
        with server.client() as client:
            client.set("taken", "by another program")
        self.away: list[BrokerAway] = []
        self.publisher = Publisher(
            ledger=scenario.ledger,
            broker=CeleryBroker(self.app, scenario.ledger),
            on_unreachable=self.away.append,
        )

    def sweep(self) -> int:
        return run_sweep(
            self.scenario.ledger,
            empty_queues=lambda: empty_queues(self.app, ["attempt"]),
            publish=self.publisher.publish,
        )

    def submit(self, count: int) -> None:
        intake = intake_of(self.scenario, publish=self.publisher.publish)
        submit_jobs(intake, [make_job() for _ in range(count)])

    def waiting(self, queue: str = "attempt") -> int:
        return depths(self.app, [queue])[queue]

    def finished_job(self, text: str = "{}") -> str:
        """Return a job whose outcome goes to a key that is no queue."""
        job_id = self.scenario.submit(on_done=POISON)
        claim = self.scenario.claim(job_id)
        self.scenario.ledger.store_output(claim.lease, answer(text))
        self.scenario.settle(claim, succeeds(claim))
        return job_id


@pytest.fixture
def stack(new_redis_scenario: ScenarioMaker, start_broker: StartBroker) -> Stack:
    return Stack(new_redis_scenario(outbox_grace=0.1), start_broker())


@pytest.mark.parametrize("name", ["own", "owner-portal", "k1", "i-loop"])
def test_the_hint_of_a_loop_is_sent_whatever_its_name(stack: Stack, name: str) -> None:
    """Ids of users' tasks begin with own, and those of keys with k: the name of a loop may, too."""
    stack.publisher.publish([Publication(Entry("loop", f"p00-{name}", 1), "loop", 5)])
    assert stack.waiting("loop") == 1


def test_an_unsendable_outcome_does_not_stop_the_sweep(stack: Stack) -> None:
    """Given an outcome for a key that is no queue and 50 unpublished jobs, then one sweep publishes
    the 50, and after five tries the outcome is quarantined with an escalation."""
    scenario = stack.scenario
    stack.submit(1)  # declares the queue, and so its bindings
    job_id = stack.finished_job()
    others = [scenario.submit() for _ in range(50)]
    scenario.advance(1)
    stack.sweep()
    assert stack.waiting() >= 1 + len(others)
    scenario.advance(1)
    depth = stack.waiting()
    for _ in range(10):
        scenario.advance(10)
        stack.sweep()
    assert stack.waiting() == depth, "the other messages are not repeated"
    (found,) = scenario.ledger.quarantine.entries()
    assert (found.id, found.failures) == (f"d:{job_id}/1", scenario.settings.publish_tries)
    assert "WRONGTYPE" in found.error
    (escalation,) = scenario.ledger.escalations()
    assert (escalation.job_id, escalation.reason) == (job_id, "unsendable")
    assert scenario.view(job_id).state == "succeeded"


def test_a_full_broker_is_away_and_submitting_succeeds(
    new_redis_scenario: ScenarioMaker, start_broker: StartBroker
) -> None:
    """Given a broker that becomes full, then every job is accepted, and no entry counts as failed;
    when there is room again, the sweep publishes what waits."""
    server = start_broker("--maxmemory-policy", "noeviction")
    stack = Stack(new_redis_scenario(outbox_grace=0.1, publish_tries=1, sweep_limit=5000), server)
    with server.client() as client:
        stack.submit(1)
        client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + 300_000)
        for _ in range(20):
            stack.submit(100)
            if stack.away:
                break
        assert stack.away
        sent = stack.waiting()
        stack.scenario.advance(1)
        stack.sweep()
        assert stack.scenario.ledger.quarantine.count() == 0
        client.config_set("maxmemory", 0)
        stack.scenario.advance(1)
        stack.sweep()
        assert stack.waiting() > sent


@pytest.mark.parametrize("refusal", ["replica", "down"])
def test_a_broker_that_refuses_everything_is_away(
    stack: Stack, start_broker: StartBroker, refusal: str
) -> None:
    server = start_broker()
    stack = Stack(stack.scenario, server)
    stack.submit(1)
    with server.client() as client:
        if refusal == "replica":
            client.replicaof("127.0.0.1", "1")
        else:
            server.kill()
    stack.submit(3)
    assert len(stack.away) == 1
    assert stack.scenario.ledger.quarantine.count() == 0


def test_a_message_that_makes_the_broker_hang_up_fails_alone(
    new_redis_scenario: ScenarioMaker, start_broker: StartBroker
) -> None:
    """Given a limit of 1 MB for a value, which Redis enforces by closing the connection, then the
    broker is not away: only that message cannot be sent."""
    server = start_broker("--proto-max-bulk-len", "1mb")
    stack = Stack(new_redis_scenario(outbox_grace=0.1, publish_tries=1), server)
    job_id = stack.finished_job("x" * 1_500_000)
    stack.scenario.submit()
    stack.scenario.advance(1)
    stack.sweep()
    assert not stack.away
    assert stack.waiting() == 1
    (found,) = stack.scenario.ledger.quarantine.entries()
    assert found.job_id == job_id


def test_a_job_that_cannot_be_read_fails_alone(stack: Stack) -> None:
    """Given a stored job that this version cannot read, then its outcome hurts no other entry."""
    scenario = stack.scenario
    job_id = stack.finished_job()
    prefix = f"{scenario.settings.key_prefix}:{{p00}}:"
    scenario.ledger.calls.run("HSET", f"{prefix}job:{job_id}", "body", "{")
    scenario.submit()
    for _ in range(10):
        scenario.advance(10)
        stack.sweep()
    assert stack.waiting() >= 1
    (found,) = scenario.ledger.quarantine.entries()
    assert found.id == f"d:{job_id}/1"


def test_requeueing_sends_an_outcome_once_its_queue_is_one(stack: Stack) -> None:
    scenario = stack.scenario
    stack.submit(1)
    job_id = stack.finished_job()
    done = Entry("done", job_id, 1)
    for _ in range(10):
        scenario.advance(10)
        stack.sweep()
    assert scenario.ledger.quarantine.retry([str(done)], by="ada") == [str(done)]
    with stack.app.connection_for_write() as connection:
        connection.default_channel.client.delete("taken")
    stack.sweep()
    assert scenario.ledger.quarantine.count() == 0
    scenario.advance(1000)
    assert str(done) not in scenario.swept_entries("attempt")


def test_an_outcome_that_is_not_allowed_is_not_sent(stack: Stack) -> None:
    """Given a producer that stored a job itself, then its outcome goes nowhere else."""
    broker = CeleryBroker(
        stack.app,
        stack.scenario.ledger,
        outcome_problem=lambda target: f"{target.task} is not in on_done",
    )
    stack.publisher = Publisher(ledger=stack.scenario.ledger, broker=broker)
    stack.finished_job()
    for _ in range(10):
        stack.scenario.advance(10)
        stack.sweep()
    (found,) = stack.scenario.ledger.quarantine.entries()
    assert found.error == "OutcomeNotAllowed: mine.done is not in on_done"


def test_a_lease_expires_while_the_broker_is_away(
    new_redis_scenario: ScenarioMaker, start_broker: StartBroker
) -> None:
    """Given a worker that died and a broker that cannot be reached, then the sweep takes the lease
    back and says that the broker is away; when it is back, the attempt is published."""
    server = start_broker()
    stack = Stack(new_redis_scenario(outbox_grace=0.1, republish_after=1.0), server)
    scenario = stack.scenario
    job_id = scenario.submit()
    scenario.claim(job_id)
    server.kill()
    scenario.advance(scenario.settings.lease + 1)
    with pytest.raises(OperationalError):
        stack.sweep()
    assert scenario.view(job_id).state == "queued"
    server.start()
    scenario.advance(10)
    stack.sweep()
    assert stack.waiting("attempt") + stack.waiting("repair") == 1
