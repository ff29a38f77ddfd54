"""Messages to mulligan that were sent without a queue, so that no worker of mulligan gets them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from amqp.exceptions import NotFound  # type: ignore[import-untyped] # has no types
from celery import Celery
from kombu.exceptions import OperationalError

from mulligan.policies.figures.format import counted
from mulligan.workers.celery.broker.queue_depth import open_connection
from mulligan.workers.celery.broker.queues import DEFAULT_QUEUE

#: Messages of the default queue to look at, the oldest of each priority.
_LOOKED_AT = 50


@dataclass(frozen=True)
class StrandedMessages:
    """What waits on Celery's default queue and is, or may be, for mulligan."""

    count: int
    #: Whether the messages name a task of mulligan; AMQP does not show them without taking them.
    certain: bool

    @property
    def text(self) -> str:
        if self.certain:
            return f"{counted(self.count, 'message')} to mulligan on the queue {DEFAULT_QUEUE}"
        return (
            f"{counted(self.count, 'message')} on the queue {DEFAULT_QUEUE}, which has no consumer"
        )


def stranded_messages(app: Celery) -> StrandedMessages | None:
    """Look for messages to mulligan on Celery's default queue; None if there are none.

    Nothing is taken from the queue. A broker that cannot be reached has none: others report that.
    """
    try:
        with open_connection(app) as connection, connection.channel() as channel:
            if hasattr(channel, "priority_steps"):
                return _in_lists(channel)
            if not hasattr(channel, "_size"):
                return _without_consumer(channel)
    except OperationalError:
        pass
    return None


def _in_lists(channel: Any) -> StrandedMessages | None:
    pipe = channel.client.pipeline(transaction=False)
    for step in channel.priority_steps:
        pipe.lrange(channel._q_for_pri(DEFAULT_QUEUE, step), -_LOOKED_AT, -1)
    found = pipe.execute(raise_on_error=False)  # the name may belong to something else
    messages = [text for texts in found if isinstance(texts, list) for text in texts]
    count = sum(map(_is_ours, messages))
    return StrandedMessages(count, certain=True) if count else None


def _is_ours(message: Any) -> bool:
    try:
        task = json.loads(message)["headers"]["task"]
    except (TypeError, ValueError, KeyError):
        return False
    return isinstance(task, str) and task.startswith("mulligan.")


def _without_consumer(channel: Any) -> StrandedMessages | None:
    try:
        queue = channel.queue_declare(queue=DEFAULT_QUEUE, passive=True)
    except NotFound:
        return None
    if queue.message_count and not queue.consumer_count:
        return StrandedMessages(int(queue.message_count), certain=False)
    return None
