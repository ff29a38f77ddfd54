"""`install(app)` and `RepairingTask`: mulligan's repairs for the tasks of any Celery app."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar

from celery import Celery, Task
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from celery.utils.time import maybe_make_aware

from mulligan.policies.jobs.job import Job, PolicySpec, RunnerSpec, VerifierSpec
from mulligan.policies.repair.instruction import RepairInstruction
from mulligan.tasks.jobs.context import AttemptContext
from mulligan.tasks.jobs.outcome import Requeued
from mulligan.tasks.jobs.recheck import run_recheck
from mulligan.tasks.jobs.settle import Settled
from mulligan.tasks.ports.errors import BadInput, TransportFault, refuse
from mulligan.tasks.ports.ledger import ClaimRefused, Entry, NextAttempt, Submission
from mulligan.tasks.ports.verifiers import Verifier
from mulligan.tasks.user_tasks.reported_usage import ReportedUsage
from mulligan.tasks.user_tasks.task_route import KIND, TaskRoute
from mulligan.tasks.user_tasks.user_task import (
    OBSERVED,
    DeliveryResult,
    PreviousAttempt,
    Scored,
    TaskDelivery,
    TimeLimitReached,
    answer_of,
    correct,
    run_user_task,
)
from mulligan.workers.celery.broker.celery_broker import ENTRY_HEADER
from mulligan.workers.celery.flower_format import describe
from mulligan.workers.celery.state_task import Escalated
from mulligan.workers.services import Services
from mulligan.workers.settings.model import Settings
from mulligan.workers.user_tasks.canvas_task import CanvasTask, Replaced
from mulligan.workers.user_tasks.installed_app import InstalledApp, installed, settings_of
from mulligan.workers.user_tasks.messages import (
    describe_arguments,
    keep_arguments,
    keep_following,
    queue_of,
    refuse_large,
)
from mulligan.workers.user_tasks.task_options import (
    long_limits,
    refuse_bad_options,
    task_type_of,
    use_app_defaults,
)
from mulligan.workers.user_tasks.transport_errors import transport_fault
from mulligan.workers.user_tasks.usage import read_usage
from mulligan.workers.user_tasks.verifier_specs import Check, as_name, build_checks
from mulligan.workers.verifiers.json_text import repair_json_text

_SIGNALS = (Ignore, Reject, Retry)
#: How often an eager task is called while a server is away: there is no queue to wait in.
_EAGER_TRIES = 3


class RetryWithoutError(Exception):
    """A task called `self.retry` outside an exception handler and without an error."""


class RetryCalled(Retry):  # type: ignore[misc] # celery is untyped
    """`self.retry` of an enforced task. A Retry, because users' handlers re-raise it."""

    def __init__(self, failure: Exception, *, wait: float | None) -> None:
        super().__init__(exc=failure)
        self.failure = failure
        #: The seconds that the task asked to wait, which count after a transport error.
        self.wait = wait


class UnreadableError(Exception):
    """An observed task raised an exception of which Celery cannot read an attribute."""


class JobCancelled(Exception):
    """A person cancelled the job of a task."""


class RepairingTask(CanvasTask):
    """The base of a user's task: `@app.task(base=RepairingTask, verifiers=[Person])`.

    The function may take ``self`` first, with or without ``bind=True``.
    """

    abstract = True
    ignore_result = False
    #: Applies while a task is only observed; refused where mulligan retries.
    max_retries = Task.max_retries
    retry_on_worker_lost = False
    throws = (*CanvasTask.throws, JobCancelled)
    #: As text, so that a producer need not import a worker.
    Request = "mulligan.workers.user_tasks.repairing_request:RepairingRequest"

    verifiers: ClassVar[Sequence[Check]] = ()
    task_type: ClassVar[str | None] = None
    policy: ClassVar[PolicySpec | Mapping[str, Any]] = PolicySpec()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        app, run = vars(cls).get("app"), vars(cls).get("run")
        if not isinstance(app, Celery):
            return  # a base class of the user: its options are checked at registration
        refuse_bad_options(cls, RepairingTask, settings_of(app))
        if isinstance(run, staticmethod) and _takes_self(run.__func__):
            # Keep Celery's check of arguments from counting ``self``.
            cls.__header__ = app.type_checker(run.__func__, bound=True)

    @classmethod
    def bind(cls, app: Celery) -> Celery:
        if "app" not in vars(cls):
            refuse_bad_options(cls, RepairingTask, settings_of(app))
        if cls.mode == "observe":
            use_app_defaults(cls, RepairingTask)
        bound = super().bind(app)
        # Celery has now filled in the limits of the app.
        cls._refuse_long_limits(settings_of(app), cls.time_limit, cls.soft_time_limit)
        return bound

    @classmethod
    def _refuse_long_limits(cls, settings: Settings, hard: object, soft: object) -> None:
        if cls.mode != "observe":
            refuse(long_limits(settings, hard, soft))

    def correct(self, prompt: str) -> str:
        """Return the prompt, unchanged in the first attempt and corrected in a retry."""
        previous = self._previous()
        if previous is None:
            return prompt
        return correct(prompt, self._job(RunnerSpec(kind=KIND)), previous)

    @property
    def repair(self) -> RepairInstruction | None:
        """The instruction that repairs the last failure; None in the first attempt."""
        previous = self._previous()
        return previous.instruction if previous is not None else None

    @property
    def previous_answer(self) -> str | None:
        """What the previous attempt answered, as text; None if that is not known."""
        previous = self._previous()
        return (previous.answer or None) if previous is not None else None

    def report_usage(self, usage: Any, *, model: str | None = None) -> None:
        """Report the tokens of a call to a model. Several calls in one attempt add up.

        ``usage``: a mapping or an SDK's object with ``prompt_tokens`` and ``completion_tokens`` (or
        ``input_tokens`` and ``output_tokens``), or ``total_tokens``; None if it is not known.
        """
        if model is not None and not isinstance(model, str):
            raise TypeError(f"report_usage: model is a name, not a {type(model).__name__}")
        if usage is not None and not self.request.called_directly:
            self.request.update(mulligan_usage=self._reported().plus(read_usage(usage), model))

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: Any = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        **options: Any,
    ) -> Any:
        """Retry as Celery does if observed. If enforced, fail; the policy decides what follows."""
        if self.mode == "observe" or self.request.called_directly:
            return super().retry(args, kwargs, exc, throw, eta, countdown, **options)
        failure = exc if isinstance(exc, Exception) else sys.exception()
        if not isinstance(failure, Exception):
            failure = RetryWithoutError("the task asked to be run again")
        if countdown is None and eta is not None:
            countdown = (maybe_make_aware(eta) - datetime.now(UTC)).total_seconds()
        raise RetryCalled(failure, wait=countdown)

    def apply_async(self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        limits = options.get("time_limit"), options.get("soft_time_limit")
        self._refuse_long_limits(settings_of(self.app), *limits)
        shapes = {"argsrepr": describe(args or ()), "kwargsrepr": describe(kwargs or {})}
        return super().apply_async(args, kwargs, *more, **{**shapes, **options})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.request.called_directly:
            return self._function(*args, **kwargs)
        services = installed(self.app).services
        entry = self._entry(services, args, kwargs)
        context = self._context(services)
        if entry.kind == "cycle":
            return self.report(entry, run_recheck(context, entry))
        if self.mode == "observe":
            return self._observe(context, self._delivery(services, entry, args, kwargs))
        requeued = 0
        while True:
            try:
                result = self._run_attempt(context, self._delivery(services, entry, args, kwargs))
            except Replaced as replaced:
                return replaced.result.get()
            if self.request.is_eager and isinstance(result.outcome, Requeued):
                requeued += 1
                self._end_after_faults(services, entry, result, requeued)
                continue
            next_attempt = _next_attempt(result)
            if next_attempt is None or not self.request.is_eager:
                return self.answer(services, entry, result)
            entry = Entry("attempt", entry.job_id, next_attempt)

    def _run_attempt(self, context: AttemptContext, delivery: TaskDelivery) -> DeliveryResult:
        try:
            return run_user_task(context, delivery)
        except SoftTimeLimitExceeded as error:  # while it was checked or stored
            raise Ignore("another worker goes on when the lease has expired") from error

    def _end_after_faults(
        self, services: Services, entry: Entry, result: DeliveryResult, requeued: int
    ) -> None:
        """Raise the error of an eager task that was called again often enough."""
        if requeued < _EAGER_TRIES:
            return
        detail = "an eager task does not wait for a server"
        services.ledger.cancel(entry.job_id, detail=detail, signalled=True)
        raise result.error or Escalated("a verifier reached no verdict")

    def _context(self, services: Services) -> AttemptContext:
        """Return the context with this task's verifiers.

        An eager task publishes nothing, and is run again without a wait.
        """
        checks = self._checks()

        def verifier(spec: VerifierSpec) -> Verifier:
            found = next((built for known, built in checks if known == spec), None)
            return found or services.context.verifier(spec)

        context = replace(services.context, verifier=verifier)
        if not self.request.is_eager:
            return context
        return replace(context, publish=lambda _: None, backoff_base=0.0)

    def _observe(self, context: AttemptContext, delivery: TaskDelivery) -> Any:
        """Run the task as often as the app sends it, and record it if the ledger allows.

        A message that was recorded before, or whose task type is paused, is not recorded.
        """
        result = run_user_task(context, delivery)
        if result.outcome == OBSERVED:
            if result.error is not None:
                raise reportable(result.error)
            return result.value
        try:
            value = delivery.call(None)
        except Exception as error:
            if (shown := reportable(error)) is error:
                raise
            raise shown from None
        return value.output if isinstance(value, Scored) else value

    def answer(self, services: Services, entry: Entry, result: DeliveryResult) -> Any:
        """Return the value of a success; report any other outcome."""
        if result.outcome == ClaimRefused("finished"):
            return self._repeat_result(services, entry)
        if isinstance(result.outcome, Settled) and result.outcome.verdict.success:
            return result.value
        outcome = result.outcome
        if isinstance(outcome, Requeued) and result.error is not None:
            # Flower shows the reason, and an error of a library may quote a key in an address.
            outcome = replace(outcome, reason=type(result.error).__name__)
        return self.report(entry, outcome)

    def _repeat_result(self, services: Services, entry: Entry) -> Any:
        """Return the stored result for a message that is delivered again after the end: its first
        worker may have died before it could report, or the job ended outside a delivery."""
        view = services.ledger.job(entry.job_id)
        if view is None or entry.attempt != len(view.attempts) or self.was_reported():
            raise Ignore
        if view.state == "escalated":
            raise Escalated(f"{view.reason}: {view.detail}")
        if (view.state, view.reason) == ("cancelled", "cancelled"):
            raise JobCancelled(view.detail)
        output, verdict = view.attempts[-1].output, view.attempts[-1].verdict
        if output is None or verdict is None or view.state != "succeeded":
            raise Ignore
        return answer_of(output, verdict.results, repair_json_text)

    def _function(self, *args: Any, **kwargs: Any) -> Any:
        if inspect.ismethod(self.run) or not _takes_self(self.run):
            return self.run(*args, **kwargs)
        return self.run(self, *args, **kwargs)

    def entry_of_request(self, services: Services) -> Entry:
        """Return the entry of the current message, whose job may not be in the ledger yet."""
        header, retries = self.request.get(ENTRY_HEADER), self.request.retries
        if header and not retries:
            return Entry.parse(str(header))
        root_id = f"{self.request.id}/{retries}" if retries else str(self.request.id)
        if self.request.replaced_task_nesting:  # it has the id of the task that it replaces
            root_id += f"/replaced-{self.request.replaced_task_nesting}"
        job_id = services.ledger.user_task_id(root_id)
        return Entry("attempt", job_id, 1)

    def _entry(self, services: Services, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Entry:
        entry = self.entry_of_request(services)
        if self.request.get(ENTRY_HEADER) and not self.request.retries:
            return entry
        route = TaskRoute(
            task=self.name,
            queue=queue_of(self.app, self.request.delivery_info or {}),
            root=self.request.id,
            mode=self.mode,
            following={} if self.mode == "observe" else keep_following(self.request),
            **self._arguments(args, kwargs),
        )
        size = len(route.model_dump_json(include={"args", "kwargs", "following"}))
        refuse_large({"arguments": size}, cap=services.settings.prompt_cap)
        submission = Submission(id=entry.job_id, job=self._job(route.runner))
        (accepted,) = services.ledger.accept([submission])
        return Entry("attempt", accepted.id, 1)

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments for a retry. An observed task has none: shapes are enough."""
        try:
            return keep_arguments(args, kwargs)
        except BadInput:
            if self.mode != "observe":
                raise
            return describe_arguments(args, kwargs)

    def _job(self, runner: RunnerSpec) -> Job:
        return Job.model_validate(
            {
                "task_type": task_type_of(self, self.name),
                "name": as_name(self.name),
                "prompt": f"the task {self.name}",
                "runner": runner,
                "verifiers": [spec for spec, _ in self._checks()],
                "policy": self.policy,
                "labels": {"mode": self.mode},
            }
        )

    def _delivery(
        self, services: Services, entry: Entry, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TaskDelivery:
        wait: float | None = None

        def call(previous: PreviousAttempt | None) -> Any:
            nonlocal wait
            self.request.update(mulligan_before=previous, mulligan_usage=None)
            self.mark_running(entry.attempt)
            try:
                return self._function(*args, **kwargs)
            except RetryCalled as called:
                wait = called.wait
                raise called.failure  # noqa: B904 - keeps its own cause
            except SoftTimeLimitExceeded as error:
                if self.mode == "observe":
                    raise
                raise TimeLimitReached(self._time_limits()[1]) from error

        def fault_of(error: Exception) -> TransportFault | None:
            fault = transport_fault(error, wait=wait)
            if fault is not None and self.request.is_eager:
                fault.retry_after = None
            return fault

        return TaskDelivery(
            entry=entry,
            call=call,
            enforce=self.mode != "observe",
            signals=_SIGNALS,
            redelivery_delay=_redelivery_delay,
            transport_fault=fault_of,
            reported=self._reported,
            deadline=min(self._time_limits()[0] or math.inf, services.settings.hard_limit),
        )

    def _time_limits(self) -> tuple[float | None, float | None]:
        """Return the hard and the soft limit of this run; a message may have its own."""
        hard, soft = self.request.timelimit or (None, None)
        return hard or self.time_limit, soft or self.soft_time_limit

    def _previous(self) -> PreviousAttempt | None:
        found = self.request.get("mulligan_before")
        return found if isinstance(found, PreviousAttempt) else None

    def _reported(self) -> ReportedUsage:
        found = self.request.get("mulligan_usage")
        return found if isinstance(found, ReportedUsage) else ReportedUsage()

    def _checks(self) -> list[tuple[VerifierSpec, Verifier]]:
        return build_checks(self.verifiers, installed(self.app).services.verifiers)


def reportable(error: Exception) -> Exception:
    """Return an exception that Celery can report to the caller, who would wait for ever else."""
    try:
        getattr(error, "an_attribute_that_is_missing", None)
    except Exception as problem:  # any of the user's
        name, why = type(error).__name__, type(problem).__name__
        return UnreadableError(f"the task raised {name}, whose attributes raise {why} when read")
    return error


def _takes_self(function: Callable[..., Any]) -> bool:
    return next(iter(inspect.signature(function).parameters), None) == "self"


def _redelivery_delay(signal: BaseException) -> float | None:
    """When the same message comes again: at once if rejected into its queue, else never.

    The message of a Retry counts Celery's retries, and so starts a new job.
    """
    return 0.0 if isinstance(signal, Reject) and signal.requeue else None


def _next_attempt(result: DeliveryResult) -> int | None:
    then = result.outcome.then if isinstance(result.outcome, Settled) else None
    return then.plan.number if isinstance(then, NextAttempt) else None


def install(app: Celery, **settings: Any) -> None:
    """Give a Celery app the ledger, the sweep and a repair lane for each of its queues.

    Settings are those of mulligan.toml and MULLIGAN_…; the broker is the app's. The app may be
    configured before or after.
    """
    InstalledApp(app, settings).attach()
