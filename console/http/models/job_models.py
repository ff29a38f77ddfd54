"""A job as the API answers with it, and what is left of it for those who may not read texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, PlainSerializer

from mulligan.console.reports.job_document import job_document
from mulligan.policies.cycles.cycle import SelfRepairCycle
from mulligan.policies.failures.failure import FailureRecord, VerificationResult
from mulligan.policies.failures.redaction import is_name, redacted_place
from mulligan.policies.jobs.job import Decoding, Mode, OpenModel, RunnerSpec, Usage, VerifierSpec
from mulligan.policies.repair.instruction import RepairInstruction
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
    reason: str | None
    detail: str | None
    best_attempt: int | None
    #: Null while nobody told any usage.
    tokens: int | None
    seconds: float
    labels: dict[str, str]
    idempotency_key: str | None
    created_at: float
    finished_at: float | None


#: Only what differs from the default is told, as in the ledger.
_WITHOUT_DEFAULTS = PlainSerializer(
    lambda value: value.model_dump(mode="json", exclude_defaults=True), return_type=dict[str, Any]
)


class AttemptDocument(BaseModel):
    """One attempt: what was asked, what came back, what was found, what follows."""

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
    #: Attempts before a person's requeue, which are not held against this one.
    since: int
    decoding: Annotated[Decoding, _WITHOUT_DEFAULTS]
    usage: Usage | None
    model: str | None
    finish_reason: str | None
    #: As it was asked: the corrected prompt of a retry.
    prompt: str
    answer: str | None
    #: Content address of what a command changed in its copy of the workspace.
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


class CycleDocument(SelfRepairCycle):
    """One mandatory immediate retry and its delayed verification."""

    #: The document that holds it names the job.
    job_id: str = Field(exclude=True)


class JobDocument(JobSummary):
    """A job with all that happened to it."""

    #: As it was handed in; what is left out is the default.
    job: dict[str, Any]
    system: str | None
    runner: str
    verifiers: list[str]
    priority: int
    answer: str | None
    attempts: list[AttemptDocument]
    cycles: list[CycleDocument]


def summary(row: JobRow, *, texts: bool) -> JobSummary:
    fields = {name: getattr(row, name) for name in JobSummary.model_fields}
    return JobSummary.model_validate({**fields, "detail": _hide(row.detail, texts)})


def document(view: JobView, *, texts: bool) -> JobDocument:
    """The whole job; its texts only for those who may read them."""
    found = job_document(view)
    found |= {
        "tenant": view.tenant,
        "seconds": view.seconds,
        "job": view.job.model_dump(mode="json", exclude_defaults=True),
        "attempts": [
            {**told, **_more(attempt)}
            for told, attempt in zip(found["attempts"], view.attempts, strict=True)
        ],
        "system": view.job.system,
        "runner": view.job.runner.profile or view.job.runner.kind or "",
        "verifiers": [spec.label for spec in view.job.verifiers],
        "priority": view.job.priority,
    }
    return JobDocument.model_validate(found if texts else redacted(found))


def _more(attempt: AttemptView) -> dict[str, Any]:
    """What a program needs besides, to have the attempt as the ledger has it."""
    plan, output = attempt.plan, attempt.output
    return {
        "claims": attempt.claims,
        "cures": plan.cures,
        "cycle_id": plan.cycle_id,
        "since": plan.since,
        "diff": output.diff if output else None,
        "elapsed_seconds": output.elapsed_seconds if output else None,
    }


def redacted(found: Mapping[str, Any]) -> dict[str, Any]:
    """The document without what was asked and answered, and without what quotes it.

    Kinds, places without the answer's own keys, scores, signatures and times stay: they say what
    goes wrong, not with what.
    """
    return {
        **found,
        "job": _job(found["job"]),
        "detail": _hide(found["detail"]),
        "system": _hide(found["system"]),
        "answer": _hide(found["answer"]),
        "attempts": [_attempt(attempt) for attempt in found["attempts"]],
        "cycles": [
            {**cycle, "metadata": _masked(cycle["metadata"], {"prompt", "targetNodes"})}
            for cycle in found["cycles"]
        ],
    }


def _job(job: Mapping[str, Any]) -> dict[str, Any]:
    """A job as it was handed in; it stays a valid one."""
    found = _masked(job, {"prompt", "system"})
    if "messages" in job:
        found["messages"] = [_masked(message, {"content"}) for message in job["messages"]]
    if "delayed_verification" in job:
        found["delayed_verification"] = _masked(job["delayed_verification"], {"prompt"})
    found["runner"] = _options(job["runner"], RunnerSpec)
    found["verifiers"] = [_options(spec, VerifierSpec) for spec in job["verifiers"]]
    return found


def _options(spec: Mapping[str, Any], kind: type[OpenModel]) -> dict[str, Any]:
    """What a runner or a verifier was given may be text: scripted answers, words to look for."""
    return {
        name: value if name in kind.model_fields or isinstance(value, int | float) else REDACTED
        for name, value in spec.items()
    }


def _attempt(attempt: Mapping[str, Any]) -> dict[str, Any]:
    failure, instruction = attempt["failure"], attempt["instruction"]
    return {
        **attempt,
        "prompt": REDACTED,
        "answer": _hide(attempt["answer"]),
        "last_fault": _hide(attempt["last_fault"]),
        "results": [_findings(result, "errors") for result in attempt["results"]],
        "failure": _findings(failure, "findings") if failure else failure,
        "instruction": _masked(instruction, {"prompt_suffix", "minimal_next_step"})
        if instruction
        else instruction,
    }


#: What may quote an answer, in a result, a failure or a finding.
_QUOTES = frozenset({"message", "summary", "expected", "actual"})


def _findings(thing: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A result or a failure: where and what kind, not the values."""
    found = _masked(thing, _QUOTES)
    if name in found:
        found[name] = [_finding(finding, thing.get("verifier_id")) for finding in found[name]]
    if "evidence" in found:
        found["evidence"] = dict.fromkeys(found["evidence"], REDACTED)
    if "warnings" in found:
        found["warnings"] = [REDACTED for _ in found["warnings"]]
    return found


def _finding(finding: Mapping[str, Any], verifier_id: str | None) -> dict[str, Any]:
    found, code = _masked(finding, _QUOTES), finding.get("code")
    if finding.get("path") is not None:
        place = redacted_place(
            finding["path"],
            verifier_id=verifier_id,
            code=code,
            schema_path=finding.get("schema_path"),
        )
        found["path"] = place or REDACTED
    if code is not None and not is_name(code):
        found["code"] = REDACTED
    return found


def _masked(thing: Mapping[str, Any], names: frozenset[str] | set[str]) -> dict[str, Any]:
    return {k: REDACTED if k in names and v is not None else v for k, v in thing.items()}


def _hide(text: str | None, texts: bool = False) -> str | None:
    return text if texts or text is None else REDACTED
