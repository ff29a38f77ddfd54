"""The brokers and ledgers that we name together, each with a fleet and a user's app."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from celery import Celery

from mulligan.workers.celery.broker.queues import Pool
from support.fleet import CONTROL, Fleet, running_fleet
from support.rabbitmq_server import RabbitServer
from support.redis_server import RedisServer
from support.replicated_redis import ReplicatedRedis
from support.servers import require

RABBITMQ = "rabbitmq"


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A ledger and a broker, and the fault that they have while jobs run."""

    ledger: str
    #: None: the ledger's server is the broker, too.
    broker: str | None = None
    partitions: int = 1
    fault: Literal["full", "demoted"] | None = None

    def __str__(self) -> str:
        words = [self.ledger]
        words += [f"broker {self.broker}"] if self.broker else []
        words += [f"{self.partitions} partitions"] if self.partitions > 1 else []
        words += [self.fault] if self.fault else []
        return ", ".join(words)


BACKENDS = (
    Backend(ledger="valkey-9.1"),
    Backend(ledger="redis-6.2"),
    Backend(ledger="redis-7.0"),
    Backend(ledger="redis-7.0", broker="redis-7.0"),
    Backend(ledger="redis-7.0", broker=RABBITMQ),
    Backend(ledger="valkey-9.1", partitions=3),
    Backend(ledger="redis-7.0", broker=RABBITMQ, partitions=3),
    Backend(ledger="redis-7.0", fault="full"),
    Backend(ledger="redis-6.2", fault="demoted"),
)

#: Every queue in one process, to start as few as possible.
WORK = Pool(name="work", queues=("repair", "verify", "attempt", *CONTROL.queues), slots=8)
#: A user's project.
SHOP = """
import os

from celery import Celery

from mulligan import Repair, RepairingTask, install

app = Celery("shop", broker=os.environ["MULLIGAN_BROKER_URL"], backend=os.environ["RESULTS"])
app.conf.task_default_queue = "shop"
install(app)


@app.task(base=RepairingTask, bind=True, name="shop.greet", task_type="greet")
def greet(self, name):
    if self.repair is None:
        raise Repair("say hello", score=40)
    return f"hello, {name}"


@app.task(name="shop.answered")
def answered(outcome):
    return outcome["state"]
"""


@dataclass(frozen=True, kw_only=True)
class RunningBackend:
    """A fleet on a backend, with a client of the user's app."""

    fleet: Fleet
    shop: Celery

    def result(self, task_id: str, *, seconds: float) -> Any:
        """Return the result of a task of the user's app."""
        with Celery("reader", backend=self.fleet.server.url, set_as_current=False) as reader:
            return reader.AsyncResult(task_id).get(timeout=seconds)


@contextmanager
def running_backend(
    backend: Backend, rabbitmq: RabbitServer | None, *, config: str = ""
) -> Iterator[RunningBackend]:
    """Start the servers, a fleet and a user's app, and stop them."""
    with ExitStack() as stack:
        # Not tmp_path: the kernel allows 108 bytes for the path of a socket.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mulligan-")))
        (folder / "shop.py").write_text(SHOP)
        (folder / "mulligan.toml").write_text(config)
        replicated = backend.fault == "demoted"
        server = (ReplicatedRedis if replicated else RedisServer)(
            folder / "ledger", binary=require(backend.ledger)
        )
        broker_url = server.url
        if backend.broker == RABBITMQ:
            assert rabbitmq is not None
            broker_url = rabbitmq.url
        elif backend.broker:
            broker = RedisServer(folder / "broker", binary=require(backend.broker))
            broker.start()
            stack.callback(broker.kill)
            broker_url = broker.url
        fleet = stack.enter_context(
            running_fleet(
                folder / "fleet",
                pools=[WORK],
                server=server,
                broker_url=broker_url,
                environment={
                    "PYTHONPATH": str(folder),
                    "MULLIGAN_CONFIG": str(folder / "mulligan.toml"),
                    "RESULTS": server.url,
                },
                partitions=backend.partitions,
            )
        )
        argv = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-P", "threads", "-c", "2"]
        fleet.stack.add("shop", [*argv, "--without-gossip", "--without-mingle"])
        shop = Celery("client", broker=broker_url, set_as_current=False)
        yield RunningBackend(fleet=fleet, shop=shop)
