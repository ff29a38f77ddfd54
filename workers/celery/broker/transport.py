"""kombu's Redis transport with two savings, for messages that are only hints, and one repair.

A channel keeps its client: kombu creates a redis.Redis object for every publish, fetch and ack, and
creating one (it copies a table of some 170 callbacks) costs more than the command it sends.

A queue declared with ``no_ack`` does without kombu's records of unacknowledged messages: kombu
writes each fetched message to a hash and an index and deletes it later, in two transactions, to
restore what a dead worker held. The ledger does that anyway, and sooner. docs/decisions/0004 has
the profile.

A full Redis lets a worker take a message but stores no record of it, and kombu drops such a
message. Here it is delivered without a record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kombu import transport
from kombu.transport import redis, virtual
from redis.exceptions import OutOfMemoryError

_create_client: Any = redis.Channel._create_client  # kombu is untyped
_consume: Any = redis.Channel.basic_consume
_record: Any = redis.QoS.append
_remember: Any = virtual.QoS.append


class Hint(virtual.Message):
    """A message that needs no acknowledgement."""

    def ack(self, multiple: bool = False) -> None:  # noqa: ARG002 - kombu's signature
        self._state = "ACK"

    def reject(self, requeue: bool = False) -> None:  # noqa: ARG002 - kombu's signature
        self._state = "REJECTED"

    def requeue(self) -> None:
        self._state = "REQUEUED"


class QoS(redis.QoS):
    """Records unacknowledged messages, if Redis can store that."""

    def append(self, message: Any, delivery_tag: Any) -> None:
        try:
            _record(self, message, delivery_tag)
        except OutOfMemoryError:
            _remember(self, message, delivery_tag)


class Channel(redis.Channel):
    """A channel that keeps its client and does not record hints."""

    QoS = QoS
    _cached_client: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:
            return _create_client(self, asynchronous=True)
        if self._cached_client is None or self._cached_client.connection_pool is not self.pool:
            self._cached_client = _create_client(self)
        return self._cached_client

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], Any], *args: Any, **more: Any
    ) -> Any:
        answer = _consume(self, queue, no_ack, callback, *args, **more)
        if no_ack:
            hint: Any = Hint
            self.connection._callbacks[queue] = lambda raw: callback(hint(raw, channel=self))
        return answer


class Transport(redis.Transport):
    Channel = Channel


def install() -> None:
    """Use this transport for redis:// and redis+socket:// in this process."""
    for alias in ("redis", "rediss"):
        transport.TRANSPORT_ALIASES[alias] = f"{__name__}:Transport"
