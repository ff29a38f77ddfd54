"""An hour of bursty load: our autoscaler, Celery's autoscaler and pools of a fixed size.

`python -m benchmarks.autoscale`: a simulation that takes seconds and is deterministic for a seed.
Ours is the policy itself (policies/scaling.py). Celery's follows celery/worker/autoscale.py 5.7: it
counts the requests that this worker has reserved, at most as many as the pool's largest size
(worker_prefetch_multiplier = 1, worker_disable_prefetch). At every message and every 30 s it grows
to what it reserved; after 30 s without a message it ends every idle process.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from benchmarks.rig import percentile
from mulligan.policies.scaling import PoolLoad, ScalingDecision, ScalingPolicy, decide

HOUR = 3600.0
LEAST, MOST = 2, 32
#: Seconds from the decision to a process that takes work: a fork and its connections.
START = 0.5
#: Celery's AUTOSCALE_KEEPALIVE.
KEEPALIVE = 30.0
#: The share of attempts that fail and are retried at once.
FAILING = 0.2


@dataclass(frozen=True)
class Message:
    sent: float
    seconds: float
    repair: bool = False
    fails: bool = False


def traffic(seed: int) -> list[Message]:
    """Return a trickle with a burst every few minutes; each attempt waits seconds for a model."""
    dice = random.Random(seed)  # noqa: S311 - a simulation that must repeat itself
    times, at = [], 0.0
    while (at := at + dice.expovariate(0.25)) < HOUR:
        times.append(at)
    start = 0.0
    while (start := start + dice.expovariate(1 / 300)) < HOUR:
        end, rate, at = start + dice.uniform(20, 90), dice.uniform(1.0, 4.0), start
        while (at := at + dice.expovariate(rate)) < min(end, HOUR):
            times.append(at)
    return [
        Message(at, dice.lognormvariate(1.5, 0.6), fails=dice.random() < FAILING)
        for at in sorted(times)
    ]


@dataclass
class Pool:
    """Processes that take messages: repairs first, then in order of arrival."""

    size: int
    #: The maximum number of messages taken in advance; Celery takes up to its largest size.
    reserve: int = 0
    busy: int = 0
    starting: int = 0
    repairs: deque[Message] = field(default_factory=deque)
    attempts: deque[Message] = field(default_factory=deque)
    #: Taken from the broker, in the order in which they will run.
    taken: deque[Message] = field(default_factory=deque)
    waits: list[float] = field(default_factory=list)
    repair_waits: list[float] = field(default_factory=list)
    process_seconds: float = 0.0
    largest: int = 0
    clock: float = 0.0
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: itertools.count[int] = field(default_factory=itertools.count)
    on_message: Callable[[], None] = lambda: None

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.events, (when, next(self._order), what))

    def every(self, seconds: float, what: Callable[[], None], *, first: float) -> None:
        def again() -> None:
            what()
            if self.clock < HOUR:
                self.at(self.clock + seconds, again)

        self.at(first, again)

    def run(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.at(message.sent, lambda message=message: self.put(message))  # type: ignore[misc]
        while self.events:
            when, _, what = heapq.heappop(self.events)
            lived = min(when, HOUR) - min(self.clock, HOUR)
            self.process_seconds += lived * self.size
            self.clock, self.largest = when, max(self.largest, self.size)
            what()
        self.process_seconds += max(HOUR - self.clock, 0.0) * self.size

    def put(self, message: Message) -> None:
        (self.repairs if message.repair else self.attempts).append(message)
        self.work()

    def work(self) -> None:
        """Take messages and start those that have a process."""
        while self.repairs or self.attempts:
            if self.busy + len(self.taken) >= max(self.size - self.starting, self.reserve):
                break
            self.taken.append((self.repairs or self.attempts).popleft())
            self.on_message()
        while self.taken and self.busy < self.size - self.starting:
            self._start(self.taken.popleft())

    def _start(self, message: Message) -> None:
        self.busy += 1
        waits = self.repair_waits if message.repair else self.waits
        waits.append(self.clock - message.sent)

        def end() -> None:
            self.busy -= 1
            if message.fails:
                self.put(Message(self.clock, message.seconds, repair=True))
            self.work()

        self.at(self.clock + message.seconds, end)

    def resize(self, size: int) -> None:
        change = size - self.size
        self.size = size
        if change > 0:
            self.starting += change
            self.at(self.clock + START, lambda: self._started(change))

    def _started(self, count: int) -> None:
        self.starting -= count
        self.work()

    @property
    def queued(self) -> int:
        return len(self.repairs) + len(self.attempts)

    @property
    def oldest(self) -> float:
        sent = [queue[0].sent for queue in (self.repairs, self.attempts) if queue]
        return self.clock - min(sent) if sent else 0.0


def fixed(messages: Sequence[Message], size: int) -> Pool:
    pool = Pool(size)
    pool.run(messages)
    return pool


def ours(messages: Sequence[Message]) -> Pool:
    """Run our policy: sampling and scaling each once a second, half a second apart."""
    pool = Pool(LEAST)
    policy = ScalingPolicy(least=LEAST, most=MOST)
    state, sample = ScalingDecision(), (0, 0, 0.0)

    def take_sample() -> None:
        nonlocal sample
        sample = (pool.queued, len(pool.repairs), pool.oldest)

    def scale() -> None:
        nonlocal state
        queued, repairs, oldest = sample
        load = PoolLoad(
            slots=pool.size,
            active=pool.busy,
            queued=queued,
            share=queued,
            repairs=repairs,
            oldest=oldest,
        )
        size = decide(state, load, now=pool.clock, policy=policy)
        state = size.state
        pool.resize(size.slots)

    pool.every(1.0, take_sample, first=0.5)
    pool.every(1.0, scale, first=1.0)
    pool.run(messages)
    return pool


def celery(messages: Sequence[Message]) -> Pool:
    """Run celery.worker.autoscale.Autoscaler on the event loop."""
    pool = Pool(LEAST, reserve=MOST)
    last_up: float | None = None
    last_received: float | None = None

    def maybe_scale() -> None:
        nonlocal last_up
        reserved = pool.busy + len(pool.taken)
        if (wanted := min(reserved, MOST)) > pool.size:
            last_up = pool.clock
            pool.resize(wanted)
        elif (wanted := max(reserved, LEAST)) < pool.size:
            active = max((at for at in (last_up, last_received) if at is not None), default=None)
            if active is not None and pool.clock - active > KEEPALIVE:
                pool.resize(max(wanted, pool.busy))

    def received() -> None:
        nonlocal last_received
        last_received = pool.clock
        maybe_scale()

    pool.on_message = received
    pool.every(KEEPALIVE, maybe_scale, first=KEEPALIVE)
    pool.run(messages)
    return pool


def row(name: str, pool: Pool) -> tuple[str, ...]:
    waits = [*pool.waits, *pool.repair_waits]
    return (
        name,
        *(f"{percentile(waits, share):.2f}" for share in (0.5, 0.95)),
        f"{max(waits):.2f}",
        f"{max(pool.repair_waits):.2f}",
        f"{pool.process_seconds:,.0f}",
        f"{pool.process_seconds / HOUR:.1f}",
        str(pool.largest),
    )


def rows(seed: int) -> list[tuple[str, ...]]:
    """Return every row of the table. It is deterministic for a seed."""
    messages = traffic(seed)
    scaled = ours(messages)
    mean = round(scaled.process_seconds / HOUR)
    return [
        row("ours", scaled),
        row("Celery's autoscaler", celery(messages)),
        row(f"fixed, {LEAST}", fixed(messages, LEAST)),
        row(f"fixed, {mean} (mean of ours)", fixed(messages, mean)),
        row(f"fixed, {MOST}", fixed(messages, MOST)),
    ]


COLUMNS = ("pool", "wait p50", "p95", "max", "repair max", "process-s", "mean", "largest")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autoscale", description=__doc__)
    parser.add_argument("--seed", type=int, default=7)
    seed = parser.parse_args().seed
    messages = traffic(seed)
    table = Table(title=f"{len(messages):,} attempts in an hour, seconds, seed {seed}")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "pool" else "right", no_wrap=True)
    for line in rows(seed):
        table.add_row(*line)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
