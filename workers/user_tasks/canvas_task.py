"""A task whose chain, chord and links follow the attempt that settles it.

Celery sends what follows a task when its tracer sees a success or a failure. So a retry's message
repeats the options of the first one, and its result is the first one's.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar, NoReturn

from celery.app.task import get_actual_ignore_result
from celery.backends.redis import RedisBackend
from celery.exceptions import Ignore
from celery.states import READY_STATES, RETRY, STARTED

from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.user_tasks.task_route import TaskMode
from mulligan.workers.celery.broker.celery_broker import FIRST_HEADER
from mulligan.workers.celery.state_task import Corrected, StateTask
from mulligan.workers.user_tasks.first_message_backend import FirstMessageBackend, patient
from mulligan.workers.user_tasks.installed_app import settings_of
from mulligan.workers.user_tasks.messages import FOLLOWING, refuse_to_send

#: The mark of a request that the parent process of a worker handles, which must not wait.
IN_PARENT = "mulligan_in_parent"


class Replaced(Ignore):  # type: ignore[misc] # celery is untyped
    """An inline task replaced itself. Like Celery's Ignore, but the replacement has a result."""

    def __init__(self, result: Any) -> None:
        super().__init__("Replaced by new task")
        self.result = result


class CanvasTask(StateTask):
    """The part of a user's task that concerns its canvas."""

    abstract = True
    mode: ClassVar[TaskMode] = "enforce"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        given = vars(cls).get("backend", cls.backend)
        if not isinstance(given, property):  # the option would replace the property
            cls._backend = given
            del cls.backend

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: Any = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: Any = None,
        **options: Any,
    ) -> Any:
        """Send the task. Raises BadInput for what its retries could not carry."""
        links = {"link": link, "link_error": link_error}
        if self.mode != "observe":
            given = {**options, **links}
            refuse_to_send(
                args or (),
                kwargs or {},
                {name: given[name] for name in FOLLOWING if given.get(name)},
                serializer=options.get("serializer") or self.serializer,
                cap=settings_of(self.app).prompt_cap,
            )
        return super().apply_async(
            args, kwargs, task_id, producer, **links, shadow=shadow, **options
        )

    def map(self, it: Any) -> Any:
        return super().map(it) if self.mode == "observe" else self._refuse("map")

    def starmap(self, it: Any) -> Any:
        return super().starmap(it) if self.mode == "observe" else self._refuse("starmap")

    def chunks(self, it: Any, n: int) -> Any:
        return super().chunks(it, n) if self.mode == "observe" else self._refuse("chunks")

    def _refuse(self, method: str) -> NoReturn:
        raise BadInput(
            f"{method}: Celery calls {self.name} as a plain function there, so no answer would be"
            " checked or repaired; send a group of its signatures"
        )

    @property
    def backend(self) -> Any:
        """The result backend. In a delivery, it stores the results of the first message."""
        request = self.request
        if self.mode == "observe" or request.is_eager or request.id is None:
            return self._results
        waits = not request.get(IN_PARENT)
        return FirstMessageBackend(self._results, self._first_id, waits=waits)

    @backend.setter
    def backend(self, value: Any) -> None:
        self._backend = value

    @property
    def _results(self) -> Any:
        return self._backend or self.app.backend

    @property
    def _first_id(self) -> str:
        return str(self.request.get(FIRST_HEADER) or self.request.id)

    def mark_running(self, attempt: int) -> None:
        """Store that a claimed attempt runs: RETRY, or STARTED if the task or app asks for it."""
        request = self.request
        if self.mode == "observe" or request.is_eager or get_actual_ignore_result(self, request):
            return
        with suppress(Exception):  # a backend that is away now may be back at the end
            if attempt > 1:
                self.backend.mark_running(Corrected(f"attempt {attempt} runs"), RETRY, request)
            elif self.track_started:
                self.backend.mark_running({"hostname": request.hostname}, STARTED, request)

    def was_reported(self) -> bool:
        """Whether the result is stored. Celery stores it after it has sent what follows.

        A chord is counted after that, and Redis counts a repeated part once.
        """
        # Results of rpc:// are the caller's messages, and without a backend there are none.
        if self.request.is_eager or not hasattr(self._results, "_get_task_meta_for"):
            return False
        if self.request.chord and isinstance(self._results, RedisBackend):
            return False
        return patient(self._results.get_state)(self._first_id) in READY_STATES

    def replace(self, sig: Any) -> Any:
        """Replace the task as Celery does. What replaces a retry has the first message's id."""
        self.request.id = self._first_id
        return super().replace(sig)

    def on_replace(self, sig: Any) -> Any:
        if self.mode == "observe" or not self.request.is_eager:
            return super().on_replace(sig)
        raise Replaced(sig.apply())
