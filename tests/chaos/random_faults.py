"""A fleet at work whose processes and servers are killed and frozen at random."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from support.fleet import CONTROL, Fleet
from support.rabbitmq_server import RabbitServer
from support.waiting import wait_for

from chaos.invariants import (
    check_failures_counted_once,
    check_no_answer_bought_twice,
    check_no_job_lost,
    check_one_retry_per_low_score,
    check_settled_once,
    jobs,
)
from mulligan import Client
from mulligan.tasks.ports.errors import MulliganError
from mulligan.workers.celery.broker.queues import Pool

LEASE = 3.0
#: Seconds that an answer takes, so that most faults meet one in flight.
ANSWER = 0.5
#: Mean seconds between two faults. A worker needs about two to start.
PAUSE = 4.0
#: Jobs that wait or run at any time, and jobs per submission.
LOAD, BATCH = 120, 40

_QUEUES = ("repair", "verify", "attempt")
POOLS = (
    CONTROL,
    Pool(name="one", queues=_QUEUES, slots=6),
    Pool(name="two", queues=_QUEUES, slots=6),
    Pool(name="three", queues=_QUEUES, slots=2, most=4),  # prefork
)
THREADS = ("one", "two")


@dataclass
class ConsoleWatcher:
    """Submits jobs through the console and waits for them there, while the console is killed."""

    url: str
    ids: list[str] = field(default_factory=list)
    watched: int = 0
    #: Calls that gave up because the console was away for longer than they wait.
    gave_up: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        number = 1_000_000
        while not self._stop.is_set():
            self._watch(number)
            number += 20

    def _watch(self, number: int) -> None:
        drafts = jobs(20, first=number, delay=ANSWER)
        with Client(self.url) as client:
            # With keys, asking again after a lost reply stores nothing twice.
            handles = self._insist(
                lambda: client.submit_many(drafts, idempotency_key=f"k{number}", progress=False)
            )
            self.ids += [handle.id for handle in handles]
            self._insist(lambda: client.wait(handles, progress=False))
            self.watched += len(handles)

    def _insist(self, call: Callable[[], Sequence]) -> Sequence:  # type: ignore[type-arg]
        while True:
            try:
                return call()
            except MulliganError:
                self.gave_up += 1
                time.sleep(0.2)


class RandomFaults:
    """Injects faults into a running fleet, and brings everything back in the end."""

    def __init__(self, fleet: Fleet, seed: int, broker: RabbitServer | None = None) -> None:
        self._fleet = fleet
        self._dice = random.Random(seed)
        self._broker = broker
        self.counts: Counter[str] = Counter()
        #: What ends a fault, and when.
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._redis_away = False
        self._broker_away = False

    def choose(self) -> None:
        """Inject one fault."""
        faults: list[tuple[str, Callable[[], bool], int]] = [
            ("worker killed", lambda: self._kill(*THREADS), 4),
            ("worker frozen past its lease", lambda: self._freeze(*THREADS), 3),
            ("prefork parent killed", lambda: self._kill("three"), 2),
            ("prefork child killed", self._kill_prefork_child, 2),
            ("control killed", lambda: self._kill("control"), 2),
            ("control frozen", lambda: self._freeze("control"), 1),
            ("console killed", lambda: self._kill("console"), 2),
            ("Redis killed", self._kill_redis, 2),
            ("Redis frozen past a lease", self._freeze_redis, 2),
        ]
        if self._broker is not None:
            faults.append(("RabbitMQ killed", self._kill_broker, 1))
        name, inject, _ = self._dice.choices(faults, [weight for *_, weight in faults])[0]
        if inject():
            self.counts[name] += 1

    def pause(self) -> float:
        return self._dice.expovariate(1 / PAUSE)

    def tick(self) -> None:
        """Restart dead processes, and end the faults whose time has come."""
        self._fleet.stack.watch()
        due = [each for each in self._later if each[0] <= time.monotonic()]
        self._later = [each for each in self._later if each not in due]
        for _, end in due:
            end()

    def end(self) -> None:
        """End every fault."""
        for _, end in self._later:
            end()
        self._later.clear()

    def _processes(self, *names: str) -> list[psutil.Process]:
        children = [c for c in self._fleet.stack.children if c.name in names and c.alive]
        return [psutil.Process(child.process.pid) for child in children if child.process]

    def _kill(self, *names: str) -> bool:
        found = self._processes(*names)
        if found:
            self._dice.choice(found).kill()
        return bool(found)

    def _kill_prefork_child(self) -> bool:
        children = [child for parent in self._processes("three") for child in parent.children()]
        if children:
            self._dice.choice(children).kill()
        return bool(children)

    def _freeze(self, *names: str) -> bool:
        found = self._processes(*names)
        if not found:
            return False
        process = self._dice.choice(found)
        process.suspend()

        def thaw() -> None:
            if process.is_running():
                process.resume()

        self._after(self._dice.uniform(1.5, 3.0) * LEASE, thaw)
        return True

    def _kill_redis(self) -> bool:
        if self._redis_away:
            return False
        self._redis_away = True
        self._fleet.server.kill()

        def start() -> None:
            self._fleet.server.start()
            self._redis_away = False

        self._after(self._dice.uniform(0.1, LEASE), start)
        return True

    def _freeze_redis(self) -> bool:
        if self._redis_away:
            return False
        self._redis_away = True
        self._fleet.server.send_signal(signal.SIGSTOP)

        def thaw() -> None:
            self._fleet.server.send_signal(signal.SIGCONT)
            self._redis_away = False

        self._after(self._dice.uniform(1.2, 2.0) * LEASE, thaw)
        return True

    def _kill_broker(self) -> bool:
        if self._broker is None or self._broker_away:
            return False
        broker, self._broker_away = self._broker, True
        broker.kill()

        def start() -> None:
            broker.start()
            self._broker_away = False

        self._after(self._dice.uniform(1, 5), start)
        return True

    def _after(self, seconds: float, end: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, end))

    @property
    def redis_away(self) -> bool:
        return self._redis_away


@dataclass
class Report:
    """What happened in a run."""

    seconds: float
    jobs: int
    attempts: int
    faults: Counter[str]
    #: Answers requested again because their worker was lost before it stored them.
    asked_again: int
    watched: int
    gave_up: int

    def __str__(self) -> str:
        faults = ", ".join(f"{count} × {name}" for name, count in sorted(self.faults.items()))
        return (
            f"{self.seconds:.0f} s, {self.jobs} jobs, {self.attempts} attempts\n"
            f"{sum(self.faults.values())} faults: {faults}\n"
            f"lost: 0; settled twice: 0; answers requested again after they were stored: 0\n"
            f"answers requested again because they were not stored yet: {self.asked_again}\n"
            f"{self.watched} jobs were watched through the console; "
            f"its client gave up and began again {self.gave_up} times"
        )


def run_with_faults(
    fleet: Fleet, faults: RandomFaults, watcher: ConsoleWatcher, trace: Path, *, seconds: float
) -> Report:
    """Keep the fleet busy under faults for some seconds, then wait for its jobs and check them."""
    started = time.monotonic()
    watching = watcher.start()
    ids: list[str] = []
    fault_at = started + 5
    while time.monotonic() < started + seconds:
        faults.tick()
        if time.monotonic() >= fault_at:
            faults.choose()
            fault_at = time.monotonic() + faults.pause()
        if not faults.redis_away and _unfinished(fleet) < LOAD:
            ids += fleet.submit(*jobs(BATCH, first=len(ids), delay=ANSWER))
        time.sleep(0.05)
    faults.end()
    watcher.stop()

    def watched_to_the_end() -> bool:
        fleet.stack.watch()
        return not watching.is_alive()

    wait_for(watched_to_the_end, "the jobs that are watched", seconds=300)
    ids += watcher.ids
    views = fleet.wait_until_finished(ids, seconds=300)
    check_no_job_lost(views)
    check_one_retry_per_low_score(views)
    check_settled_once(fleet, views)
    check_failures_counted_once(fleet, views)
    return Report(
        seconds=time.monotonic() - started,
        jobs=len(views),
        attempts=sum(len(view.attempts) for view in views),
        faults=faults.counts,
        asked_again=check_no_answer_bought_twice(views, trace),
        watched=watcher.watched,
        gave_up=watcher.gave_up,
    )


def _unfinished(fleet: Fleet) -> int:
    client = fleet.server.client()
    states = ("queued", "running", "waiting")
    return sum(int(client.zcard(f"mulligan:{{p00}}:jobs:{state}")) for state in states)
