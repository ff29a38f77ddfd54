"""The rate limit: one token bucket per caller, in this process."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

#: Beyond this, the callers seen least recently are forgotten, so that they cannot fill the memory.
_MAX_CALLERS = 10_000


class RateLimit:
    """A number of requests per minute for each caller; all of them may come at once."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity = float(per_minute)
        self._per_second = per_minute / 60
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, caller: str) -> float:
        """Take one request. Return 0.0 if it is allowed, else the seconds until one is."""
        with self._lock:
            now = self._clock()
            left, updated_at = self._buckets.pop(caller, (self._capacity, now))
            left = min(self._capacity, left + (now - updated_at) * self._per_second)
            allowed = left >= 1
            self._buckets[caller] = (left - 1 if allowed else left, now)
            while len(self._buckets) > _MAX_CALLERS:
                self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self._per_second
