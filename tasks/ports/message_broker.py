"""The port for the broker, which carries hints about entries to workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mulligan.tasks.ports.ledger import Publication


class BrokerAway(Exception):
    """The broker takes no messages now, whatever they are: unreachable, full or read-only."""


class LeftForOthers(Exception):
    """The message needs what only a newer release can read; a process of that release sends it."""


class MessageBroker(Protocol):
    """Sends messages. An exception that is none of the above is the fault of the message."""

    def send_batch(self, publications: Sequence[Publication]) -> Sequence[Publication]:
        """Send messages in one round trip. If it fails, any of them may have been sent."""

    def send(self, publication: Publication) -> Publication:
        """Send one message. Return it with the queue and the priority that it was sent with."""
