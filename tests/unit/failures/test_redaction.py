"""Failures for people who may not read answers: names and places, no quotations."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan.policies.failures.classify import classify_failure
from mulligan.policies.failures.failure import Finding, VerificationResult, VerificationStatus
from mulligan.policies.failures.redaction import is_name, redacted_parts, redacted_place
from mulligan.policies.failures.signature import explain_signature


def failed(verifier_id: str, *errors: Finding, **evidence: Any) -> VerificationResult:
    return VerificationResult(
        status=VerificationStatus.FAIL, verifier_id=verifier_id, errors=errors, evidence=evidence
    )


@pytest.mark.parametrize(
    ("path", "about", "place"),
    [
        ("$.total", {"schema_path": "/properties/total/type"}, "$.total"),
        ("$.items[3].age", {"schema_path": "/properties/items/items/properties/age/type"},
         "$.items[3].age"),
        ("$.name", {"schema_path": "/required", "code": "required"}, "$.name"),
        ("$.map['SEK one']", {"schema_path": "/properties/map/additionalProperties/type"},
         "$.map[*]"),
        ("$.map.SEK.net", {"schema_path": "/$defs/price/properties/net/type"}, "$.*.*.net"),
        ("$.SEK", {"schema_path": "/additionalProperties", "code": "additionalProperties"}, "$.*"),
        ("$.total['SEK \\' x'][0]", {}, "$.total[*][0]"),
        ('$.total["SEK\'s"].net', {}, "$.total[*].net"),
        ("$.total[*]['SEK cut o…", {}, "$.total[*]…"),
        ("$", {}, "$"),
        ("edits[2] (SEK) prompts/SEK.md", {"verifier_id": "edits.plan"}, "edits[2]"),
        ("test_a.py::test_b[1-2]", {"verifier_id": "pytest.subprocess"}, "test_a.py::test_b[1-2]"),
        ("$.SEK", {"verifier_id": "external.score"}, ""),
        ("line 3: SEK", {"verifier_id": "external.score"}, ""),
        ("folder/SEK.txt", {"verifier_id": None}, ""),
        (None, {}, ""),
    ],
)  # fmt: skip
def test_a_place_is_shown_without_the_answers_keys(
    path: str | None, about: dict[str, Any], place: str
) -> None:
    assert redacted_place(path, **{"verifier_id": "contract.schema", **about}) == place


@pytest.mark.parametrize(
    ("result", "parts"),
    [
        (
            failed(
                "pytest.subprocess",
                failed=[
                    {"nodeid": "t.py::test_a", "exception": "builtins.ValueError",
                     "frame": "SEK.py:f", "assertion": "ValueError: SEKRAISE"},
                    {"nodeid": "t.py::test_b", "exception": "answer.SEKError",
                     "frame": "SEK.py:f", "assertion": "SEKError: SEKRAISE"},
                ],
            ),
            {"tests": [["t.py::test_a", "ValueError"], ["t.py::test_b"]]},
        ),
        (
            failed("command.subprocess", argv=["grep", "SEK"], exit_code=1,
                   stderr_tail="SEKSTDERR"),
            {"outcome": "exit_code 1"},
        ),
        (
            failed(
                "contract.schema",
                Finding(message="SEK", code="type", path="$.map['SEK one']",
                        schema_path="/properties/map/additionalProperties/type"),
                Finding(message="SEK is wrong"),
            ),
            {"errors": [["type", "/properties/map/additionalProperties/type", "$.map[*]"]]},
        ),
        (
            failed("json.object", shape="fence", decoder="Expecting value: line 1 column 2"),
            {"decoder": "Expecting value", "shape": "fence", "truncated": False},
        ),
        (
            failed(
                "external.score",
                Finding(message="SEK", code="tense", path="SEK place"),
                Finding(message="SEK", code="SEK said this"),
                kind="reasoning_error",
            ),
            {"errors": [["tense"]]},
        ),
        (
            failed("odd.plugin", kind="tool_error", provider="eu", status=503, code="SEK said"),
            {"provider": "eu", "status": 503},
        ),
        (failed("odd.plugin", kind="unknown"), {}),
    ],
    ids=["test", "command", "schema", "json", "reported", "tool", "text"],
)  # fmt: skip
def test_only_parts_of_a_signature_without_quotations_are_shown(
    result: VerificationResult, parts: dict[str, Any]
) -> None:
    explained = explain_signature(classify_failure(result, source="verify"))
    assert redacted_parts(explained) == parts
    assert "SEK" not in str(redacted_parts(explained))


def test_a_cause_that_is_not_a_name_is_left_out() -> None:
    def cause(code: str) -> str | None:
        finding = Finding(message="it is wrong", code=code)
        result = failed("external.score", finding, kind="reasoning_error")
        return classify_failure(result, source="verify").cause

    assert cause("tense.past") == "tense.past"
    assert cause("the answer said I goed") is None
    assert is_name("rate_limit")
    assert not is_name("")
    assert not is_name(None)
