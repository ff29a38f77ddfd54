"""Reading from the broker without trusting it: what cannot be parsed is refused, not raised.

kombu parses a message in the event loop, before anybody is asked, and an exception there ends the
worker. On AMQP the message then returns to its queue and ends the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from amqp import method_framing  # type: ignore[import-untyped] # has no types
from kombu.transport import redis, virtual
from kombu.utils import json

from mulligan.workers.celery.broker.message_checks import (
    MALFORMED,
    UnreadableMessage,
    check_envelope,
)

#: The attribute of a kombu connection with the function that records what is refused.
REFUSE = "mulligan_refuse"
#: The header of an AMQP message whose own headers cannot be parsed.
UNPARSED_HEADER = "mulligan_unparsed"
#: The envelope of a message in base64 is longer than its body.
_ENVELOPE = 4

_loads: Any = json.loads  # kombu is untyped
_redis: Any = redis

#: Called with the queue, the reason and the message, as far as it was read.
Refuse = Callable[[str, str, Any], None]


@dataclass(frozen=True)
class Unparsed:
    """The text of a message that is not JSON."""

    text: Any
    reason: str


def parse(text: Any, *, cap: int | None) -> Any:
    """Parse an envelope as kombu does. What cannot be parsed is returned as `Unparsed`."""
    if cap is not None and len(text) > _ENVELOPE * cap:
        return Unparsed(text, f"it has {len(text):,} characters")
    try:
        return _loads(text)
    except MALFORMED as error:
        return Unparsed(text, f"it is not JSON ({type(error).__name__})")


class GuardedTransport:
    """Added to a virtual transport: a message without a proper envelope is refused."""

    client: Any

    def _deliver(self, message: Any, queue: str) -> None:
        if isinstance(message, Unparsed):
            self._refuse(queue, message.reason, message.text)
            return
        try:
            check_envelope(message)
            super()._deliver(message, queue)  # type: ignore[misc] # of kombu's transport
        except UnreadableMessage as error:
            self._refuse(queue, str(error), message)
        except MALFORMED as error:
            # What Celery's consumer raises for a message does not come here.
            self._refuse(queue, f"its envelope is malformed ({type(error).__name__})", message)

    def _refuse(self, queue: str, reason: str, message: Any) -> None:
        refuse: Refuse | None = getattr(self.client, REFUSE, None)
        if refuse is not None:
            refuse(queue, reason, message)


class GuardedQoS:
    """A record of an unacknowledged message that cannot be read does not keep others back."""

    def restore_by_tag(self: Any, tag: Any, client: Any = None, leftmost: bool = False) -> None:
        try:
            super().restore_by_tag(tag, client, leftmost)  # type: ignore[misc] # of kombu
        except MALFORMED as error:
            self._remove_from_indices(tag).execute()
            reason = f"its record is malformed ({type(error).__name__})"
            self.channel.connection._refuse(self.unacked_key, reason, tag)


class _Message(method_framing.Message):  # type: ignore[misc] # untyped
    """An AMQP message whose headers may be malformed, which its consumer then refuses."""

    def _load_properties(self, class_id: Any, buf: Any, offset: int) -> Any:
        try:
            return super()._load_properties(class_id, buf, offset)
        except Exception as error:  # its own exceptions would close the connection
            self.properties = {"application_headers": {UNPARSED_HEADER: type(error).__name__}}
            return offset


def install(cap: int | None) -> None:
    """Let kombu and amqp return what they cannot parse, in this process.

    ``cap``: the maximum size of a body; None: any.
    """
    _redis.loads = partial(parse, cap=cap)
    method_framing.Message = _Message


def guarded(transport: type[Any]) -> type[Any]:
    """Return the class of a transport with the guard, which AMQP does not need."""
    if not issubclass(transport, virtual.Transport) or issubclass(transport, GuardedTransport):
        return transport
    changes: dict[str, Any] = {}
    if issubclass(transport, redis.Transport):
        qos = type("QoS", (GuardedQoS, transport.Channel.QoS), {})
        changes["Channel"] = type("Channel", (transport.Channel,), {"QoS": qos})
    return type("Transport", (GuardedTransport, transport), changes)
