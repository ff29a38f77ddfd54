"""Celery's consumer, which no message ends: what cannot be read leaves its queue for a record.

`worker_consumer` names it, in mulligan's workers and in those of an app with `install`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from celery import signals
from celery.utils.objects import Bunch
from celery.worker import state
from celery.worker.consumer import Consumer

from mulligan.workers.celery.broker.guarded_transport import REFUSE, UNPARSED_HEADER, guarded
from mulligan.workers.celery.broker.message_checks import (
    MALFORMED,
    UnreadableMessage,
    check_task_message,
)
from mulligan.workers.celery.broker.queues import SUBMIT_TASK
from mulligan.workers.celery.refused_messages import RefusedMessages

log = logging.getLogger(__name__)

#: The attribute of an app with its `MessageGuard`.
_ATTRIBUTE = "mulligan_guard"
#: The consumer of an app that names none.
_DEFAULT = "celery.worker.consumer:Consumer"


@dataclass(frozen=True, kw_only=True)
class MessageGuard:
    """What the consumer of an app needs to know."""

    refused: RefusedMessages
    #: The maximum size of a body; None: any.
    cap: int | None = None


def guard_worker(app: Any, guard: MessageGuard, consumer: type[GuardedConsumer]) -> None:
    """Let the workers of an app use a guarded consumer, unless the app has one of its own."""
    setattr(app, _ATTRIBUTE, guard)
    if app.conf.worker_consumer == _DEFAULT:
        app.conf.worker_consumer = f"{consumer.__module__}:{consumer.__name__}"


class GuardedConsumer(Consumer):  # type: ignore[misc] # celery is untyped
    """The consumer of a user's app. Unknown tasks are reported as Celery does it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._guard_pool()

    def _guard_pool(self) -> None:
        """Refuse what a pool of processes cannot be sent, when a process is free for it."""
        controller = self.controller
        process = controller._process_task

        def process_task(request: Any) -> None:
            try:
                process(request)
            except MALFORMED as error:
                controller._quick_release()
                self.refuse(request.message, _unexpected(error))

        controller._process_task = process_task

    def connection_for_read(self, heartbeat: float | None = None) -> Any:
        connection = self.app.connection_for_read(heartbeat=heartbeat)
        find = connection.get_transport_cls
        connection.get_transport_cls = lambda: guarded(find())
        setattr(connection, REFUSE, self._record)
        return self.ensure_connected(connection)

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        handle = super().create_task_handler(*args, **options)

        def on_task_received(message: Any) -> Any:
            try:
                self.check(message)
                return handle(message)
            except UnreadableMessage as error:
                return self.refuse(message, str(error))
            except self.connection_errors as error:
                # kombu counts KeyError among them. The broker has none.
                if not isinstance(error, KeyError):
                    raise
                return self.refuse(message, _unexpected(error))
            except MALFORMED as error:
                return self.refuse(message, _unexpected(error))

        return on_task_received

    def check(self, message: Any) -> None:
        """Raise UnreadableMessage if Celery must not see the message."""
        if problem := message.headers.get(UNPARSED_HEADER):
            raise UnreadableMessage(f"its headers cannot be parsed ({problem})")
        cap, size = self._guard.cap, len(message.body or "")
        if cap is not None and size > cap:
            raise UnreadableMessage(f"its body has more than {cap:,} bytes (message_cap)")
        check_task_message(message)

    def refuse(self, message: Any, reason: str) -> None:
        """Record a message and take it off its queue, for the broker's dead letters if any."""
        self._forget(message, reason)
        if not message.acknowledged:
            message.reject_log_error(log, self.connection_errors)
        self._tell_caller(message, reason)

    def _tell_caller(self, message: Any, reason: str) -> None:
        """Let whoever waits for the result know, as Celery does for an unknown task."""
        headers = message.headers
        task_id = headers.get("id") if isinstance(headers, Mapping) else None
        if not isinstance(task_id, str | UUID):
            return
        properties = message.properties or {}
        context = Bunch(
            name=str(headers.get("task")),
            chord=None,
            root_id=None,
            errbacks=None,
            correlation_id=properties.get("correlation_id"),
            reply_to=properties.get("reply_to"),
        )
        try:
            error = UnreadableMessage(f"the message was refused: {reason}")
            self.app.backend.mark_as_failure(str(task_id), error, request=context)
        except Exception as error:  # a backend that is away must not end the worker
            log.warning("The result of a refused message is not stored: %s", type(error).__name__)

    def _forget(self, message: Any, reason: str) -> None:
        for request in tuple(state.reserved_requests):
            if request.message is message:  # it would keep its slot
                state.task_ready(request)
        delivery = getattr(message, "delivery_info", None) or {}
        self._record(str(delivery.get("routing_key"))[:200], reason, message)

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Acknowledge a message. It may be a remote control command, which cannot be rejected."""
        reason = str(exc) if isinstance(exc, UnreadableMessage) else _unexpected(exc)
        self._forget(message, reason)
        if not message.acknowledged:
            message.ack_log_error(log, self.connection_errors)
        self._tell_caller(message, reason)

    def on_unknown_message(self, body: Any, message: Any) -> None:
        del body
        self.refuse(message, "it names no task")
        signals.task_rejected.send(sender=self, message=message, exc=None)

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:
        del body
        self.refuse(message, _unexpected(exc))
        signals.task_rejected.send(sender=self, message=message, exc=exc)

    def _record(self, queue: str, reason: str, message: Any) -> None:
        self._guard.refused.note(queue, reason, message)

    @property
    def _guard(self) -> MessageGuard:
        guard: MessageGuard = getattr(self.app, _ATTRIBUTE)
        return guard


class HintConsumer(GuardedConsumer):
    """The consumer of mulligan's own workers, whose messages are hints and submissions."""

    def _tell_caller(self, message: Any, reason: str) -> None:
        """Nobody waits for the result of a hint."""

    def check(self, message: Any) -> None:
        super().check(message)
        headers = message.headers
        if headers.get("eta") is not None and headers.get("task") != SUBMIT_TASK:
            # A worker would keep it in its memory until then.
            raise UnreadableMessage("it has an ETA, which only submissions may have")

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        del body, exc
        self.refuse(message, "it names an unknown task")


def _unexpected(error: BaseException) -> str:
    """Name an error without its text, which may quote the message."""
    return f"it cannot be handled ({type(error).__name__})"
