"""The clock of this process. A simulation passes its own, so that no step takes real time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


def _boottime() -> float:
    """Linux stops time.monotonic while the computer sleeps, and leases expire meanwhile."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _wait(event: threading.Event, seconds: float) -> bool:
    return event.wait(seconds)


@dataclass(frozen=True, kw_only=True)
class Clock:
    """What a process does with time. The times of jobs are the ledger's own."""

    #: Returns the seconds since 1970.
    now: Callable[[], float] = time.time
    #: Returns seconds that never go back.
    monotonic: Callable[[], float] = time.monotonic
    #: The same, but they also pass while the computer sleeps: for leases.
    boottime: Callable[[], float] = _boottime
    sleep: Callable[[float], None] = time.sleep
    #: Waits up to some seconds for an event. Returns whether it is set.
    wait: Callable[[threading.Event, float], bool] = _wait
    #: Returns a number for the thread that calls: whose time it is that passes.
    thread: Callable[[], int] = threading.get_ident


SYSTEM_CLOCK = Clock()
