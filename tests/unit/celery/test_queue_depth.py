"""The depth of queues on brokers that are not Redis."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from amqp.exceptions import NotFound  # type: ignore[import-untyped] # has no types
from celery import Celery

from mulligan.workers.celery.broker.queue_depth import depths, empty_queues

if TYPE_CHECKING:
    from collections.abc import Iterator


class AmqpChannel:
    """Answers as RabbitMQ does: it closes the channel when asked about an unknown queue."""

    def __init__(self, queues: dict[str, int]) -> None:
        self._queues = queues
        self._closed = False

    def queue_declare(self, *, queue: str, passive: bool) -> Any:
        assert passive
        assert not self._closed
        if queue not in self._queues:
            self._closed = True
            raise NotFound(f"no queue '{queue}' in vhost '/'")
        return SimpleNamespace(message_count=self._queues[queue])


class AmqpApp:
    def __init__(self, **queues: int) -> None:
        self._queues = queues

    @contextmanager
    def connection_for_read(self) -> Iterator[Any]:
        yield SimpleNamespace(channel=self._channel, ensure_connection=lambda **_: None)

    @contextmanager
    def _channel(self) -> Iterator[AmqpChannel]:
        yield AmqpChannel(self._queues)


def test_a_queue_that_no_worker_has_served_is_empty_on_amqp() -> None:
    """Given a broker without the queue `loop`, the other queues are still counted."""
    app = cast("Celery", AmqpApp(attempt=3, verify=0))
    assert depths(app, ["loop", "attempt", "verify"]) == {"loop": 0, "attempt": 3, "verify": 0}
    assert empty_queues(app, ["loop", "attempt", "verify"]) == ["loop", "verify"]
