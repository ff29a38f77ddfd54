"""The outbox, from which queues are filled, and pauses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mulligan.tasks.ports.ledger.entries import Entry, Publication


class QueueLedger(Protocol):
    """Publishing entries, and holding them back."""

    def stamp(self, entries: Sequence[Entry]) -> None:
        """Note that entries were published."""

    def sweep(self, *, empty_queues: Sequence[str]) -> list[Publication]:
        """What must be published now; also brings back expired leases."""

    def pause(self, what: str) -> None:
        """Pause ``queue:NAME``, ``task_type:NAME`` or ``provider:NAME``."""

    def resume(self, what: str) -> None:
        """Lift a pause; the sweep lets the parked work go."""

    def paused(self) -> list[str]: ...
