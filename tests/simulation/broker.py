"""A simulated broker. Messages are hints: they may be lost, doubled, delayed and reordered."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent, greenlet
from kombu.exceptions import OperationalError

from simulation.faults import Fault
from simulation.scheduler import Process

if TYPE_CHECKING:
    from simulation.world import World


@dataclass(frozen=True, order=True)
class Message:
    """One message in a queue; the lowest priority number is taken first."""

    priority: int
    sequence: int
    queue: str
    task: str
    args: tuple[Any, ...] = ()
    task_id: str = ""


class Broker:
    """Queues by name. A worker that crashes loses its message, or gives it back (`acks`)."""

    def __init__(self, world: World, *, acks: bool) -> None:
        self._world = world
        self._acks = acks
        self._queues: dict[str, list[Message]] = {}
        self._waiting: list[tuple[Process, greenlet, Sequence[str]]] = []
        self._sequence = itertools.count(1)
        self.away = False
        #: The names of queues that refuse every message.
        self.unsendable: set[str] = set()
        #: The ids of tasks that were refused.
        self.refused: set[str] = set()
        #: Messages that were sent, by queue, whatever became of them.
        self.sent: dict[str, int] = {}
        #: The ids of tasks whose message was lost on the way.
        self.lost: set[str] = set()
        #: Outcomes sent to producers: task id → times.
        self.outcomes: dict[str, int] = {}

    def send(self, process: Process, message: Message) -> None:
        """Send a message as a port call of a process."""
        world = self._world
        found = world.before(process, "publish", f"{message.task_id} to {message.queue}")
        if self.away:
            world.note(process, "the broker is away")
            raise OperationalError("simulated: the broker is away")
        if any(fault.kind == "unsendable" for fault in found):
            self._refuse(message.queue, max(fault.seconds for fault in found))
        if message.queue in self.unsendable:
            self.refused.add(message.task_id)
            raise ValueError(f"simulated: {message.queue} cannot be sent to")
        self.sent[message.queue] = self.sent.get(message.queue, 0) + 1
        kinds = {fault.kind: fault for fault in found}
        if "delay" in kinds:
            self.put(message, after=kinds["delay"].seconds)
        elif "lose_message" in kinds:
            self.lost.add(message.task_id)
        else:
            self.put(message)
        if "duplicate" in kinds:
            self.put(message, after=kinds["duplicate"].seconds)
        world.after(process, found)

    def put(self, message: Message, *, after: float = 0.0) -> None:
        if after:
            scheduler = self._world.scheduler
            scheduler.at(scheduler.now + after, lambda: self.put(message))
            return
        if message.task.startswith("mulligan."):
            self._queues.setdefault(message.queue, []).append(message)
            self._wake(message.queue)
        else:
            self.outcomes[message.task_id] = self.outcomes.get(message.task_id, 0) + 1

    def take(self, process: Process, queues: Sequence[str]) -> Message:
        """Wait for a message. Queues listed first are served first."""
        while True:
            for queue in queues:
                messages = self._queues.get(queue)
                if messages:
                    message = min(messages)
                    messages.remove(message)
                    return message
            self._waiting.append((process, getcurrent(), queues))
            self._world.scheduler.park()

    def lost_by_crash(self, message: Message) -> None:
        """Give an unacknowledged message back, after a while."""
        if self._acks:
            self.put(message, after=self._world.chance.uniform(0.1, 20.0))

    def waiting(self, queue: str) -> int:
        return len(self._queues.get(queue, ()))

    def purge(self) -> None:
        """Lose every waiting message: the broker restarted without persistence."""
        self._queues.clear()

    def fault(self, fault: Fault) -> None:
        """Begin a fault that concerns everybody."""
        if fault.kind == "purge":
            self.purge()
        elif fault.kind == "broker_away":
            self.away = True
            scheduler = self._world.scheduler
            scheduler.at(scheduler.now + fault.seconds, self._back)

    def _refuse(self, queue: str, seconds: float) -> None:
        """Refuse every message to a queue for some seconds."""
        self.unsendable.add(queue)
        scheduler = self._world.scheduler
        scheduler.at(scheduler.now + seconds, lambda: self.unsendable.discard(queue))

    def _back(self) -> None:
        self.away = False

    def _wake(self, queue: str) -> None:
        waiting = [each for each in self._waiting if not each[0].dead]
        able = [each for each in waiting if queue in each[2]]
        if able:
            chosen = able[self._world.chance.randrange(len(able))]
            waiting.remove(chosen)
            self._world.scheduler.wake(chosen[0], chosen[1], self._world.latency())
        self._waiting = waiting


class SimulatedApp:
    """The part of a Celery app that the publisher uses, for one process."""

    def __init__(self, broker: Broker, process: Process) -> None:
        self._broker = broker
        self._process = process

    @contextmanager
    def producer_or_acquire(self, producer: Any = None) -> Iterator[Any]:
        yield producer or self

    @property
    def connection(self) -> SimulatedApp:
        return self

    @contextmanager
    def connection_for_write(self) -> Iterator[SimulatedApp]:
        yield self

    def ensure_connection(self, *, max_retries: int) -> None:
        assert max_retries == 0, "a process would wait for the broker"
        if self._broker.away:
            raise OperationalError("simulated: the broker is away")

    @contextmanager
    def batch(self, _size: int) -> Iterator[None]:
        yield

    def send_task(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Any = None,
        *,
        queue: str,
        task_id: str,
        priority: int = 5,
        **_: Any,
    ) -> None:
        sequence = next(self._broker._sequence)
        message = Message(priority, sequence, queue, name, tuple(args), task_id)
        self._broker.send(self._process, message)
