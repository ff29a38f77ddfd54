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
    If ``empty_queues`` raises, the exception is raised when the ledger has done its part.
    """
    try:
        empty = empty_queues()
    except Exception:
        # Leases expire without a broker, too. What was found stays in the outbox.
        ledger.sweep(empty_queues=(), by_priority=by_priority)
        raise
    found = ledger.sweep(empty_queues=empty, by_priority=by_priority)
    if found:
        publish(found)
    return len(found)
