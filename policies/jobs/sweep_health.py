"""Whether the sweep runs on time, for `/readyz`, `mulligan doctor`, the page and the alert."""

from __future__ import annotations

from typing import Literal

SweepHealth = Literal["ok", "late", "down"]

#: Seconds without a sweep after which it is late. The alert SweepStale in deploy/ has the same.
LATE_SECONDS = 30.0
#: With a longer interval between sweeps, the number of intervals after which one is late.
_LATE_INTERVALS = 5
#: A sweep is down after this many times as long.
_DOWN = 10


def sweep_health(age: float | None, *, interval: float) -> SweepHealth:
    """Judge the seconds since the last sweep; None is a sweep that has never run.

    Late is 30 s or 5 intervals, whichever is longer; down is 10 times as long.
    """
    late = max(LATE_SECONDS, _LATE_INTERVALS * interval)
    if age is None or age > _DOWN * late:
        return "down"
    return "late" if age > late else "ok"
