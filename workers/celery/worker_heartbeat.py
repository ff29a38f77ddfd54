"""A Celery worker's presence: what its beats say, and the file by which probes see it alive."""

from __future__ import annotations

import logging
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.worker import state
from kombu.exceptions import OperationalError

from mulligan.workers.celery.heartbeat import INTERVAL, Heartbeat, StallDetector
from mulligan.workers.celery.queue_depth import waiting
from mulligan.workers.celery.queues import CONTROL_QUEUE
from mulligan.workers.ledger.calls import RedisCalls, connect
from mulligan.workers.ledger.stores.beats import Beat, RedisBeats
from mulligan.workers.settings.model import Settings

if TYPE_CHECKING:
    from mulligan.workers.services import Services

log = logging.getLogger(__name__)

#: A beat that takes longer is given up: the file must stay fresh while Redis is out of reach.
_TIMEOUT = 5


class WorkerHeartbeat:
    """Follows the life of one worker by Celery's signals. Nothing is done before it is ready."""

    def __init__(self, settings: Settings, app: Celery) -> None:
        self._settings = settings
        self._app = app
        self._presence: Heartbeat | None = None
        self._draining = False
        self._sign: Path | None = None

    def ready(self, consumer: Any, services: Services) -> None:
        """The worker takes messages from now on."""
        if self._presence is not None:
            self._presence.leave()  # a solo worker was its own child until now
        queues = tuple(self._app.amqp.queues.consume_from)
        node = str(consumer.hostname)

        def describe() -> Beat:
            active = len(state.active_requests)
            # One that is shutting down takes nothing more: its free slots are nobody's.
            slots = active if self._draining else int(consumer.pool.num_processes)
            return _beat(node, services, slots=slots, active=active, queues=queues)

        stall_detector = StallDetector(
            broker_answers=self._broker_answers, ticked_at=time.monotonic()
        )
        consumer.timer.call_repeatedly(INTERVAL, lambda: stall_detector.tick(time.monotonic()))
        self._sign = liveness_file(self._settings, node)
        self._start(describe, stall_detector=stall_detector)

    def child_ready(self, node: str, services: Services) -> None:
        """A process of a prefork worker is up. Its parent counts slots; it counts round trips."""
        self._presence, self._sign = None, None  # what was inherited is the parent's
        self._start(lambda: _beat(node, services, slots=0, active=0), child=True)

    def shutting_down(self) -> None:
        """Called by a signal handler: no more than a note."""
        self._draining = True

    def gone(self) -> None:
        if self._presence is not None:
            self._presence.leave()
            self._presence = None
        if self._sign is not None:
            self._sign.unlink(missing_ok=True)

    def _start(
        self, describe: Any, *, stall_detector: StallDetector | None = None, child: bool = False
    ) -> None:
        def after() -> None:
            busy = len(state.active_requests) > 0
            if stall_detector is not None and stall_detector.is_deaf(time.monotonic(), busy=busy):
                log.error("this worker hears nothing though its broker answers; restart it")
            else:
                self._touch()

        calls = RedisCalls(connect(_hasty(self._settings.ledger or "")), patience=0.0, limits={})
        beats = RedisBeats(calls, prefix=self._settings.key_prefix)
        self._presence = Heartbeat(beats, describe, child=child, after=after)
        self._presence.start()

    def _touch(self) -> None:
        if self._sign is None:
            return
        try:
            self._sign.parent.mkdir(parents=True, exist_ok=True)
            self._sign.touch()
        except OSError as error:
            log.warning("no sign of life for probes: %s", error)
            self._sign = None

    def _broker_answers(self) -> bool:
        try:
            waiting(self._app, [CONTROL_QUEUE])
        except OperationalError:
            return False
        return True


def liveness_file(settings: Settings, node: str) -> Path:
    """The file that a worker touches with each beat; older than a minute, the worker is ill."""
    return settings.home / "alive" / node


def _beat(
    node: str, services: Services, *, slots: int, active: int, queues: tuple[str, ...] = ()
) -> Beat:
    return Beat(
        name=node,
        pool=node.partition("@")[0],
        host=socket.gethostname(),
        pid=os.getpid(),
        slots=slots,
        active=active,
        queues=queues,
        round_trips=services.ledger.round_trips,
    )


def _hasty(url: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}socket_timeout={_TIMEOUT}"
