"""A broker that is away is noticed once; the sweep publishes what waited when it is back."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from support.doubles import ManualClock
from support.redis_server import RedisServer

from mulligan.tasks.ports.clock import SYSTEM_CLOCK
from mulligan.tasks.ports.ledger import Entry, Publication
from mulligan.tasks.ports.message_broker import BrokerAway
from mulligan.workers.celery.broker.away_broker import AWAY_SECONDS
from mulligan.workers.celery.broker.celery_broker import CeleryBroker
from mulligan.workers.celery.broker.queue_depth import depths
from mulligan.workers.celery.factory import create_app
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.settings.model import Settings

PUBLICATION = Publication(entry=Entry.parse("a:p00-abc/1"), queue="attempt", priority=5)


class SilentServer:
    """Accepts connections and gives no answer: it closes each, or leaves it open."""

    def __init__(self, *, closes: bool) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._closes = closes
        self._open: list[socket.socket] = []
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                if self._closes:
                    connection.close()
                else:
                    self._open.append(connection)

    def close(self) -> None:
        self._listener.close()
        for connection in self._open:
            connection.close()


@contextmanager
def silent_broker(url: str, *, closes: bool) -> Iterator[tuple[SilentServer, Celery]]:
    with closing(SilentServer(closes=closes)) as server:
        address = url.replace("PORT", str(server.port))
        app = create_app(Settings(broker_url=address, ledger_url="redis://127.0.0.1:1"))
        app.conf.broker_connection_timeout = 0.2
        yield server, app


@pytest.mark.parametrize(
    ("url", "closes"),
    [
        ("amqp://guest:guest@127.0.0.1:PORT//", True),
        ("amqp://guest:guest@127.0.0.1:PORT//", False),
        ("redis://127.0.0.1:PORT/0", True),
    ],
)
def test_a_broker_that_is_away_is_asked_once(ledger: RedisLedger, url: str, closes: bool) -> None:
    """When ten messages are sent one after the other, then one connection is tried, and the next
    one only after some seconds."""
    clock = ManualClock()
    with silent_broker(url, closes=closes) as (server, app):
        broker = CeleryBroker(app, ledger, clock=replace(SYSTEM_CLOCK, monotonic=clock))
        for _ in range(10):
            with pytest.raises(BrokerAway):
                broker.send(PUBLICATION)
        with pytest.raises(BrokerAway):
            broker.send_batch([PUBLICATION, PUBLICATION])
        assert server.connections == 1
        clock.now += AWAY_SECONDS
        for _ in range(10):
            with pytest.raises(BrokerAway):
                broker.send(PUBLICATION)
        assert server.connections == 2


def test_the_sweep_asks_a_broker_that_is_away_once() -> None:
    with silent_broker("amqp://guest:guest@127.0.0.1:PORT//", closes=True) as (server, app):
        with pytest.raises(OperationalError):
            depths(app, ["attempt", "repair"])
        assert server.connections == 1


def test_threads_do_not_wait_for_the_one_that_asks(ledger: RedisLedger) -> None:
    """Given a broker that was away, when one thread asks whether it is back, then the others leave
    their messages to the sweep at once."""
    clock = ManualClock()
    with silent_broker("amqp://guest:guest@127.0.0.1:PORT//", closes=False) as (server, app):
        broker = CeleryBroker(app, ledger, clock=replace(SYSTEM_CLOCK, monotonic=clock))
        with pytest.raises(BrokerAway):
            broker.send(PUBLICATION)
        clock.now += AWAY_SECONDS
        threads = [threading.Thread(target=_send, args=(broker,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.connections == 2


def _send(broker: CeleryBroker) -> None:
    with suppress(BrokerAway):
        broker.send(PUBLICATION)


def test_a_broker_that_is_back_takes_messages_again(ledger: RedisLedger) -> None:
    """Given a broker that was away, when it is back, then the next message after some seconds is
    sent, and so are those that follow it."""
    clock = ManualClock()
    # Not tmp_path: the kernel allows 108 bytes for the path of a socket.
    with tempfile.TemporaryDirectory(prefix="mulligan-") as folder:
        server = RedisServer(Path(folder))
        app = create_app(Settings(broker_url=server.url))
        broker = CeleryBroker(app, ledger, clock=replace(SYSTEM_CLOCK, monotonic=clock))
        with pytest.raises(BrokerAway):
            broker.send(PUBLICATION)
        server.start()
        try:
            with pytest.raises(BrokerAway):
                broker.send(PUBLICATION)
            clock.now += AWAY_SECONDS
            broker.send(PUBLICATION)
            broker.send(PUBLICATION)
            assert depths(app, ["attempt"]) == {"attempt": 2}
        finally:
            server.kill()
