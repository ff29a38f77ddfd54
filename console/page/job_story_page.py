"""A job's story: attempt → verdicts → failure → instruction → the corrected prompt → the next."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

from mulligan.console.cli.output.prompt_diff import diff_lines
from mulligan.console.reports import words
from mulligan.console.reports.job_document import asked
from mulligan.policies.failures.failure import FailureRecord, Finding, VerificationResult
from mulligan.policies.failures.redaction import is_name
from mulligan.policies.figures import format as formatter
from mulligan.policies.jobs.job import TERMINAL, Decoding, Job
from mulligan.policies.repair.instruction import RepairInstruction
from mulligan.policies.repair.verdict import Verdict
from mulligan.tasks.ports.ledger import AttemptView, JobView
from mulligan.workers.ledger.redis_ledger import RedisLedger

#: More errors of one verifier than anybody reads.
_MOST_ERRORS = 10
_DIFF_KINDS: dict[str, Literal["add", "del", "place"]] = {"+": "add", "-": "del", "@": "place"}


@dataclass(frozen=True, kw_only=True)
class DiffLine:
    kind: Literal["add", "del", "place", "same"]
    text: str


@dataclass(frozen=True, kw_only=True)
class CheckError:
    """One verified error: its place and its message, or its class for a reader without texts."""

    path: str | None
    text: str | None


@dataclass(frozen=True, kw_only=True)
class CheckSection:
    """What one verifier found."""

    status: str
    verifier: str
    summary: str
    score: float | None
    errors: Sequence[CheckError]
    #: How many errors are not listed.
    more: int


@dataclass(frozen=True, kw_only=True)
class AttemptSection:
    """One attempt. Texts are None for a reader who may not have them."""

    number: int
    mode: str
    state: str
    #: ``good``, ``bad`` or ``busy``.
    tone: str
    task: str
    score: str
    results: Sequence[CheckSection]
    coercions: Sequence[str]
    failure: FailureRecord | None
    failure_words: str
    instruction: RepairInstruction | None
    then: str
    technique: str
    decoding: str
    prompt: str | None
    diff: Sequence[DiffLine]
    answer: str | None
    facts: Sequence[str]
    started_at: float | None
    last_fault: str | None


def attempt_sections(view: JobView, *, texts: bool) -> list[AttemptSection]:
    """Every attempt that was planned, in its order."""
    return [_chapter(view, attempt, texts=texts) for attempt in view.attempts]


def _chapter(view: JobView, attempt: AttemptView, *, texts: bool) -> AttemptSection:
    verdict, plan = attempt.verdict or Verdict(), attempt.plan
    failure = verdict.failure
    return AttemptSection(
        number=plan.number,
        mode=plan.mode,
        state=attempt.state,
        tone=_tone(attempt),
        task=f"{view.id}-{plan.number}",
        score=formatter.score(verdict.score),
        results=[_check(result, texts=texts) for result in verdict.results],
        coercions=verdict.coercions,
        failure=failure,
        failure_words=words.failure_in_words(failure, texts=texts) if failure else "",
        instruction=verdict.instruction if texts else None,
        then=words.next_step(verdict.decision).replace("_", " "),
        technique=words.technique(view, attempt) if plan.technique else "",
        decoding=_decoding(plan.decoding),
        prompt=asked(view, attempt) if texts else None,
        diff=_diff(view, attempt) if texts else [],
        answer=attempt.output.text if texts and attempt.output else None,
        facts=_facts(attempt),
        started_at=attempt.started_at or attempt.queued_at,
        last_fault=_last_fault(attempt, texts=texts),
    )


def _decoding(changed: Decoding) -> str:
    """``constrained, temperature 0.21``"""
    found = changed.model_dump(mode="json", exclude_defaults=True)
    return ", ".join(
        formatter.words(name) if value is True else f"{formatter.words(name)} {value}"
        for name, value in found.items()
    )


def _last_fault(attempt: AttemptView, *, texts: bool) -> str | None:
    if not attempt.last_fault:
        return None
    said = f", the last: {attempt.last_fault}" if texts else ""
    return f"{attempt.faults} transport faults{said}"


def _tone(attempt: AttemptView) -> str:
    if attempt.state != "settled":
        return "busy"
    return "good" if attempt.verdict and attempt.verdict.success else "bad"


def _check(result: VerificationResult, *, texts: bool) -> CheckSection:
    """Its words may quote the answer: a reader without texts gets places."""
    errors = words.errors_beyond_summary(result)
    return CheckSection(
        status=result.status.value,
        verifier=result.verifier_id,
        summary=result.summary if texts else "",
        score=result.score,
        errors=[_error(each, result, texts=texts) for each in errors[:_MOST_ERRORS]],
        more=max(0, len(errors) - _MOST_ERRORS),
    )


def _error(finding: Finding, result: VerificationResult, *, texts: bool) -> CheckError:
    if texts:
        return CheckError(path=finding.path, text=finding.message)
    return CheckError(
        path=words.place_without_texts(finding, result.verifier_id),
        text=finding.code if is_name(finding.code) else None,
    )


def _diff(view: JobView, attempt: AttemptView) -> list[DiffLine]:
    """How the prompt differs from the one before it."""
    number = attempt.plan.number
    before = next((a for a in view.attempts if a.plan.number == number - 1), None)
    if before is None:
        return []
    lines = list(diff_lines(asked(view, before), asked(view, attempt), names=("", "")))[2:]
    return [DiffLine(kind=_DIFF_KINDS.get(line[:1], "same"), text=line) for line in lines]


def _facts(attempt: AttemptView) -> list[str]:
    found = []
    output = attempt.output
    if attempt.started_at and attempt.queued_at:
        found.append(f"waited {formatter.duration(attempt.started_at - attempt.queued_at)}")
    if attempt.started_at and attempt.settled_at:
        found.append(f"took {formatter.duration(attempt.settled_at - attempt.started_at)}")
    if output and output.usage.total_tokens is not None:
        found.append(f"{formatter.count(output.usage.total_tokens)} tokens")
    if output and output.model:
        found.append(output.model)
    if attempt.worker:
        found.append(f"on {attempt.worker}")
    return found


def answer_of(view: JobView, *, texts: bool) -> str | None:
    """The best answer there is."""
    best = view.best
    return best.output.text if texts and best and best.output else None


def may_cancel(view: JobView) -> bool:
    return view.state not in TERMINAL


def open_escalation(ledger: RedisLedger, view: JobView) -> str | None:
    """The escalation that a job's end opened, unless somebody ended it already."""
    if view.state != "escalated":
        return None
    found = ledger.escalation(f"{view.id}:{len(view.attempts)}")
    return found.id if found is not None and found.state == "open" else None


def job_file(job: Job) -> str:
    """The job as a file that `mulligan submit` reads. Its key is left out: it would be the same."""
    document = job.model_dump(mode="json", exclude_defaults=True, exclude={"idempotency_key"})
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 100
    stream = io.StringIO()
    yaml.dump(_readable(document), stream)
    return stream.getvalue()


def _readable(value: Any) -> Any:
    """Texts of several lines as blocks."""
    if isinstance(value, dict):
        return {key: _readable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_readable(item) for item in value]
    return LiteralScalarString(value) if isinstance(value, str) and "\n" in value else value
