"""Whose turn a periodic task is: any number of schedulers run it once in its interval."""

from __future__ import annotations

from mulligan.workers.ledger import keys
from mulligan.workers.ledger.connection.calls import RedisCalls

#: The part of the interval that a turn lasts. Less than 1, or a lone scheduler that is a
#: millisecond early would skip a run.
_SHARE = 0.9


class PeriodicTurns:
    """Turns that expire by themselves, so that a scheduler that dies blocks nobody."""

    def __init__(self, calls: RedisCalls, prefix: str) -> None:
        self._calls = calls
        self._fleet = keys.fleet_prefix(prefix)

    def take(self, name: str, *, seconds: float) -> bool:
        """Take the turn of a task that runs every ``seconds``; False if another process has it.

        If the answer is lost and the call repeated, the result is False and one run is left out.
        """
        key = keys.periodic_turn(self._fleet, name)
        lasts = max(1, int(seconds * 1000 * _SHARE))
        return bool(self._calls.run("SET", key, "1", "NX", "PX", lasts))
