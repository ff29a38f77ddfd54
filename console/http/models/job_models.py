"""Jobs as the API returns them, with or without their texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, PlainSerializer

from mulligan.console.reports.job_document import job_document, shown_job
from mulligan.policies.cycles.cycle import SelfRepairCycle
from mulligan.policies.failures.failure import FailureRecord, Finding, VerificationResult
from mulligan.policies.failures.redaction import is_name, redacted_place
from mulligan.policies.jobs.job import Decoding, Job, Mode, OpenModel, Output, Usage
from mulligan.policies.repair.instruction import RepairInstruction
from mulligan.policies.repair.verdict import Verdict
from mulligan.tasks.ports.ledger import AttemptView, JobView
from mulligan.workers.ledger.job_pages import JobRow

REDACTED = "[redacted]"


class JobSummary(BaseModel):
    """A job without its attempts. Times are seconds since 1970."""

    id: str
    task_type: str
    name: str
    state: str
    tenant: str | None
    waiting_for: str | None
    #: What a waiting job is parked behind: queue:NAME, task_type:NAME, provider:NAME, quota:TENANT.
    waiting_behind: str | None
    reason: str | None
    detail: str | None
    best_attempt: int | None
    #: Null until an attempt reports its usage.
    tokens: int | None
    seconds: float
    labels: dict[str, str]
    idempotency_key: str | None
    created_at: float
    finished_at: float | None


#: Only values that differ from the default are sent, as in the ledger.
_WITHOUT_DEFAULTS = PlainSerializer(
    lambda value: value.model_dump(mode="json", exclude_defaults=True), return_type=dict[str, Any]
)


class AttemptDocument(BaseModel):
    """One attempt: its prompt, answer, verdict and next step."""

    number: int
    mode: Mode
    state: str
    score: float | None
    success: bool | None
    results: list[Annotated[VerificationResult, _WITHOUT_DEFAULTS]]
    coercions: list[str]
    failure: FailureRecord | None
    instruction: RepairInstruction | None
    decision: dict[str, Any] | None
    signatures: list[str]
    technique: str | None
    #: The coarse signature that this attempt tries to cure.
    cures: str | None
    #: The cycle whose mandatory retry it is.
    cycle_id: str | None
    #: Attempts before a person's requeue, which do not count against this one.
    since: int
    decoding: Annotated[Decoding, _WITHOUT_DEFAULTS]
    usage: Usage | None
    model: str | None
    finish_reason: str | None
    #: The prompt that was sent; for a retry, the corrected one.
    prompt: str
    answer: str | None
    #: How an agent ended that did not end well; its work was verified all the same.
    ended: str | None
    #: Content address of the changes that a command made in its copy of the workspace.
    diff: str | None
    #: How long the runner took.
    elapsed_seconds: float | None
    queued_at: float | None
    started_at: float | None
    settled_at: float | None
    worker: str | None
    claims: int
    faults: int
    last_fault: str | None
    unreadable: str | None


class CycleDocument(SelfRepairCycle):
    """One mandatory immediate retry and its delayed verification."""

    #: The job's document already contains it.
    job_id: str = Field(exclude=True)


class JobDocument(JobSummary):
    """A job with its attempts and cycles."""

    #: As it was submitted, without default values.
    job: dict[str, Any]
    system: str | None
    runner: str
    verifiers: list[str]
    priority: int
    answer: str | None
    attempts: list[AttemptDocument]
    cycles: list[CycleDocument]
    #: The schema that a worker must read to run it, and the release that needs it.
    needs_schema: int
    needs_release: str | None
    #: What this release cannot read of it, because another one wrote it or it is damaged.
    unreadable: str | None


def summary(row: JobRow, *, texts: bool) -> JobSummary:
    shown = row if texts else replace(row, detail=_hidden(row.detail))
    return JobSummary.model_validate(shown, from_attributes=True)


def document(view: JobView, *, texts: bool) -> JobDocument:
    """Return the job's document; without texts, prompts, answers and quotes are redacted."""
    shown = view if texts else redacted(view)
    fields = job_document(shown)
    fields |= {
        "tenant": shown.tenant,
        "seconds": shown.seconds,
        "job": shown_job(shown.job).model_dump(mode="json", exclude_defaults=True),
        "attempts": [
            {**common, **_api_fields(attempt)}
            for common, attempt in zip(fields["attempts"], shown.attempts, strict=True)
        ],
        "system": shown.job.system,
        "runner": shown.job.runner.profile or shown.job.runner.kind or "",
        "verifiers": [spec.label for spec in shown.job.verifiers],
        "priority": shown.job.priority,
    }
    return JobDocument.model_validate(fields)


def _api_fields(attempt: AttemptView) -> dict[str, Any]:
    """Return the fields that let a program restore the attempt as the ledger has it."""
    plan, output = attempt.plan, attempt.output
    return {
        "claims": attempt.claims,
        "cures": plan.cures,
        "cycle_id": plan.cycle_id,
        "since": plan.since,
        "diff": output.diff if output else None,
        "elapsed_seconds": output.elapsed_seconds if output else None,
    }


# -- redaction -------------------------------------------------------------------------------------


def redacted(view: JobView) -> JobView:
    """Return the job without prompts, answers and everything that may quote them.

    Kinds, places without the answer's own keys, scores, signatures and times stay: they show what
    fails, but not the content.
    """
    return replace(
        view,
        job=_job(view.job),
        detail=_hidden(view.detail),
        attempts=tuple(_attempt(attempt) for attempt in view.attempts),
        cycles=tuple(_cycle(cycle) for cycle in view.cycles),
    )


def _hidden(text: str | None) -> str | None:
    return None if text is None else REDACTED


_Open = TypeVar("_Open", bound=OpenModel)


def _job(job: Job) -> Job:
    delayed = job.delayed_verification
    return job.model_copy(
        update={
            "prompt": _hidden(job.prompt),
            "system": _hidden(job.system),
            "messages": tuple(
                message.model_copy(update={"content": REDACTED}) for message in job.messages
            ),
            "delayed_verification": delayed.model_copy(update={"prompt": _hidden(delayed.prompt)}),
            "runner": redacted_options(job.runner),
            "verifiers": tuple(redacted_options(spec) for spec in job.verifiers),
        }
    )


def redacted_options(spec: _Open) -> _Open:
    """Redact the options of a runner or verifier: scripted answers, words to look for."""
    texts = [n for n, value in spec.options.items() if not isinstance(value, int | float)]
    return spec.model_copy(update=dict.fromkeys(texts, REDACTED))


def _attempt(attempt: AttemptView) -> AttemptView:
    output, verdict = attempt.output, attempt.verdict
    return replace(
        attempt,
        plan=attempt.plan.model_copy(update={"prompt": REDACTED}),
        output=output.model_copy(update=_hidden_texts(output)) if output else None,
        verdict=_verdict(verdict) if verdict else None,
        last_fault=_hidden(attempt.last_fault),
    )


def _hidden_texts(output: Output) -> dict[str, str | None]:
    return {"text": REDACTED, "ended": _hidden(output.ended), "stuck": _hidden(output.stuck)}


def _cycle(cycle: SelfRepairCycle) -> SelfRepairCycle:
    texts = {n for n in ("prompt", "targetNodes") if cycle.metadata.get(n) is not None}
    metadata = {**cycle.metadata, **dict.fromkeys(texts, REDACTED)}
    return cycle.model_copy(update={"metadata": metadata})


def _verdict(verdict: Verdict) -> Verdict:
    failure, instruction = verdict.failure, verdict.instruction
    texts = {"prompt_suffix": REDACTED, "minimal_next_step": REDACTED}
    return replace(
        verdict,
        results=tuple(_result(result) for result in verdict.results),
        failure=_failure(failure) if failure else None,
        instruction=instruction.model_copy(update=texts) if instruction else None,
    )


def _result(result: VerificationResult) -> VerificationResult:
    return result.model_copy(
        update={
            "summary": result.summary and REDACTED,
            "errors": tuple(_finding(error, result.verifier_id) for error in result.errors),
            "evidence": dict.fromkeys(result.evidence, REDACTED),
            "warnings": (REDACTED,) * len(result.warnings),
        }
    )


def _failure(failure: FailureRecord) -> FailureRecord:
    return failure.model_copy(
        update={
            "message": REDACTED,
            "findings": tuple(_finding(each, failure.verifier_id) for each in failure.findings),
            "evidence": dict.fromkeys(failure.evidence, REDACTED),
        }
    )


def _finding(finding: Finding, verifier_id: str | None) -> Finding:
    code, path = finding.code, finding.path
    place = redacted_place(
        path, verifier_id=verifier_id, code=code, schema_path=finding.schema_path
    )
    return finding.model_copy(
        update={
            "message": REDACTED,
            "expected": None if finding.expected is None else REDACTED,
            "actual": None if finding.actual is None else REDACTED,
            "example": None if finding.example is None else REDACTED,
            "path": None if path is None else place or REDACTED,
            "code": code if code is None or is_name(code) else REDACTED,
        }
    )
