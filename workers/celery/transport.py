"""kombu's Redis transport with two savings, for messages that are only hints.

A channel keeps its client: kombu makes a new redis.Redis object for every publish, fetch and ack,
and building one (it copies a table of some 170 callbacks) costs more than the command it sends.

A queue declared with ``no_ack`` is not booked: kombu writes every fetched message to a hash and an
index in one transaction and takes it out in another, to bring back what died with a worker. The
ledger brings that back already, and sooner. docs/decisions/0004 has the profile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kombu import transport
from kombu.transport import redis, virtual

_make_client: Any = redis.Channel._create_client  # kombu is untyped
_consume: Any = redis.Channel.basic_consume


class Hint(virtual.Message):
    """A message that nobody has to account for."""

    def ack(self, multiple: bool = False) -> None:  # noqa: ARG002 - kombu's signature
        self._state = "ACK"

    def reject(self, requeue: bool = False) -> None:  # noqa: ARG002 - kombu's signature
        self._state = "REJECTED"

    def requeue(self) -> None:
        self._state = "REQUEUED"


class Channel(redis.Channel):
    """A channel that keeps its client, and no books of hints."""

    _kept: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:
            return _make_client(self, asynchronous=True)
        if self._kept is None or self._kept.connection_pool is not self.pool:
            self._kept = _make_client(self)
        return self._kept

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], Any], *args: Any, **more: Any
    ) -> Any:
        answer = _consume(self, queue, no_ack, callback, *args, **more)
        if no_ack:
            make: Any = Hint
            self.connection._callbacks[queue] = lambda raw: callback(make(raw, channel=self))
        return answer


class Transport(redis.Transport):
    Channel = Channel


def install() -> None:
    """Let redis:// and redis+socket:// use this transport in this process."""
    for alias in ("redis", "rediss"):
        transport.TRANSPORT_ALIASES[alias] = f"{__name__}:Transport"
