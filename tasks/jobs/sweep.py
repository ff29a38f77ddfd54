"""Sweep: publish lost and due entries. A periodic task; running it twice is harmless."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mulligan.tasks.ports.ledger import Publication, QueueLedger


def run_sweep(
    ledger: QueueLedger,
    *,
    empty_queues: Callable[[], Sequence[str]],
    publish: Callable[[Sequence[Publication]], None],
    by_priority: bool = True,
) -> int:
    """Publish entries that are due, unpublished, overtaken or expired. Return their number.

    ``by_priority``: whether the broker serves the most urgent messages of a queue first.
    """
    found = ledger.sweep(empty_queues=empty_queues(), by_priority=by_priority)
    if found:
        publish(found)
    return len(found)
