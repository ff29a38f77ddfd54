"""A real RabbitMQ as the broker: queues that were never declared, and queues that refuse."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery
from support.ledger_scenario import ScenarioMaker
from support.rabbitmq_server import running_rabbitmq
from support.settlements import succeeds

from mulligan.tasks.jobs.publish import Publisher
from mulligan.tasks.jobs.sweep import run_sweep
from mulligan.workers.celery.broker.celery_broker import CeleryBroker
from mulligan.workers.celery.broker.queue_depth import depths, empty_queues, serves_by_priority
from mulligan.workers.celery.broker.queues import QUEUES
from mulligan.workers.celery.broker.stranded import StrandedMessages, stranded_messages
from mulligan.workers.celery.factory import create_app
from mulligan.workers.settings.model import Settings


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[str]:
    with running_rabbitmq() as server:
        yield server.url


def test_the_sweep_runs_although_no_queue_was_declared(
    rabbitmq: str, new_redis_scenario: ScenarioMaker
) -> None:
    """Given a queue of a user's app that was declared with other arguments, then only the outcome
    for it fails."""
    scenario = new_redis_scenario(outbox_grace=0.1, publish_tries=1)
    app = create_app(Settings(broker_url=rabbitmq, ledger_url="redis://127.0.0.1:1"))
    assert empty_queues(app, QUEUES) == list(QUEUES)
    assert not serves_by_priority(app)
    with app.connection_for_write() as connection, connection.channel() as channel:
        channel.queue_declare("shop", durable=True, arguments={"x-max-priority": 10})
    job_id = scenario.submit(on_done={"task": "shop.answered", "queue": "shop"})
    claim = scenario.claim(job_id)
    scenario.settle(claim, succeeds(claim))
    for _ in range(3):
        scenario.submit()
    scenario.advance(1)
    publisher = Publisher(ledger=scenario.ledger, broker=CeleryBroker(app, scenario.ledger))
    found = run_sweep(
        scenario.ledger,
        empty_queues=lambda: empty_queues(app, QUEUES),
        publish=publisher.publish,
        by_priority=False,
    )
    assert found == 4
    assert depths(app, ["attempt"])["attempt"] >= 3
    (entry,) = scenario.ledger.quarantine.entries()
    assert (entry.id, "PRECONDITION_FAILED" in entry.error) == (f"d:{job_id}/1", True)


def test_a_message_without_a_queue_is_found_while_no_worker_serves_it(rabbitmq: str) -> None:
    """AMQP shows no message without taking it, so a queue that is served is left alone."""
    app = create_app(Settings(broker_url=rabbitmq, ledger_url="redis://127.0.0.1:1"))
    assert stranded_messages(app) is None  # no such queue
    Celery("shop", broker=rabbitmq).send_task("mulligan.submit", kwargs={"task_type": "t"})
    found = stranded_messages(app)
    assert found == StrandedMessages(1, certain=False)
    assert found.text == "1 message on the queue celery, which has no consumer"
    assert stranded_messages(app) == found
    with app.connection_for_write() as connection, connection.channel() as channel:
        channel.basic_consume("celery", callback=lambda _: None, no_ack=False)
        assert stranded_messages(app) is None
