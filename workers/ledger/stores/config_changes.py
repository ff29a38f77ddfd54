"""The times at which the configuration changed, for marks on the page's charts."""

from __future__ import annotations

from mulligan.workers.ledger import keys
from mulligan.workers.ledger.connection.calls import RedisCalls
from mulligan.workers.ledger.stored.digests import VERSION, digest
from mulligan.workers.settings.live_settings import LIVE
from mulligan.workers.settings.model import Settings

#: Settings that can change the results of jobs, unlike addresses and slots.
_FIELDS = frozenset({*LIVE, "runners", "commands", "model_modules", "runner_timeout"})
_KEPT = 100


def config_digest(settings: Settings) -> str:
    """Return a digest that is the same in every process and in a release with other defaults."""
    return VERSION + digest(settings.model_dump(include=set(_FIELDS), exclude_defaults=True))


class ConfigChanges:
    """A record of changes. A process may call `note` every second."""

    def __init__(self, calls: RedisCalls, prefix: str) -> None:
        self._calls = calls
        self._key = keys.configured(keys.fleet_prefix(prefix))
        self._noted = ""

    def note(self, settings: Settings, *, now: float) -> None:
        """Store the time if these settings differ from the last ones, else make no round trip."""
        current = config_digest(settings)
        if current == self._noted:
            return
        newest = self._calls.run("ZREVRANGE", self._key, 0, 0, "WITHSCORES")
        if not newest or not newest[0].startswith(current):
            if newest and not newest[0].startswith(VERSION):
                # Another release digests in another way: its digest says nothing about a change.
                self._calls.run("ZREM", self._key, newest[0])
                now = float(newest[1])
            self._calls.run("ZADD", self._key, now, f"{current}:{now:.3f}")
            self._calls.run("ZREMRANGEBYRANK", self._key, 0, -_KEPT - 1)
        self._noted = current

    def changes(self, *, since: float) -> tuple[float, ...]:
        """Return the times of changes. The first configuration is not a change."""
        found = self._calls.run("ZRANGE", self._key, 1, -1, "WITHSCORES")
        return tuple(at for at in map(float, found[1::2]) if at >= since)
