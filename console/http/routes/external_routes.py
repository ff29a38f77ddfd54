"""Work done elsewhere: the next task of a subject, and the attempts it reports."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from mulligan.console.http.access import Caller, needs
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import HttpError, errors, not_found
from mulligan.console.http.routes.job_routes import visible_job
from mulligan.policies.cycles.cycle import PROTOCOL_VERSION, CycleStatus
from mulligan.policies.cycles.delayed import SAME_FORMULATION, suggested
from mulligan.policies.failures.failure import Finding
from mulligan.policies.jobs.job import Name, Seconds, Usage
from mulligan.tasks.external.lane import (
    ExternalTask,
    NotCounted,
    ReportedAttempt,
    next_task,
    parse_token,
    record_attempt,
    report_attempt,
)
from mulligan.tasks.ports.ledger import ClaimRefused, JobView

Producer = Annotated[Caller, Depends(needs("producer"))]
#: What tells an attempt by itself from one that was claimed.
_OF_ITS_OWN = ("subject", "task_type", "labels", "system", "delayed_verification", "policy")


class ReportedError(BaseModel):
    """One thing that is wrong with an answer."""

    model_config = ConfigDict(extra="forbid")

    message: str = Field(min_length=1, max_length=2000)
    path: str | None = Field(default=None, max_length=500)
    code: str | None = Field(default=None, max_length=100)


class AttemptReport(BaseModel):
    """An attempt that was made elsewhere: one of its own, or with a token the one it was for."""

    model_config = ConfigDict(extra="forbid")

    #: What came with the task; without it, this is a first attempt of a new job.
    token: str | None = Field(default=None, max_length=400)
    subject: Name | None = None
    task_type: Name | None = None
    prompt: str | None = Field(default=None, min_length=1)
    system: str | None = None
    labels: dict[str, str] | None = Field(default=None, max_length=50)
    policy: dict[str, Any] | None = None
    delayed_verification: dict[str, Any] | None = None
    idempotency_key: str | None = Field(default=None, min_length=1, max_length=500)
    answer: str = ""
    score: float | None = Field(default=None, ge=0, le=100, allow_inf_nan=False)
    #: What was wrong, in words: it becomes part of the corrected prompt.
    feedback: str = Field(default="", max_length=10_000)
    findings: list[ReportedError] = Field(default_factory=list, max_length=200)
    #: For a delayed verification: the family of the task it was shown with.
    task_family: Name | None = None
    seconds: Annotated[Seconds, Field(le=1e7)] = 0.0
    usage: Usage = Usage()
    model: str | None = Field(default=None, max_length=200)

    @model_validator(mode="after")
    def _one_of_two(self) -> AttemptReport:
        if self.token is None:
            missing = [name for name in ("subject", "task_type", "prompt", "score")
                       if getattr(self, name) is None]  # fmt: skip
            if missing:
                raise ValueError(f"without a token, give {', '.join(missing)}")
        elif given := [name for name in _OF_ITS_OWN if getattr(self, name) is not None]:
            raise ValueError(f"with a token, {', '.join(given)} are the task's own: leave them out")
        return self

    def report(self) -> ReportedAttempt:
        return ReportedAttempt(
            score=self.score,
            answer=self.answer,
            findings=[Finding(**each.model_dump()) for each in self.findings],
            feedback=self.feedback,
            prompt=self.prompt,
            task_family=self.task_family,
            seconds=self.seconds,
            tokens=self.usage,
            model=self.model,
        )

    def job(self) -> dict[str, Any]:
        fields = (*_OF_ITS_OWN, "prompt", "idempotency_key")
        return {name: value for name in fields if (value := getattr(self, name)) is not None}


class RecordedAttempt(BaseModel):
    """What became of a reported attempt."""

    job_id: str
    #: The job's state now: a retry may be waiting in the subject's lane.
    state: str
    reason: str | None
    attempt: int
    mode: str
    score: float | None
    success: bool | None
    #: The attempt that follows; null if none does.
    next_attempt: int | None
    next_mode: str | None
    #: The cycle that this attempt opened or belongs to, and its status.
    cycle_id: str | None
    cycle_status: str | None


class _Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class SelfRepair(_Camel):
    mode: str
    cycle_id: str
    protocol_version: str


class Reformulation(_Camel):
    """What makes a delayed verification count."""

    max_similarity: float
    other_family: bool
    #: The task in other words; null if it is so long that no words around it would make others.
    suggestion: str | None


class TaskDocument(_Camel):
    """What a subject is to do now. The token must come back with the attempt."""

    job_id: str
    attempt: int
    task_type: str
    subject: str
    mode: str
    system: str | None
    prompt: str
    token: str
    expires_at: float
    self_repair: SelfRepair | None
    other_words: Reformulation | None


Subject = Annotated[
    str,
    Query(
        min_length=1,
        max_length=200,
        pattern=r"^[\w][\w .:/@+-]*$",
        description="Who does the work: a person or another system.",
    ),
]
Tenant = Annotated[
    str | None,
    Query(min_length=1, max_length=200, description="Whose subject; a bound token's own."),
]


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["elsewhere"])
    nothing: dict[int | str, dict[str, Any]] = {204: {"description": "Nothing is due"}}

    def claim_next(
        caller: Producer, response: Response, subject: Subject, tenant: Tenant = None
    ) -> Any:
        """Claim what a subject is to do: what it holds already, else its mandatory retry first."""
        response.headers["Cache-Control"] = "no-store"
        whose = caller.tenant or tenant
        if not caller.sees(whose):
            raise not_found(f"tenant {tenant}")
        task = next_task(context.services.context, subject, tenant=whose)
        if task is None:
            return Response(status_code=204, headers={"Cache-Control": "no-store"})
        return _document(task)

    for method in ("POST", "GET"):
        router.add_api_route(
            "/api/task/next",
            claim_next,
            methods=[method],
            response_model=TaskDocument,
            responses=nothing,
            operation_id=f"{method.lower()}_task_next",
        )

    @router.post("/api/attempts", status_code=201, responses={**errors(404, 409)})
    def attempts(body: AttemptReport, caller: Producer) -> RecordedAttempt:
        """Record an attempt that was made, and scored, elsewhere."""
        try:
            job_id, number, cycle_id = _record(context, body, caller)
        except NotCounted as error:
            raise HttpError(
                422, error.reason, str(error), details=[f"prompt: {error.reason}"]
            ) from None
        view = context.ledger.job(job_id)
        if view is None:
            raise not_found(f"job {job_id}")
        if cycle_id is not None:
            return _verified(view, cycle_id)
        return _recorded(view, number)

    return router


def _record(
    context: ConsoleContext, body: AttemptReport, caller: Caller
) -> tuple[str, int, str | None]:
    """The job, the attempt, and the cycle if it was a delayed verification."""
    attempt_context, report = context.services.context, body.report()
    if body.token is None:
        job_id, _ = record_attempt(
            attempt_context, context.services.intake, _owned(context, body, caller), report
        )
        return job_id, 1, None
    lease = parse_token(body.token)
    visible_job(context, caller, lease.entry.job_id)
    told = report_attempt(attempt_context, lease, report)
    if isinstance(told, ClaimRefused):
        _refuse(told)
    entry = lease.entry
    return entry.job_id, entry.attempt, entry.cycle_id if entry.kind == "cycle" else None


def _owned(context: ConsoleContext, body: AttemptReport, caller: Caller) -> dict[str, Any]:
    """The new job of an attempt; a tenant's token makes it that tenant's."""
    raw = body.job()
    if caller.tenant is None:
        return raw
    name = context.settings.tenant_label
    labels = raw.get("labels", {})
    if labels.get(name, caller.tenant) != caller.tenant:
        raise HttpError(403, "other_tenant", f"labels.{name}: this token is for {caller.tenant}")
    return {**raw, "labels": {**labels, name: caller.tenant}}


def _refuse(told: ClaimRefused) -> None:
    """A report that comes twice is answered like the first; any other refusal is told."""
    match told.reason:
        case "stored" | "verifying":
            return
        case "gone":
            raise not_found("task with this token")
        case "finished":
            raise HttpError(
                409, "finished", "this task has ended already; its job's story says how"
            )
        case "escalated":
            return
        case _:
            raise HttpError(
                409,
                "lease_lost",
                "the token is no longer good: the task was held for too long; ask for it again",
            )


def _document(task: ExternalTask) -> TaskDocument:
    job, plan = task.claim.job, task.claim.plan
    repair, words = None, None
    delayed = task.mode == "delayed_verification"
    if task.cycle_id is not None and (delayed or task.mode == "immediate_retry"):
        repair = SelfRepair(
            mode=task.mode, cycle_id=task.cycle_id, protocol_version=PROTOCOL_VERSION
        )
    if delayed:
        words = Reformulation(
            max_similarity=SAME_FORMULATION,
            other_family=job.delayed_verification.other_family,
            suggestion=suggested(job),
        )
    return TaskDocument(
        job_id=task.claim.job_id,
        attempt=task.lease.entry.attempt if delayed else plan.number,
        task_type=job.task_type,
        subject=job.subject or "",
        mode=task.mode,
        system=job.system,
        prompt=job.task_text if delayed or plan.prompt is None else plan.prompt,
        token=task.token,
        expires_at=task.expires_at or 0.0,
        self_repair=repair,
        other_words=words,
    )


def _verified(view: JobView, cycle_id: str) -> RecordedAttempt:
    """A delayed verification ends its cycle, and changes nothing of the job."""
    cycle = next(each for each in view.cycles if each.id == cycle_id)
    return RecordedAttempt(
        job_id=view.id,
        state=view.state,
        reason=cycle.reason or None,
        attempt=cycle.source_attempt,
        mode="delayed_verification",
        score=cycle.score,
        success=cycle.status == CycleStatus.COMPLETED,
        next_attempt=None,
        next_mode=None,
        cycle_id=cycle_id,
        cycle_status=cycle.status.value,
    )


def _recorded(view: JobView, number: int) -> RecordedAttempt:
    attempt = view.attempts[number - 1]
    coming = view.attempts[number] if len(view.attempts) > number else None
    own = attempt.plan.cycle_id
    opened = [c for c in view.cycles if c.source_attempt == number or c.id == own]
    cycle = opened[-1] if opened else None
    return RecordedAttempt(
        job_id=view.id,
        state=view.state,
        reason=view.reason,
        attempt=number,
        mode=attempt.plan.mode,
        score=attempt.score,
        success=attempt.verdict.success if attempt.verdict else None,
        next_attempt=coming.plan.number if coming else None,
        next_mode=coming.plan.mode if coming else None,
        cycle_id=cycle.id if cycle else None,
        cycle_status=cycle.status.value if cycle else None,
    )
