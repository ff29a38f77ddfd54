"""The part of the ledger for the outbox, from which queues are filled, and for pauses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from mulligan.tasks.ports.ledger.entries import Entry, Publication


class QueueLedger(Protocol):
    """Publishing entries and pausing them."""

    def stamp(self, entries: Sequence[Entry], *, moved: Sequence[Publication] = ()) -> None:
        """Note that entries were published.

        ``moved``: those that were sent to another queue than the one they were filed under. What is
        claimed from a queue shows which messages of the same queue are lost.
        """

    def published_queues(self) -> set[str]:
        """Return the queues that entries were claimed from or moved to."""

    def fail(self, failures: Mapping[Entry, str]) -> list[Entry]:
        """Note that entries could not be sent, and why. Return those quarantined by it.

        An entry is quarantined, with an escalation, when sending it has failed often enough.
        """

    def sweep(self, *, empty_queues: Sequence[str], by_priority: bool = True) -> list[Publication]:
        """Return what to publish now, entries with expired leases included.

        ``by_priority``: whether the broker serves the most urgent messages of a queue first.
        """

    def pause(self, what: str) -> None:
        """Pause ``queue:NAME``, ``task_type:NAME`` or ``provider:NAME``."""

    def resume(self, what: str) -> bool:
        """End a pause, also one that a provider asked for. Return whether there was one.

        The sweep publishes the parked work.
        """

    def paused(self) -> list[str]: ...
