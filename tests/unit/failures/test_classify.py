"""Classification of failures by structure, and by message text only as the last resort."""

from __future__ import annotations

import json
import subprocess
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from mulligan.policies.failures.classify import classify_failure
from mulligan.policies.failures.describe import describe_failure
from mulligan.policies.failures.failure import (
    ConfigFailure,
    FailureKind,
    FailureRecord,
    Finding,
    ParseFailure,
    SchemaFailure,
    VerificationResult,
    VerificationStatus,
    failure_record_from_dict,
    failure_record_to_dict,
)
from mulligan.policies.failures.memory import RetryMemory
from mulligan.policies.failures.plain_json import MAX_MESSAGE
from mulligan.policies.repair.instruction import reduce_failure_to_repair
from mulligan.policies.repair.retry import RetryPolicy
from mulligan.tasks.ports.errors import (
    BadInput,
    MissingBlob,
    RunnerError,
    TransportFault,
    VerifierError,
)


def classify(payload: object, **extras: Any) -> FailureRecord:
    return classify_failure(payload, source="task", **extras)


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    error.__cause__ = cause
    return error


# -- verifications --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verifier_id", "evidence", "codes", "kind", "cause"),
    [
        ("contract.schema", {"contract": "c"}, ["required"], "schema_invalid", "required"),
        ("contract.schema", {"contract": "c"}, ["type", "required"], "schema_invalid", "type"),
        # not JSON: the shape is the cause, as for json.object
        ("contract.schema", {"shape": "prose"}, ["not_json"], "schema_invalid", "prose"),
        ("json.object", {"shape": "fence"}, ["fence"], "json_invalid", "fence"),
        ("json.object", {"shape": "empty"}, [], "json_invalid", "empty"),
        ("json.object", {"shape": "object", "decoder": "x"}, [], "json_invalid", "syntax"),
        ("json.object", {"shape": "prose", "truncated": True}, [], "json_invalid", "truncated"),
        # a whole array is not an object, whether the text after it was cut off or not
        ("json.object", {"shape": "not_object", "truncated": True}, [], "json_invalid",
         "not_object"),
        ("pytest.subprocess", {"exit_code": 1}, ["assertion"], "test_failed", "assertion"),
        ("pytest.subprocess", {"exit_code": 2, "reason": "collection_error"}, [], "test_failed",
         "collection_error"),
        # the reason why they could not be collected is more specific
        ("pytest.subprocess", {"exit_code": 2}, ["collection_error", "import_error"],
         "test_failed", "import_error"),
        ("pytest.subprocess", {"exit_code": 1}, ["forged", "assertion"], "test_failed", "forged"),
        ("pytest.subprocess", {"signal": 9}, ["timeout"], "command_failed", "timeout"),
        ("pytest.subprocess", {"exit_code": 5, "reason": "no_tests"}, [], "test_failed",
         "no_tests"),
        ("pytest.subprocess", {"failed": [{"nodeid": "t", "exception": "builtins.TypeError"}]}, [],
         "test_failed", "exception"),
        ("pytest.subprocess", {"failed": [{"exception": "ModuleNotFoundError"}]}, [],
         "test_failed", "import_error"),
        ("pytest.subprocess", {"failed": [{"exception": "IndentationError"}]}, [],
         "test_failed", "syntax_error"),
        # a killed test run says nothing about the tests
        ("pytest.subprocess", {"timed_out": True}, ["timeout"], "command_failed", "timeout"),
        ("command.subprocess", {"exit_code": 1}, [], "command_failed", "exit"),
        ("command.subprocess", {"exit_code": 127}, [], "command_failed", "not_found"),
        ("command.subprocess", {"signal": 9}, [], "command_failed", "signal"),
        ("command.subprocess", {"timed_out": True}, [], "command_failed", "timeout"),
        ("text.match", {}, ["forbidden"], "reasoning_error", "forbidden"),
        # plug-ins
        ("acme.lint", {}, [], "tool_error", None),
        ("acme.lint", {}, ["style"], "tool_error", "style"),
        ("acme.lint", {"kind": "unsafe_request"}, [], "unsafe_request", None),
        ("acme.lint", {"kind": "no such kind"}, [], "tool_error", None),
        # the id of a known verifier takes precedence over its evidence
        ("text.match", {"kind": "test_failed"}, ["missing"], "reasoning_error", "missing"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("summary", ["failed", "überhaupt nicht, 失敗しました"])
def test_a_failed_verification_has_a_kind_and_a_cause(
    verifier_id: str,
    evidence: dict[str, Any],
    codes: list[str],
    kind: str,
    cause: str | None,
    summary: str,
) -> None:
    errors = tuple(Finding(message=summary, code=code, path=f"$.{code}") for code in codes)
    result = VerificationResult(
        status=VerificationStatus.FAIL,
        verifier_id=verifier_id,
        summary=summary,
        evidence=evidence,
        errors=errors,
    )
    record = classify_failure(result, source="verify", attempt=3, node_id="n1")
    assert record.kind == kind
    assert record.cause == cause
    assert record.findings == errors
    assert (record.verifier_id, record.source, record.attempt, record.node_id) == (
        (verifier_id, "verify", 3, "n1")
    )
    assert record.message == summary
    assert classify(result.model_dump(mode="json")).kind == kind


@pytest.mark.parametrize("status", ["pass", "warn", "skipped"])
def test_only_a_failed_verification_is_a_failure(status: str) -> None:
    data = {"status": status, "verifier_id": "json.object"}
    with pytest.raises(ValueError, match="only a failed verification"):
        classify(VerificationResult.model_validate(data))
    with pytest.raises(ValueError, match="only a failed verification"):
        classify(data)


@pytest.mark.parametrize(
    ("verifier_id", "cause"),
    [
        ("json.object", "truncated"),
        ("pytest.subprocess", "truncated"),
        ("command.subprocess", "truncated"),
        ("text.match", "truncated"),
        # a contract judges only whole values, and a plug-in is unknown
        ("contract.schema", "type"),
        ("acme.lint", "type"),
    ],
)
def test_a_truncated_answer_fails_for_that_reason(verifier_id: str, cause: str) -> None:
    result = VerificationResult(
        status=VerificationStatus.FAIL,
        verifier_id=verifier_id,
        errors=(Finding(message="m", code="type"),),
    )
    assert classify(result, truncated=True).cause == cause


def test_every_kind_has_a_lower_case_alias() -> None:
    names = {name for kind in FailureKind for name in (kind.name, kind.value)}
    assert FailureKind.__members__.keys() == names


# -- failure values -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "kind", "cause"),
    [
        (ParseFailure(message="Expecting value: line 1", text="Hi!"), "json_invalid", "prose"),
        (ParseFailure(message="x", text='{"a": ', truncated=True), "json_invalid", "truncated"),
        (ParseFailure(message="x", text="", truncated=False), "json_invalid", "syntax"),
        (ParseFailure(message="x", text=" "), "json_invalid", "empty"),
        (
            SchemaFailure(message="x", errors=(Finding(message="m", code="enum"),), contract="c"),
            "schema_invalid",
            "enum",
        ),
        (SchemaFailure(message="x"), "schema_invalid", "value"),
        (ConfigFailure(message="x", field="runner"), "reasoning_error", "config"),
        (ConfigFailure(message="x"), "reasoning_error", "config"),
    ],
)
def test_a_failure_value_has_a_kind_and_a_cause(failure: object, kind: str, cause: str) -> None:
    record = classify(failure)
    assert (record.kind, record.cause) == (kind, cause)


# -- exceptions -----------------------------------------------------------------------------------


class ProviderError(Exception):
    def __init__(self, message: str = "x", **attributes: Any) -> None:
        super().__init__(message)
        self.__dict__ |= attributes


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    age: int
    role: Literal["a", "b"] = "a"


@pytest.mark.parametrize(
    ("error", "kind", "cause"),
    [
        (json.JSONDecodeError("Expecting value", "x", 0), "json_invalid", "syntax"),
        (AssertionError("2 != 0"), "test_failed", "assertion"),
        (SyntaxError("bad"), "test_failed", "syntax_error"),
        (IndentationError("bad"), "test_failed", "syntax_error"),
        (subprocess.TimeoutExpired(["a"], 3), "command_failed", "timeout"),
        (subprocess.CalledProcessError(3, ["a"]), "command_failed", "exit"),
        (subprocess.CalledProcessError(127, ["a"]), "command_failed", "not_found"),
        (subprocess.CalledProcessError(-9, ["a"]), "command_failed", "signal"),
        (TimeoutError(), "command_failed", "timeout"),
        (FileNotFoundError(2, "No such file", "a.txt"), "missing_context", "file_not_found"),
        (ModuleNotFoundError("no", name="numpy"), "missing_context", "import_error"),
        (KeyError("name"), "schema_invalid", "missing_key"),
        (MissingBlob("gone"), "missing_context", "missing_blob"),
        (BadInput("runner: unknown"), "reasoning_error", "config"),
        (ConnectionRefusedError(111, "x"), "tool_error", "connection"),
        (PermissionError(13, "x", "/etc/x"), "tool_error", "permission"),
        (VerifierError("no pytest"), "tool_error", "verifier"),
        (RunnerError("x"), "tool_error", "runner"),
        (MemoryError(), "tool_error", "resources"),
        (OSError(28, "full"), "tool_error", "system"),
        # attributes take precedence over the class
        (TransportFault("x", provider="p", status=429), "tool_error", "rate_limit"),
        (TransportFault("x", provider="p"), "tool_error", "transport"),
        (RunnerError("x", {"kind": "unsafe_request"}), "unsafe_request", None),
        (RunnerError("x", {"kind": "tool_error", "class": "key_refused"}), "tool_error",
         "key_refused"),
        (RunnerError("x", {"exit_code": 3}), "command_failed", "exit"),
        (RunnerError("x", {"kind": "nonsense"}), "tool_error", "runner"),
        (ProviderError(status_code=503), "tool_error", "server"),
        (ProviderError(status=401), "tool_error", "auth"),
        (ProviderError(status=418), "tool_error", "request"),
        (ProviderError(returncode=2), "command_failed", "exit"),
        (ProviderError(retry_after=3), "tool_error", "transport"),
        (ProviderError(code="context_length_exceeded", status=400), "tool_error",
         "context_length"),
        (ProviderError(code="content_filter"), "unsafe_request", "content_filter"),
        # the original exception takes precedence over the message
        (raised(RuntimeError("timed out"), ConnectionError()), "tool_error", "connection"),
        # the message comes last
        (RuntimeError("deadline exceeded"), "command_failed", "timeout"),
        (RuntimeError("etwas ging schief"), "unknown", "unknown"),
    ],
)  # fmt: skip
def test_an_exception_has_a_kind_and_a_cause(
    error: BaseException, kind: str, cause: str | None
) -> None:
    record = classify(error)
    assert (record.kind, record.cause) == (kind, cause)
    stored = json.dumps(failure_record_to_dict(record))
    assert failure_record_from_dict(json.loads(stored)) == record


@pytest.mark.parametrize(
    ("error", "path"),
    [
        (KeyError("name"), "name"),
        (ImportError("no", name="numpy"), "numpy"),
        (FileNotFoundError(2, "No such file", "a.txt"), "a.txt"),
        (SyntaxError("bad", ("m.py", 3, 1, "x")), "m.py"),
    ],
)
def test_an_exception_names_its_place(error: BaseException, path: str) -> None:
    assert classify(error).findings[0].path == path


def test_a_pydantic_error_has_a_finding_for_each_field() -> None:
    with pytest.raises(ValidationError) as caught:
        Person.model_validate({"age": "old", "extra": 1, "role": "c"})
    record = classify(caught.value)
    assert record.kind is FailureKind.SCHEMA_INVALID
    assert {(finding.code, finding.path) for finding in record.findings} == {
        ("required", "$.name"),
        ("type", "$.age"),
        ("additionalProperties", "$.extra"),
        ("enum", "$.role"),
    }
    assert record.cause == "required"
    assert record.evidence["contract"] == "Person"


def test_many_equal_errors_of_a_model_are_counted() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(list[Person]).validate_python([{"name": "a", "age": "old"}] * 1000)
    findings = classify(caught.value).findings
    assert [finding.count for finding in findings] == [1, 1, 1, 1, 996]
    assert findings[0].path == "$[0].age"


def test_the_output_of_a_program_is_kept() -> None:
    error = subprocess.CalledProcessError(2, ["make", "x"], stderr=b"no rule \xff")
    record = classify(error)
    assert record.evidence["argv"] == ["make", "x"]
    assert record.evidence["exit_code"] == 2
    assert record.evidence["stderr_tail"].startswith("no rule")


# -- dicts and texts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "kind", "cause"),
    [
        *(({"kind": kind.value, "cause": "c"}, kind.value, "c") for kind in FailureKind),
        ({"kind": "reasoning_error", "cause": "low_score"}, "reasoning_error", "low_score"),
        # an explicit kind takes precedence over everything else
        ({"kind": "unsafe_request", "exit_code": 1}, "unsafe_request", None),
        ({"exit_code": 3}, "command_failed", "exit"),
        ({"returncode": 3}, "command_failed", "exit"),
        ({"exit_code": 0, "message": "zażółć"}, "unknown", "unknown"),
        ({"timed_out": True}, "command_failed", "timeout"),
        ({"status": 502}, "tool_error", "server"),
        ({"status": 200, "message": "ok?"}, "unknown", "unknown"),
        ({"error": {"code": "rate_limit_exceeded", "message": "x"}}, "tool_error", "rate_limit"),
        ({"code": "ECONNREFUSED"}, "tool_error", "connection"),
        ({"finish_reason": "length"}, "json_invalid", "truncated"),
        ({"shape": "prose"}, "json_invalid", "prose"),
        ({"contract": "c", "errors": [{"message": "m", "code": "type"}]}, "schema_invalid",
         "value"),
        ({"failed": [{"nodeid": "t", "exception": "AssertionError"}]}, "test_failed", "assertion"),
        ({"exception": "builtins.KeyError"}, "schema_invalid", "missing_key"),
        ({"evidence": {"exit_code": 9}}, "command_failed", "exit"),
        # a language without keywords: the structure decides
        ({"exit_code": 1, "message": "不正なリクエスト"}, "command_failed", "exit"),
        # a misleading message: the structure decides
        ({"status": 500, "message": "invalid JSON in tests"}, "tool_error", "server"),
        ({"message": "two tests failed"}, "test_failed", "assertion"),
        ({}, "unknown", "unknown"),
    ],
)  # fmt: skip
def test_a_mapping_has_a_kind_and_a_cause(
    payload: dict[str, Any], kind: str, cause: str | None
) -> None:
    record = classify(payload)
    assert (record.kind, record.cause) == (kind, cause)


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'oops'.*schema_invalid.*unknown"):
        classify({"kind": "oops"})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("The response is not valid JSON", "json_invalid"),
        ("Field 'x' violates the schema", "schema_invalid"),
        ("3 tests failed", "test_failed"),
        ("command failed with exit code 3", "command_failed"),
        ("The operation timed out", "command_failed"),
        ("No such file or directory: x", "missing_context"),
        ("429 Too Many Requests", "tool_error"),
        ("Connection refused", "tool_error"),
        ("hm", "unknown"),
    ],
)
def test_a_text_is_classified_by_keywords(text: str, kind: str) -> None:
    for payload in (text, {"message": text}, ValueError(text)):
        record = classify(payload)
        assert (record.kind, record.guessed) == (kind, True)


@pytest.mark.parametrize(
    "text",
    [
        "unsafe character in filename",
        "This request is unsafe",
        "the same failure again",
        "a policy violation, disallowed by the content policy",
        "the field gateway is empty",
    ],
)
def test_a_phrase_never_means_a_kind_that_ends_a_job(text: str) -> None:
    for payload in (text, {"message": text}, ValueError(text)):
        assert classify(payload).kind == "unknown"


@pytest.mark.parametrize(
    "payload",
    [
        {"kind": "tool_error", "message": "gone"},
        {"status": 503, "message": "timed out"},
        ConnectionError("timed out"),
        ProviderError(code="content_filter"),
        VerificationResult(status=VerificationStatus.FAIL, verifier_id="json.object"),
    ],
)
def test_a_kind_from_structure_is_no_guess(payload: object) -> None:
    assert not classify(payload).guessed


def test_a_maximum_length_is_the_cause_even_of_an_answer_that_was_cut_off() -> None:
    finding = Finding(message="too many characters", code="too_long", expected=10, actual=900)
    result = VerificationResult(
        status=VerificationStatus.FAIL, verifier_id="text.match", errors=(finding,)
    )
    record = classify_failure(result, source="verify", truncated=True)
    assert (record.cause, "truncated" in record.evidence) == ("too_long", False)
    assert reduce_failure_to_repair(record).token_cap_factor == 1


def test_a_payload_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="int"):
        classify(3)


# -- nodes of a graph ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "label", "described", "action"),
    [
        (ConnectionError("refused"), "tool_error.connection", "tool_error connection", "ask_again"),
        (
            subprocess.CalledProcessError(3, ["make"]),
            "command_failed.exit",
            "command_failed exit 3",
            "fix_exit",
        ),
        (
            {"kind": "missing_context", "message": "parse was not merged"},
            "missing_context",
            "missing_context",
            "use_given_context",
        ),
    ],
)
def test_the_failure_of_a_node_is_signed_stored_and_instructed(
    error: object, label: str, described: str, action: str
) -> None:
    """As the handbook classifies an executor's error: by the node's attempts, error and id."""
    record = classify_failure(error, source="graph", attempt=2, node_id="build")
    assert (record.source, record.node_id, record.attempt) == ("graph", "build", 2)
    assert record.label == label
    assert failure_record_from_dict(failure_record_to_dict(record)) == record
    assert describe_failure(record) == f"build: {described}"
    assert describe_failure(record, texts=False) == f"build: {described}"
    assert reduce_failure_to_repair(record).action == action
    # The same failure of another node belongs to the same group.
    other = classify_failure(error, source="graph", attempt=1, node_id="test")
    assert other.classification_signature == record.classification_signature


def test_a_node_is_retried_until_its_failure_repeats() -> None:
    policy, memory, decided = RetryPolicy(max_attempts=9), RetryMemory(), []
    for attempt in (1, 2, 3):
        record = classify_failure(OSError("disk"), source="graph", attempt=attempt, node_id="build")
        decided.append(policy.should_retry(record, memory))
        memory = memory.record(record)
    assert decided == [True, True, False]


def test_a_failure_of_a_graph_names_its_node() -> None:
    with pytest.raises(ValueError, match="node_id"):
        classify_failure(OSError("disk"), source="graph")


# -- records --------------------------------------------------------------------------------------

JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner)
    | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
KEYS = st.sampled_from(
    ["kind", "status", "exit_code", "signal", "code", "argv", "failed", "shape", "x", "reason"]
)


@settings(deadline=None)
@given(
    st.sampled_from(["json.object", "contract.schema", "pytest.subprocess", "command.subprocess",
                     "text.match", "acme.lint"]),
    st.dictionaries(KEYS, JSON_LIKE, max_size=5),
    st.lists(st.builds(Finding, message=st.text(), code=st.none() | st.text(max_size=5),
                       expected=JSON_LIKE, actual=JSON_LIKE), max_size=3),
)  # fmt: skip
def test_any_verification_becomes_a_record_that_survives_json(
    verifier_id: str, evidence: dict[str, Any], errors: list[Finding]
) -> None:
    result = VerificationResult(
        status=VerificationStatus.FAIL,
        verifier_id=verifier_id,
        evidence=evidence,
        errors=tuple(errors),
    )
    record = classify(result)
    stored = json.dumps(failure_record_to_dict(record), allow_nan=False)
    assert stored.encode()
    assert failure_record_from_dict(json.loads(stored)) == record


def test_records_are_bounded_and_storable() -> None:
    record = classify({"kind": "unknown", "message": "\ud800" + "x" * 99_999})
    assert len(record.message) == MAX_MESSAGE
    assert record.message.encode()


def test_a_record_always_has_a_message() -> None:
    assert classify({"kind": "tool_error"}).message == "tool_error without a message"


def test_a_truncated_answer_is_described_with_its_kind() -> None:
    record = classify_failure({"finish_reason": "length"}, source="task", attempt=1)
    assert describe_failure(record) == "json_invalid truncated"
