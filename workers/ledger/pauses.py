"""Pauses of queues, task types and providers, in every partition."""

from __future__ import annotations

from mulligan.workers.ledger import keys
from mulligan.workers.ledger.partitions import Partitioned


class Pauses(Partitioned):
    """See tasks.ports.ledger for the methods' contracts.

    Each partition has its own copy, because a script reads one partition. The first one decides: it
    is written first, it is what people see, and the sweep makes the others follow it. So a pause
    or resume that failed halfway, or met another one, is finished within a sweep.
    """

    def pause(self, what: str) -> None:
        since = self.calls.clock.now()
        for prefix in self.prefixes():
            self.calls.run("HSET", keys.paused(prefix), what, since)

    def resume(self, what: str) -> bool:
        # Read first: a repeated command, whose first answer was lost, finds nothing to delete.
        was = any(self.calls.fields([keys.paused(prefix) for prefix in self.prefixes()], what))
        kind, _, name = what.partition(":")
        gates = [keys.gate(prefix, name) for prefix in self.prefixes()]
        if kind == "provider":
            was = any(self.calls.fields(gates, "opens_at")) or was
        for prefix, gate in zip(self.prefixes(), gates, strict=True):
            self.calls.run("HDEL", keys.paused(prefix), what)
            if kind == "provider":
                self.calls.run("HDEL", gate, "opens_at", "why")
        return was

    def paused(self) -> list[str]:
        return sorted(self.calls.run("HKEYS", keys.paused(self.prefixes()[0])))

    def _copy_pauses(self) -> None:
        """Make the other partitions follow the first one."""
        first, *others = self.prefixes()
        if not others:
            return
        # The first one is read last: a pause that is being written is there before it is in a
        # copy, so a copy never looks like the rest of a pause that has ended.
        *copies, pauses = self.calls.hashes([keys.paused(prefix) for prefix in (*others, first)])
        for prefix, seen in zip(others, copies, strict=True):
            if seen != pauses:
                self.calls.one("copy_pauses", prefix, seen=seen, pauses=pauses)
