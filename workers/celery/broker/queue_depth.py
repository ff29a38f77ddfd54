"""The messages that wait in the broker, by priority, and the age of the oldest."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from amqp.exceptions import NotFound  # type: ignore[import-untyped] # has no types
from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

#: The exceptions of an unreachable broker, whatever its kind.
BROKER_ERRORS = (OperationalError, RedisError, OSError)
#: The header with the time at which a message was sent, in seconds since 1970.
SENT_HEADER = "mulligan_at"


@dataclass(frozen=True, kw_only=True)
class QueueDepth:
    """The messages that wait in one queue."""

    depth: int
    #: Messages by priority, 0 first. Empty on AMQP, which does not report it.
    by_priority: Mapping[int, int] = field(default_factory=dict)
    #: None if nothing waits, or if the oldest message has no time stamp.
    oldest_seconds: float | None = None


def waiting(app: Celery, queues: Sequence[str]) -> dict[str, QueueDepth]:
    """Return the depth of each queue, in one round trip on Redis.

    Raises OperationalError if the broker cannot be reached.
    """
    with open_connection(app) as connection, connection.channel() as channel:
        if not hasattr(channel, "priority_steps"):
            return {queue: QueueDepth(depth=_size(connection, channel, queue)) for queue in queues}
        steps: Sequence[int] = channel.priority_steps
        pipe = channel.client.pipeline(transaction=False)
        for queue in queues:
            for step in steps:
                name = channel._q_for_pri(queue, step)
                pipe.llen(name).lindex(name, -1)  # the last one is taken next
        rows = iter(pipe.execute())
        now = time.time()
        return {
            queue: _depth({step: (int(next(rows)), next(rows)) for step in steps}, now)
            for queue in queues
        }


def _depth(rows: Mapping[int, tuple[int, Any]], now: float) -> QueueDepth:
    ages = [now - sent for _, message in rows.values() if (sent := _sent_at(message)) is not None]
    return QueueDepth(
        depth=sum(depth for depth, _ in rows.values()),
        by_priority={step: depth for step, (depth, _) in rows.items()},
        oldest_seconds=max(0.0, *ages) if ages else None,
    )


def _sent_at(message: Any) -> float | None:
    """Return when a message was sent, if it has our header: a queue may contain anything."""
    try:
        sent = json.loads(message)["headers"][SENT_HEADER]
    except (TypeError, ValueError, KeyError):
        return None
    return float(sent) if isinstance(sent, int | float) else None


@contextmanager
def open_connection(app: Celery) -> Iterator[Any]:
    """Connect to the broker, without retries: callers need to know that it cannot be reached."""
    try:
        with app.connection_for_read() as connection:
            connection.ensure_connection(max_retries=0)
            yield connection
    except (RedisError, OSError) as error:
        raise OperationalError(str(error)) from error


def _size(connection: Any, channel: Any, queue: str) -> int:
    if hasattr(channel, "_size"):
        return int(channel._size(queue))
    try:
        # A separate channel: the broker closes it if the queue does not exist.
        with connection.channel() as separate:
            return int(separate.queue_declare(queue=queue, passive=True).message_count)
    except NotFound:  # no worker has served it yet
        return 0


def serves_by_priority(app: Celery) -> bool:
    """Return whether the broker takes the most urgent message of a queue first: not on AMQP."""
    return str(app.conf.broker_url).startswith(("redis", "memory"))


def depths(app: Celery, queues: Sequence[str]) -> dict[str, int]:
    """Count the messages in each queue over all priorities."""
    return {queue: each.depth for queue, each in waiting(app, queues).items()}


def empty_queues(app: Celery, queues: Sequence[str]) -> list[str]:
    return [queue for queue, depth in depths(app, queues).items() if depth == 0]
