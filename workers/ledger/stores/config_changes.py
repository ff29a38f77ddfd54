"""When the configuration changed: what the page marks on its charts."""

from __future__ import annotations

import hashlib

from mulligan.workers.ledger import keys
from mulligan.workers.ledger.calls import RedisCalls
from mulligan.workers.settings.live_settings import LIVE
from mulligan.workers.settings.model import Settings

#: What changes how jobs turn out. Where a process listens and how many slots it has do not.
_FIELDS = frozenset({*LIVE, "runners", "commands", "model_modules", "runner_timeout"})
_KEPT = 100


class ConfigChanges:
    """Notes a change once, from a process that looks every second."""

    def __init__(self, calls: RedisCalls, prefix: str) -> None:
        self._calls = calls
        self._key = keys.configured(keys.fleet_prefix(prefix))
        self._noted = ""

    def note(self, settings: Settings, *, now: float) -> None:
        """Remember these settings if they differ from the last ones. Costs nothing if not."""
        text = settings.model_dump_json(include=set(_FIELDS))
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        if digest == self._noted:
            return
        newest = self._calls.run("ZREVRANGE", self._key, 0, 0)
        if not newest or not newest[0].startswith(digest):
            self._calls.run("ZADD", self._key, now, f"{digest}:{now:.3f}")
            self._calls.run("ZREMRANGEBYRANK", self._key, 0, -_KEPT - 1)
        self._noted = digest

    def changes(self, *, since: float) -> tuple[float, ...]:
        """The moments of change. The first configuration there was is no change."""
        found = self._calls.run("ZRANGE", self._key, 1, -1, "WITHSCORES")
        return tuple(at for at in map(float, found[1::2]) if at >= since)
