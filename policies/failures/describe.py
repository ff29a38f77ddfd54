"""Failures and their findings in a few words."""

from __future__ import annotations

from mulligan.policies.failures.failure import FailureRecord, Finding, VerificationResult
from mulligan.policies.failures.redaction import redacted_place


def describe_failure(failure: FailureRecord, *, texts: bool = True) -> str:
    """Return kind and place: ``schema_invalid $.age``. Without texts, do not quote answers."""
    described = _describe(failure, texts=texts)
    return f"{failure.node_id}: {described}" if failure.source == "graph" else described


def _describe(failure: FailureRecord, *, texts: bool) -> str:
    kind, evidence = failure.kind.value, failure.evidence
    if failure.cause == "truncated":
        return f"{kind} truncated"
    passed, collected = evidence.get("passed"), evidence.get("collected")
    if isinstance(passed, int) and isinstance(collected, int) and collected:
        return f"{kind} {passed}/{collected} passed"
    verifier = failure.verifier_id
    paths = [f.path if texts else place_without_texts(f, verifier) for f in failure.findings]
    if places := [path for path in paths if path not in (None, "", "$")]:
        return f"{kind} {places[0]}"
    if evidence.get("exit_code") is not None:
        return f"{kind} exit {evidence['exit_code']}"
    return f"{kind} {failure.cause or ''}".strip()


def place_without_texts(finding: Finding, verifier_id: str | None) -> str:
    """Return a finding's place for readers who may not see the answer; empty if it quotes it."""
    return redacted_place(
        finding.path,
        verifier_id=verifier_id,
        code=finding.code,
        schema_path=finding.schema_path,
    )


def errors_beyond_summary(result: VerificationResult) -> tuple[Finding, ...]:
    """Return the errors of a result; none if the summary already contains the only one."""
    if len(result.errors) == 1 and result.errors[0].message in result.summary:
        return ()
    return result.errors
