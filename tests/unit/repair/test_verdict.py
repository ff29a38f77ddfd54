"""A verdict is stored as JSON and read back as the same value."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mulligan.policies.failures.failure import (
    FailureKind,
    FailureRecord,
    Finding,
    VerificationResult,
    VerificationStatus,
)
from mulligan.policies.repair.instruction import RepairInstruction
from mulligan.policies.repair.retry import ChangeStrategy, Escalate, Retry
from mulligan.policies.repair.verdict import Verdict, verdict_from_dict, verdict_to_dict

TEXT = st.text(max_size=8)
MAYBE = st.none() | TEXT
SCORES = st.none() | st.floats(0, 100)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(TEXT, children, max_size=3),
    max_leaves=5,
)  # fmt: skip
FINDINGS = st.builds(
    Finding, message=TEXT, code=MAYBE, path=MAYBE, schema_path=MAYBE, expected=JSON, actual=JSON
)
EVIDENCE = st.dictionaries(TEXT, JSON, max_size=3)
RESULTS = st.builds(
    VerificationResult,
    status=st.sampled_from(VerificationStatus),
    verifier_id=TEXT,
    summary=TEXT,
    evidence=EVIDENCE,
    errors=st.lists(FINDINGS, max_size=2).map(tuple),
    warnings=st.lists(TEXT, max_size=2).map(tuple),
    elapsed_seconds=st.floats(0, 1e6),
    score=SCORES,
)
FAILURES = st.builds(
    FailureRecord,
    kind=st.sampled_from(FailureKind),
    classification_signature=TEXT,
    coarse_signature=TEXT,
    message=TEXT,
    source=st.sampled_from(["task", "verify", "graph"]),
    attempt=st.integers(1, 100),
    node_id=MAYBE,
    verifier_id=MAYBE,
    cause=MAYBE,
    findings=st.lists(FINDINGS, max_size=2).map(tuple),
    evidence=EVIDENCE,
)
MODES = st.sampled_from(["immediate_retry", "policy_retry"])
DECISIONS = (
    st.builds(Escalate, reason=TEXT)
    | st.builds(Retry, reason=TEXT, mode=MODES)
    | st.builds(ChangeStrategy, reason=TEXT, mode=MODES)
)
VERDICTS = st.builds(
    Verdict,
    results=st.lists(RESULTS, max_size=2).map(tuple),
    score=SCORES,
    success=st.booleans(),
    coercions=st.lists(TEXT, max_size=2).map(tuple),
    failure=st.none() | FAILURES,
    signatures=st.lists(TEXT, max_size=2).map(tuple),
    decision=st.none() | DECISIONS,
    instruction=st.none()
    | st.builds(
        RepairInstruction,
        action=TEXT,
        prompt_suffix=TEXT,
        minimal_next_step=TEXT,
        temperature_factor=st.floats(0, 10),
    ),
)


@given(VERDICTS)
def test_a_stored_verdict_is_read_back_unchanged(verdict: Verdict) -> None:
    stored = json.dumps(verdict_to_dict(verdict))
    assert verdict_from_dict(json.loads(stored)) == verdict
    assert json.dumps(verdict_to_dict(verdict_from_dict(json.loads(stored)))) == stored


STORED: dict[str, Any] = {
    "results": [
        {
            "status": "fail",
            "verifier_id": "contract.schema",
            "errors": [{"message": "m", "code": "type"}],
            "score": 40.0,
        }
    ],
    "score": 40.0,
    "success": False,
    "coercions": ["fence"],
    "failure": {
        "kind": "schema_invalid",
        "classification_signature": "v1:strict",
        "coarse_signature": "v1:coarse",
        "message": "m",
        "source": "verify",
        "attempt": 1,
        "node_id": None,
        "verifier_id": "contract.schema",
        "cause": "type",
        "guessed": False,
        "findings": [{"message": "m", "code": "type", "path": None, "schema_path": None,
                      "expected": None, "actual": None, "example": None, "count": 1}],
        "evidence": {},
    },
    "signatures": ["v1:strict"],
    "decision": {"action": "retry", "reason": "score 40 is below 70", "mode": "immediate_retry"},
    "instruction": {
        "action": "fix_type",
        "prompt_suffix": "p",
        "minimal_next_step": "s",
        "constrained": True,
        "temperature_factor": 0.5,
        "token_cap_factor": 1.0,
        "show_last_answer": True,
    },
}  # fmt: skip


def test_the_stored_form_of_a_verdict_is_stable() -> None:
    verdict = verdict_from_dict(STORED)
    assert verdict.failure is not None
    assert (verdict.score, verdict.coercions) == (40.0, ("fence",))
    assert verdict.failure.label == "schema_invalid.type"
    assert verdict.decision == Retry(reason="score 40 is below 70", mode="immediate_retry")
    assert verdict_to_dict(verdict) == STORED
    assert list(verdict_to_dict(verdict)) == list(STORED)


def test_fields_of_another_version_are_ignored_and_missing_ones_are_empty() -> None:
    (result,) = STORED["results"]
    (error,) = result["errors"]
    newer = {
        **STORED,
        "new": 1,
        "results": [{**result, "new": 1, "errors": [{**error, "new": 1}]}],
        "failure": {**STORED["failure"], "new": 1},
        "instruction": {**STORED["instruction"], "new": 1},
        "decision": {**STORED["decision"], "new": 1},
    }
    assert verdict_from_dict(newer) == verdict_from_dict(STORED)
    assert verdict_from_dict({}) == Verdict()
    assert verdict_from_dict({"score": 12.5}) == Verdict(score=12.5)


def test_a_failure_kind_of_a_newer_version_is_unknown() -> None:
    newer = {**STORED, "failure": {**STORED["failure"], "kind": "invented_later"}}
    failure = verdict_from_dict(newer).failure
    assert failure is not None
    assert failure.kind is FailureKind.UNKNOWN
