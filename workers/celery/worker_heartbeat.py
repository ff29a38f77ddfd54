"""The heartbeat of a Celery worker: its beats, and the liveness file for probes."""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.worker import state
from kombu.exceptions import OperationalError

from mulligan.workers.celery.broker.queue_depth import waiting
from mulligan.workers.celery.broker.queues import CONTROL_QUEUE
from mulligan.workers.celery.heartbeat import INTERVAL, Heartbeat, StallDetector
from mulligan.workers.ledger.connection.calls import RedisCalls, connect
from mulligan.workers.ledger.stores.beats import Beat, RedisBeats
from mulligan.workers.liveness_file import LivenessFile
from mulligan.workers.settings.model import Settings

if TYPE_CHECKING:
    from mulligan.workers.services import Services

log = logging.getLogger(__name__)

#: Timeout of a beat in seconds, so that the file stays fresh while Redis is unreachable.
_TIMEOUT = 5


class WorkerHeartbeat:
    """Follows one worker by Celery's signals, from the moment it is ready."""

    def __init__(self, settings: Settings, app: Celery) -> None:
        self._settings = settings
        self._app = app
        self._heartbeat: Heartbeat | None = None
        self._draining = False
        self._liveness_file: LivenessFile | None = None

    def ready(self, consumer: Any, services: Services) -> None:
        """Start the beats of a worker that now takes messages."""
        queues = tuple(self._app.amqp.queues.consume_from)
        node = str(consumer.hostname)

        def describe() -> Beat:
            active = len(state.active_requests)
            # The free slots of a worker that is shutting down do not count.
            slots = active if self._draining else int(consumer.pool.num_processes)
            return _beat(node, services, slots=slots, active=active, queues=queues)

        stall_detector = StallDetector(
            broker_answers=self._broker_answers, ticked_at=time.monotonic()
        )
        consumer.timer.call_repeatedly(INTERVAL, lambda: stall_detector.tick(time.monotonic()))
        self._liveness_file = LivenessFile(home=self._settings.home, name=node)
        self._start(describe, stall_detector=stall_detector)

    def child_ready(self, node: str, services: Services) -> None:
        """Start the beats of a prefork worker's process, which report only its round trips."""
        self._heartbeat, self._liveness_file = None, None  # inherited from the parent
        self._start(lambda: _beat(node, services, slots=0, active=0), child=True)

    def shutting_down(self) -> None:
        """Set a flag, because this runs in a signal handler."""
        self._draining = True

    def gone(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.leave()
            self._heartbeat = None
        if self._liveness_file is not None:
            self._liveness_file.remove()

    def _start(
        self, describe: Any, *, stall_detector: StallDetector | None = None, child: bool = False
    ) -> None:
        def after() -> None:
            if stall_detector is None:
                return
            busy, now = len(state.active_requests) > 0, time.monotonic()
            if stall_detector.is_stalled(now, busy=busy):
                log.error("This worker receives nothing although its broker answers. Restart it.")
            else:
                self._write_liveness(self._unready(stall_detector, now, busy=busy))

        url = self._settings.ledger or ""
        url += f"{'&' if '?' in url else '?'}socket_timeout={_TIMEOUT}"
        calls = RedisCalls(connect(url), patience=0.0, limits={})
        beats = RedisBeats(calls, prefix=self._settings.key_prefix)
        self._heartbeat = Heartbeat(beats, describe, child=child, after=after)
        self._heartbeat.start()

    def _unready(self, stall_detector: StallDetector, now: float, *, busy: bool) -> str:
        """Return why this worker cannot take and do work; empty if it can."""
        if self._draining:
            return "it is shutting down"
        if self._heartbeat is not None and self._heartbeat.unreachable:
            return "its ledger cannot be reached"
        return stall_detector.deafness(now, busy=busy)

    def _write_liveness(self, problem: str) -> None:
        if self._liveness_file is None:
            return
        try:
            self._liveness_file.write(problem)
        except OSError as error:
            log.warning("The liveness file for probes cannot be written: %s", error)
            self._liveness_file = None

    def _broker_answers(self) -> bool:
        try:
            waiting(self._app, [CONTROL_QUEUE])
        except OperationalError:
            return False
        return True


def _beat(
    node: str, services: Services, *, slots: int, active: int, queues: tuple[str, ...] = ()
) -> Beat:
    wait = services.ledger.calls.waits.longest()
    return Beat(
        name=node,
        pool=node.partition("@")[0],
        host=socket.gethostname(),
        pid=os.getpid(),
        slots=slots,
        active=active,
        queues=queues,
        round_trips=services.ledger.round_trips,
        waiting=wait.calls if wait else 0,
        waiting_reason=wait.reason if wait else "",
        release=services.ledger.schema.release,
        reads_schema=services.ledger.schema.number,
    )
