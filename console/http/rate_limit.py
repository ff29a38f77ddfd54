"""How much one caller may ask: a token bucket for each, in this process."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

#: The least recently seen callers are forgotten: so many cannot fill the memory.
_CALLERS = 10_000


class RateLimit:
    """So many requests a minute for each caller; a full minute's may come at once."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity = float(per_minute)
        self._per_second = per_minute / 60
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, who: str) -> float:
        """Take one request: 0.0 if there was one left, else the seconds until there is."""
        with self._lock:
            now = self._clock()
            left, since = self._buckets.pop(who, (self._capacity, now))
            left = min(self._capacity, left + (now - since) * self._per_second)
            allowed = left >= 1
            self._buckets[who] = (left - 1 if allowed else left, now)
            while len(self._buckets) > _CALLERS:
                self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self._per_second
