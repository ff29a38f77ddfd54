"""Which processes began something and never ended it: a message that kills its process is not tried
for ever, although nothing claims it."""

from __future__ import annotations

from mulligan.tasks.ports.ledger import LedgerClock
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.connection.calls import RedisCalls

#: Seconds for which a process counts.
_KEPT = 86400


class UnfinishedRuns:
    """The runs of submissions and of plans of loops, by name."""

    def __init__(self, calls: RedisCalls, *, prefix: str, clock: LedgerClock) -> None:
        self._calls = calls
        self._prefix = keys.fleet_prefix(prefix)
        self._clock = clock

    def begin(self, name: str, *, process: str) -> int:
        """Note that a process begins, and return how many others began and did not end."""
        key, now = keys.unfinished(self._prefix, name), self._clock.now()
        self._calls.run("ZREMRANGEBYSCORE", key, "-inf", now - _KEPT)
        self._calls.run("ZADD", key, now, process)
        self._calls.run("EXPIRE", key, _KEPT)
        return int(self._calls.run("ZCARD", key)) - 1

    def end(self, name: str) -> None:
        """Forget the runs: one of them came to its end."""
        self._calls.run("DEL", keys.unfinished(self._prefix, name))
