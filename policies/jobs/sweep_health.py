"""Whether the sweep runs on time, for `/readyz`, `mulligan doctor` and the page."""

from __future__ import annotations

from typing import Literal

SweepHealth = Literal["ok", "late", "down"]


def sweep_health(age: float | None, *, interval: float) -> SweepHealth:
    """Judge the seconds since the last sweep; None is a sweep that has never run.

    Late is 30 s or 5 intervals, whichever is longer; down is 10 times as long.
    """
    late = max(30.0, 5 * interval)
    if age is None or age > 10 * late:
        return "down"
    return "late" if age > late else "ok"
