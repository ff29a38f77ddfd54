"""External work: claim a subject's next task and report its attempts."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from mulligan.console.http.access import Caller, Producer
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import HttpError, errors, not_found
from mulligan.console.http.models.camel_model import CamelModel
from mulligan.console.http.routes.job_routes import Key, with_key
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
from mulligan.tasks.jobs.outcome import Outcome
from mulligan.tasks.ports.ledger import ClaimRefused, JobView

#: Fields that describe a new job. A claimed task has them already.
_JOB_FIELDS = ("subject", "task_type", "labels", "system", "delayed_verification", "policy")


class ReportedError(BaseModel):
    """One error in an answer."""

    model_config = ConfigDict(extra="forbid")

    message: str = Field(min_length=1, max_length=2000)
    path: str | None = Field(default=None, max_length=500)
    code: str | None = Field(default=None, max_length=100)


class AttemptReport(BaseModel):
    """An attempt made outside mulligan: of a claimed task (with its token) or of a new job."""

    model_config = ConfigDict(extra="forbid")

    #: The task's token. Without it, this is the first attempt of a new job.
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
    #: What was wrong. It becomes part of the corrected prompt.
    feedback: str = Field(default="", max_length=10_000)
    findings: list[ReportedError] = Field(default_factory=list, max_length=200)
    #: For a delayed verification: the family of the task that was used.
    task_family: Name | None = None
    seconds: Annotated[Seconds, Field(le=1e7)] = 0.0
    usage: Usage = Usage()
    model: str | None = Field(default=None, max_length=200)

    @model_validator(mode="after")
    def _task_or_new_job(self) -> AttemptReport:
        if self.token is None:
            missing = [name for name in ("subject", "task_type", "prompt", "score")
                       if getattr(self, name) is None]  # fmt: skip
            if missing:
                raise ValueError(f"without a token, give {', '.join(missing)}")
        elif extra := [name for name in _JOB_FIELDS if getattr(self, name) is not None]:
            raise ValueError(f"with a token, leave out {', '.join(extra)}: the task has them")
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
        fields = (*_JOB_FIELDS, "prompt", "idempotency_key")
        return {name: value for name in fields if (value := getattr(self, name)) is not None}


class RecordedAttempt(BaseModel):
    """The result of recording an attempt."""

    job_id: str
    #: The job's state now: its retry may wait for the subject.
    state: str
    reason: str | None
    attempt: int
    mode: str
    score: float | None
    success: bool | None
    #: The attempt that follows; null if there is none.
    next_attempt: int | None
    next_mode: str | None
    #: The cycle that this attempt opened or belongs to, and its status.
    cycle_id: str | None
    cycle_status: str | None


class SelfRepair(CamelModel):
    mode: str
    cycle_id: str
    protocol_version: str


class Reformulation(CamelModel):
    """The conditions under which a delayed verification is valid."""

    max_similarity: float
    other_family: bool
    #: The task in other words; null if it is too long for a reworded frame to make a difference.
    suggestion: str | None


class TaskDocument(CamelModel):
    """A subject's next task. Its token must be sent with the attempt."""

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
    Query(
        min_length=1,
        max_length=200,
        description="The subject's tenant; ignored for a tenant's token.",
    ),
]


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["external"])
    nothing: dict[int | str, dict[str, Any]] = {204: {"description": "Nothing is due"}}

    def claim_next(
        caller: Producer, response: Response, subject: Subject, tenant: Tenant = None
    ) -> Any:
        """Claim a subject's next task: its mandatory retry, what it holds, then the rest."""
        response.headers["Cache-Control"] = "no-store"
        task = next_task(
            context.services.context,
            subject,
            tenant=caller.tenant_filter(tenant),
            owner=caller.owner,
        )
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

    @router.post("/api/attempts", status_code=201, responses=errors(404, 409))
    def attempts(body: AttemptReport, caller: Producer, key: Key = None) -> RecordedAttempt:
        """Record an attempt that was made and scored outside mulligan."""
        try:
            job_id, number, cycle_id = _record(context, body, caller, key)
        except NotCounted as error:
            raise HttpError(
                422, error.reason, str(error), details=[f"prompt: {error.reason}"]
            ) from None
        view = context.ledger.job(job_id)
        if view is None:
            raise not_found(f"job {job_id!r}")
        if cycle_id is not None:
            return _verified(view, cycle_id)
        return _recorded(view, number)

    return router


def _record(
    context: ConsoleContext, body: AttemptReport, caller: Caller, key: str | None
) -> tuple[str, int, str | None]:
    """Return the job, the attempt, and the cycle if it was a delayed verification."""
    attempt_context, report = context.services.context, body.report()
    if body.token is None:
        job_id, result = record_attempt(
            attempt_context,
            context.services.intake,
            _owned(context, body, caller, key),
            report,
            owner=caller.owner,
        )
        _check_refusal(result)
        return job_id, 1, None
    lease = parse_token(body.token)
    _check_reporter(context, caller, lease.entry.job_id)
    _check_refusal(report_attempt(attempt_context, lease, report))
    entry = lease.entry
    return entry.job_id, entry.attempt, entry.cycle_id if entry.kind == "cycle" else None


def _check_reporter(context: ConsoleContext, caller: Caller, job_id: str) -> None:
    """Raise 404 for the job of another tenant or producer.

    Everyone in a tenant may have claimed a task of a job that no producer submitted.
    """
    tenant, _, owner = context.ledger.job_owner(job_id)
    if not caller.sees(tenant) or not (owner is None or caller.owns(owner)):
        raise not_found(f"job {job_id!r}")


def _owned(
    context: ConsoleContext, body: AttemptReport, caller: Caller, key: str | None
) -> dict[str, Any]:
    """Return the new job of an attempt, labelled with the token's tenant if it has one."""
    raw: dict[str, Any] = with_key(body.job(), key, None)
    if caller.tenant is None:
        return raw
    name = context.settings.tenant_label
    labels = raw.get("labels", {})
    if labels.get(name, caller.tenant) != caller.tenant:
        raise HttpError(403, "other_tenant", f"labels.{name}: this token is for {caller.tenant}")
    return {**raw, "labels": {**labels, name: caller.tenant}}


def _check_refusal(result: Outcome) -> None:
    """Raise HttpError, unless the same report came before: then the response is the same, too."""
    if not isinstance(result, ClaimRefused):
        return
    match result.reason:
        case "stored" | "verifying" | "escalated":
            return
        case "gone":
            raise not_found("task with this token")
        case "newer":
            raise HttpError(
                409, "newer_version", "a later version wrote this task: report to its console"
            )
        case "held":
            raise HttpError(409, "held", "someone holds this task under another token")
        case "other_report":
            raise HttpError(
                409,
                "other_report",
                "this attempt was reported before with other content; that report counts",
            )
        case "finished":
            raise HttpError(409, "finished", "this task has already ended; see its job")
        case _:
            raise HttpError(
                409,
                "lease_lost",
                "the token has expired because the task was held too long; claim it again",
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
    """Describe a delayed verification. It ends its cycle and does not change the job."""
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
    following = view.attempts[number] if len(view.attempts) > number else None
    cycles = [
        cycle
        for cycle in view.cycles
        if cycle.source_attempt == number or cycle.id == attempt.plan.cycle_id
    ]
    cycle = cycles[-1] if cycles else None
    return RecordedAttempt(
        job_id=view.id,
        state=view.state,
        reason=view.reason,
        attempt=number,
        mode=attempt.plan.mode,
        score=attempt.score,
        success=attempt.verdict.success if attempt.verdict else None,
        next_attempt=following.plan.number if following else None,
        next_mode=following.plan.mode if following else None,
        cycle_id=cycle.id if cycle else None,
        cycle_status=cycle.status.value if cycle else None,
    )
