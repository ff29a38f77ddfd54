"""The request of a user's task, in the parent process of a worker."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery.app.task import Context
from celery.exceptions import Ignore, Retry, TimeLimitExceeded
from celery.utils.saferepr import saferepr
from celery.worker import state

from mulligan.tasks.ports.errors import StoreUnavailable
from mulligan.tasks.ports.ledger import ClaimRefused, Publication
from mulligan.tasks.user_tasks.user_task import DeliveryResult, settle_killed_task
from mulligan.workers.celery.broker.celery_broker import FIRST_HEADER
from mulligan.workers.celery.broker.queues import ATTEMPT_QUEUE
from mulligan.workers.celery.redacted_request import RedactedRequest
from mulligan.workers.celery.state_task import Escalated
from mulligan.workers.user_tasks.canvas_task import IN_PARENT
from mulligan.workers.user_tasks.installed_app import installed

log = logging.getLogger(__name__)


class RepairingRequest(RedactedRequest):
    """Settles the attempt of a process that Celery kills at the hard time limit.

    Celery itself would report a failure to the caller, who would not see the attempts that follow.
    """

    def on_timeout(self, soft: bool, timeout: float) -> None:
        if soft or self.task.mode == "observe" or state.should_terminate:
            super().on_timeout(soft, timeout)
            return
        state.task_ready(self)
        log.error("Hard time limit (%gs) exceeded for %s[%s]", timeout, self.name, self.id)
        # In a thread, because the worker does nothing else while this waits for the ledger.
        threading.Thread(target=self._settle, args=(timeout,), daemon=True).start()
        self.acknowledge()

    def on_failure(self, exc_info: Any, *args: Any, **options: Any) -> Any:
        """Leave a hard time limit to `on_timeout`, which Celery calls, too."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)  # billiard may wrap it
        if isinstance(error, TimeLimitExceeded) and self.task.mode != "observe":
            return None
        with self._delivery():
            return super().on_failure(exc_info, *args, **options)

    def revoked(self) -> bool:
        """Whether it was revoked by its own id or by the first one, which the caller knows."""
        if self._context.get(FIRST_HEADER) in state.revoked:
            state.revoked.add(self.id)
        return bool(super().revoked())

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        with self._delivery():
            super()._announce_revoked(reason, terminated, signum, expired)
        # What started before it expired goes on: this may be a second delivery.
        if not expired and self.task.mode != "observe":
            threading.Thread(target=self._cancel, args=(reason,), daemon=True).start()

    @contextmanager
    def _delivery(self) -> Iterator[None]:
        """Let the task know its message, so that results are those of the first one."""
        self.task.request_stack.push(Context({**vars(self._context), IN_PARENT: True}))
        try:
            yield
        finally:
            self.task.request_stack.pop()

    def _cancel(self, reason: str) -> None:
        """End the job, which the sweep would otherwise send again."""
        task = self.task
        with self._delivery():
            services = installed(task.app).services
            entry = task.entry_of_request(services)
            try:
                services.ledger.cancel(entry.job_id, detail=f"{reason} in Celery", signalled=True)
            except StoreUnavailable as error:
                log.error("%s[%s] is not cancelled: %s", self.name, self.id, error)  # noqa: TRY400 - not a bug, so no traceback

    def _settle(self, timeout: float) -> None:
        task = self.task
        task.request_stack.push(self._context)
        try:
            services = installed(task.app).services
            entry = task.entry_of_request(services)
            worker = f"{socket.gethostname()}:{self.worker_pid}"
            outcome = settle_killed_task(services.context, entry, worker=worker, seconds=timeout)
            if isinstance(outcome, ClaimRefused) and services.ledger.job(entry.job_id) is None:
                super().on_timeout(False, timeout)  # it never began
                return
            if outcome == ClaimRefused("finished"):
                # It was killed while it reported. Its message reports again what follows it.
                services.publish([Publication(entry, ATTEMPT_QUEUE, 0)])
                return
            task.answer(services, entry, DeliveryResult(outcome))
        except Ignore:
            pass  # it was settled before, or its lease expires
        except Retry as retry:
            self.send_event("task-retried", exception=saferepr(retry.exc), traceback="")
        except Escalated as error:
            task.backend.mark_as_failure(
                self.id, error, request=self._context, store_result=self.store_errors
            )
            self.send_event("task-failed", exception=saferepr(error), traceback="")
        except StoreUnavailable as error:
            log.error("%s[%s] runs again when its lease has expired: %s", self.name, self.id, error)  # noqa: TRY400 - not a bug, so no traceback
        finally:
            task.request_stack.pop()
