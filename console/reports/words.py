"""Failures, techniques and escalations in the few words that fit a table."""

from __future__ import annotations

from mulligan.console.reports.run_figures import first_try
from mulligan.policies.failures.failure import FailureRecord, Finding, VerificationResult
from mulligan.policies.failures.redaction import redacted_place
from mulligan.policies.repair.retry import ChangeStrategy, Decision, Escalate, Retry
from mulligan.tasks.ports.ledger import AttemptView, JobView

NOTHING = "–"


def number(score: float | None) -> str:
    """A score without its fraction: cut, so that 69.9 never looks like a pass."""
    return NOTHING if score is None else str(int(score))


def score_path(view: JobView) -> str:
    """``40 → 100``: from the first attempt to the best."""
    if not view.attempts:
        return NOTHING
    first, best = view.attempts[0].score, view.best
    last = best.score if best else None
    if len(view.attempts) == 1 or (best and best.plan.number == 1):
        return f"{number(first):>3}"
    return f"{number(first):>3} → {number(last)}"


def failed_with(view: JobView) -> str:
    """What went wrong: at first for a repaired job, at last for an escalated one."""
    verdicts = [attempt.verdict for attempt in view.attempts if attempt.verdict is not None]
    failures = [verdict.failure for verdict in verdicts if verdict.failure is not None]
    if not failures:
        coercions = verdicts[0].coercions if verdicts else ()
        return ", ".join(coercions) or view.reason or NOTHING
    return failure_in_words(failures[-1] if view.state == "escalated" else failures[0])


def failure_in_words(failure: FailureRecord, *, texts: bool = True) -> str:
    """Kind and place: ``schema_invalid $.age``. Without texts, no key or word of an answer's."""
    if failure.cause == "truncated":
        return "truncated"
    kind, evidence = failure.kind.value, failure.evidence
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
    """Where a finding is, for those who may not read the answer; empty if that would quote it."""
    return redacted_place(
        finding.path,
        verifier_id=verifier_id,
        code=finding.code,
        schema_path=finding.schema_path,
    )


def errors_beyond_summary(result: VerificationResult) -> tuple[Finding, ...]:
    """The errors of a result; none if its summary already says the only one."""
    if len(result.errors) == 1 and result.errors[0].message in result.summary:
        return ()
    return result.errors


def next_step(decision: Decision | None) -> str:
    """What follows an attempt: ``escalate: max_attempts``; empty after a success."""
    match decision:
        case None:
            return ""
        case Escalate(reason=reason):
            return f"escalate: {reason}"
        case ChangeStrategy(reason=reason, mode=mode):
            return f"{mode.replace('_', ' ')} with another strategy: {reason}"
        case Retry(reason=reason, mode=mode):
            return f"{mode.replace('_', ' ')}: {reason}"


def repaired_by(view: JobView) -> str:
    if view.state == "escalated":
        return f"ESCALATED {view.reason or ''}".strip()
    if view.state != "succeeded":
        return view.state.upper()
    if first_try(view):
        verdict = view.attempts[0].verdict
        return "free repair" if verdict and verdict.coercions else NOTHING
    return technique(view, view.best) if view.best else NOTHING


def technique(view: JobView, attempt: AttemptView) -> str:
    """What an attempt changed: ``"integer" + constrained``, ``token cap 120 → 300``."""
    before = next((a for a in view.attempts if a.plan.number == attempt.plan.number - 1), None)
    parts = (attempt.plan.technique or "corrected prompt").split("+")
    words = [_part(part, view, attempt, before) for part in parts]
    if "token_cap" in parts and parts[0] == "raise_token_cap":
        words = words[1:]
    return " + ".join(dict.fromkeys(words))


def _part(part: str, view: JobView, attempt: AttemptView, before: AttemptView | None) -> str:
    if part == "token_cap":
        asked = before.plan.decoding.max_tokens if before else None
        old = asked or view.job.runner.options.get("max_tokens")
        new = attempt.plan.decoding.max_tokens
        return f"token cap {old} → {new}" if old else f"token cap {new}"
    failure = before.verdict.failure if before and before.verdict else None
    if part == "fix_type" and failure and failure.findings:
        expected = failure.findings[0].expected
        if isinstance(expected, str):
            return f'"{expected}"'
    return part.replace("_", " ")
