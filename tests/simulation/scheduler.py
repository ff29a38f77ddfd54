"""Simulated time and processes: greenlets that give up control at every port call."""

from __future__ import annotations

import heapq
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from greenlet import getcurrent, greenlet

#: The time at which every run begins, in seconds since 1970.
START = 1_700_000_000.0


class Crashed(BaseException):
    """The simulated process is dead. No `except Exception` catches it, as none survives SIGKILL."""


@dataclass(eq=False)
class Process:
    """A simulated process: one or more greenlets that die together."""

    name: str
    dead: bool = False
    #: Until then, none of its greenlets continues.
    frozen_until: float = 0.0
    greenlets: list[greenlet] = field(default_factory=list)
    #: How often this process froze.
    freezes: int = 0


class Scheduler:
    """Runs greenlets in the order of simulated time, which jumps from one event to the next."""

    def __init__(self) -> None:
        self.now = START
        self.events = 0
        #: What greenlets raised, other than their own death.
        self.errors: list[str] = []
        self._hub = getcurrent()
        self._queue: list[tuple[float, int, Process | None, Callable[[], object]]] = []
        self._sequence = 0

    def at(self, time: float, run: Callable[[], object], process: Process | None = None) -> None:
        """Run a function at a time, unless its process is dead by then."""
        self._sequence += 1
        heapq.heappush(self._queue, (time, self._sequence, process, run))

    def spawn(self, process: Process, run: Callable[[], object]) -> None:
        """Start a greenlet of a process."""
        one = greenlet(lambda: self._guarded(process, run), parent=self._hub)
        process.greenlets.append(one)
        self.at(self.now, one.switch, process)

    def sleep(self, process: Process, seconds: float) -> None:
        """Let others run for some simulated seconds. Raises Crashed if the process dies."""
        if process.dead:
            raise Crashed(process.name)
        self.at(self.now + seconds, getcurrent().switch, process)
        self._hub.switch()

    def park(self) -> None:
        """Give up control until something else wakes the current greenlet."""
        self._hub.switch()

    def wake(self, process: Process, one: greenlet, seconds: float) -> None:
        self.at(self.now + seconds, one.switch, process)

    def crash(self, process: Process) -> None:
        """Kill a process. Its ports are dead before its `finally` blocks run."""
        process.dead = True
        for one in process.greenlets:
            if one is not getcurrent():
                self.at(self.now, lambda one=one: self._throw(one))  # type: ignore[misc]

    def run(self, *, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Run events for some simulated seconds, or until a condition holds."""
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end and not until():
            time, _, process, run = heapq.heappop(self._queue)
            if process is not None:
                if process.dead:
                    continue
                if process.frozen_until > time:
                    self.at(process.frozen_until, run, process)
                    continue
            self.now = max(self.now, time)
            self.events += 1
            run()
        if not until():
            self.now = max(self.now, end)

    def stop(self, processes: list[Process]) -> None:
        """End every greenlet, so that none outlives its run."""
        for process in processes:
            process.dead = True
            for one in process.greenlets:
                self._throw(one)
        self._queue.clear()

    @staticmethod
    def _throw(one: greenlet) -> None:
        if not one.dead:
            one.throw(Crashed)

    def _guarded(self, process: Process, run: Callable[[], object]) -> None:
        try:
            run()
        except Crashed:
            pass
        except Exception:  # the run reports it
            self.errors.append(f"{process.name}: {traceback.format_exc()}")
