"""Jobs, answers, results and verdicts to test with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mulligan.policies.failures.failure import (
    FailureKind,
    FailureRecord,
    VerificationResult,
    VerificationStatus,
)
from mulligan.policies.jobs.job import Job, Output, Usage
from mulligan.policies.repair.verdict import Verdict
from mulligan.tasks.jobs.read_job import read_jobs
from mulligan.tasks.ports.ledger import AttemptView

SCHEMA = {
    "type": "object",
    "required": ["name", "age"],
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
}
GOOD = '{"name": "Alice", "age": 31}'
WRONG_TYPE = '{"name": "Alice", "age": "31"}'
MISSING = '{"name": "Alice"}'


def make_job(**fields: Any) -> Job:
    defaults: dict[str, Any] = {
        "task_type": "extract",
        "prompt": "Extract the person.",
        "runner": {"kind": "scripted", "answers": ["{}"]},
        "verifiers": ["json.object"],
    }
    return Job.model_validate({**defaults, **fields})


def read_job(raw: Any) -> Job:
    """Read a job from plain data. Raise BadInput with every problem of its form."""
    (job,) = read_jobs([raw], lambda _: [], single=True)
    return job


def scripted(*answers: Any, **changes: Any) -> dict[str, Any]:
    """Return a job with these answers and a contract that requires a name and an age."""
    return {
        "task_type": "extract_person",
        "prompt": "Extract the person.",
        "runner": {"kind": "scripted", "answers": list(answers)},
        "verifiers": ["json.object", {"id": "contract.schema", "schema": SCHEMA}],
        "delayed_verification": {"after": 0.2},
        **changes,
    }


def gated(gate: Path, **changes: Any) -> dict[str, Any]:
    """Return a job whose command answers as soon as this file exists.

    Its folder is its own, outside of mulligan's home, which no command sees.
    """
    gate.parent.mkdir(exist_ok=True)
    gate.parent.chmod(0o755)  # root's commands run as another user
    wait = f"until [ -e '{gate}' ]; do sleep 0.05; done; echo '{GOOD}'"
    runner = {"kind": "command", "argv": ["sh", "-c", wait], "read": [str(gate.parent)]}
    return scripted(runner=runner, **changes)


def answer(text: str = "an answer", *, tokens: int | None = 10, seconds: float = 0.5) -> Output:
    return Output(text=text, usage=Usage(total_tokens=tokens), elapsed_seconds=seconds)


def passed(verifier: str = "json.object") -> VerificationResult:
    return VerificationResult(status=VerificationStatus.PASS, verifier_id=verifier, score=100)


def make_verdict(*, score: float = 40.0, success: bool = False) -> Verdict:
    """Return a successful verdict, or one on an answer that is not JSON."""
    if success:
        return Verdict(score=score, success=True)
    failure = FailureRecord(
        kind=FailureKind.JSON_INVALID,
        classification_signature="json_invalid|$",
        coarse_signature="json_invalid|$",
        message="it went wrong",
        source="verify",
    )
    return Verdict(score=score, failure=failure, signatures=(failure.classification_signature,))


def verdict_of(attempt: AttemptView) -> Verdict:
    assert attempt.verdict is not None
    return attempt.verdict


def failure_of(attempt: AttemptView) -> FailureRecord:
    failure = verdict_of(attempt).failure
    assert failure is not None
    return failure
