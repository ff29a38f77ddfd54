"""Failures, techniques and escalations in the few words that fit a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mulligan.console.reports.job_document import best_attempt
from mulligan.console.reports.run_figures import first_try
from mulligan.policies.failures.redaction import is_name, redacted_place
from mulligan.tasks.ports.ledger import AttemptView, JobView

NOTHING = "–"


def number(score: float | None) -> str:
    """A score without its fraction: cut, so that 69.9 never looks like a pass."""
    return NOTHING if score is None else str(int(score))


def score_path(view: JobView) -> str:
    """``40 → 100``: from the first attempt to the best."""
    if not view.attempts:
        return NOTHING
    first = view.attempts[0].verdict.get("score")
    best = best_attempt(view)
    last = best.verdict.get("score") if best else None
    if len(view.attempts) == 1 or (best and best.plan.number == 1):
        return f"{number(first):>3}"
    return f"{number(first):>3} → {number(last)}"


def failed_with(view: JobView) -> str:
    """What went wrong: at first for a repaired job, at last for an escalated one."""
    failed = [a for a in view.attempts if a.verdict.get("failure")]
    if not failed:
        coercions = view.attempts[0].verdict.get("coercions") if view.attempts else None
        return ", ".join(coercions) if coercions else (view.reason or NOTHING)
    shown = failed[-1] if view.state == "escalated" else failed[0]
    return failure_in_words(shown.verdict["failure"])


def failure_in_words(failure: Mapping[str, Any], *, texts: bool = True) -> str:
    """Kind and place: ``schema_invalid $.age``. Without texts, no key or word of an answer's."""
    if failure.get("cause") == "truncated":
        return "truncated"
    evidence = failure.get("evidence") or {}
    passed, collected = evidence.get("passed"), evidence.get("collected")
    kind = str(failure["kind"])
    if isinstance(passed, int) and isinstance(collected, int) and collected:
        return f"{kind} {passed}/{collected} passed"
    findings = failure.get("findings") or ()
    verifier = failure.get("verifier_id")
    paths = [f.get("path") if texts else place_without_texts(f, verifier) for f in findings]
    if places := [path for path in paths if path not in (None, "", "$")]:
        return f"{kind} {places[0]}"
    if evidence.get("exit_code") is not None:
        return f"{kind} exit {evidence['exit_code']}"
    return f"{kind} {failure.get('cause') or ''}".strip()


def place_without_texts(finding: Mapping[str, Any], verifier_id: str | None) -> str:
    """Where a finding is, for those who may not read the answer; empty if that would quote it."""
    return redacted_place(
        finding.get("path"),
        verifier_id=verifier_id,
        code=finding.get("code"),
        schema_path=finding.get("schema_path"),
    )


def finding_without_texts(finding: Mapping[str, Any], verifier_id: str | None) -> dict[str, Any]:
    """A place and a class of errors, for those who may not read the answer."""
    code = finding.get("code")
    return {
        "path": place_without_texts(finding, verifier_id),
        "text": code if is_name(code) else None,
    }


def repaired_by(view: JobView) -> str:
    if view.state == "escalated":
        return f"ESCALATED {view.reason or ''}".strip()
    if view.state != "succeeded":
        return view.state.upper()
    if first_try(view):
        return "free repair" if view.attempts[0].verdict.get("coercions") else NOTHING
    best = best_attempt(view)
    return technique(view, best) if best else NOTHING


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
    if part == "fix_type" and before is not None:
        findings = (before.verdict.get("failure") or {}).get("findings") or [{}]
        expected = findings[0].get("expected")
        if isinstance(expected, str):
            return f'"{expected}"'
    return part.replace("_", " ")
