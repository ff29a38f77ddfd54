"""Sweep: bring back what was lost on the way. An ordinary periodic task; two are harmless."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mulligan.tasks.ports.ledger import Publication, QueueLedger


def run_sweep(
    ledger: QueueLedger,
    *,
    empty_queues: Callable[[], Sequence[str]],
    publish: Callable[[Sequence[Publication]], None],
) -> int:
    """Publish what is due, never published, overtaken or held by a lease that expired."""
    found = ledger.sweep(empty_queues=empty_queues())
    if found:
        publish(found)
    return len(found)
