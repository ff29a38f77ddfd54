"""What can go wrong, as values: kinds, verification results, payloads and failure records."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, model_validator

from mulligan.policies.value import Json, Value

#: The verifier of a job whose score comes with the attempt.
GIVEN_SCORE = "external.score"


class FailureKind(StrEnum):
    """The kinds of failure, by their wire names. Each is also its own lower-case alias."""

    SCHEMA_INVALID = "schema_invalid"
    JSON_INVALID = "json_invalid"
    TEST_FAILED = "test_failed"
    COMMAND_FAILED = "command_failed"
    MISSING_CONTEXT = "missing_context"
    REASONING_ERROR = "reasoning_error"
    REPEATED_FAILURE = "repeated_failure"
    UNSAFE_REQUEST = "unsafe_request"
    TOOL_ERROR = "tool_error"
    UNKNOWN = "unknown"

    schema_invalid = "schema_invalid"
    json_invalid = "json_invalid"
    test_failed = "test_failed"
    command_failed = "command_failed"
    missing_context = "missing_context"
    reasoning_error = "reasoning_error"
    repeated_failure = "repeated_failure"
    unsafe_request = "unsafe_request"
    tool_error = "tool_error"
    unknown = "unknown"


class VerificationStatus(StrEnum):
    PASS = "pass"  # noqa: S105 - a status, not a password
    FAIL = "fail"
    WARN = "warn"
    SKIPPED = "skipped"


FailureSource = Literal["task", "verify", "graph"]


class Finding(Value):
    """One verified error: what is wrong, where, and in which class of its own (``code``)."""

    message: str
    #: A stable, language-free class: ``required``, ``type``, ``assertion``, ``truncated``…
    code: str | None = None
    #: The exact place: ``$.items[0].age``, ``test_bitcount.py::test_zero``, a file name.
    path: str | None = None
    #: The place in the contract, for schemas: ``/properties/age/type``.
    schema_path: str | None = None
    expected: Json = None
    actual: Json = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"message": value} if isinstance(value, str) else value


class VerificationResult(Value):
    """What one verifier says of one output."""

    status: VerificationStatus
    verifier_id: str
    summary: str = ""
    #: Structured facts that signatures are made of; docs/verifiers.md names each verifier's keys.
    evidence: dict[str, Json] = Field(default_factory=dict)
    errors: tuple[Finding, ...] = ()
    warnings: tuple[str, ...] = ()
    elapsed_seconds: float = Field(default=0.0, ge=0)
    #: 0 to 100. None: 100 for a pass, 0 for a failure; a skipped verifier has no score.
    score: float | None = Field(default=None, ge=0, le=100)


class ParseFailure(Value):
    """A text that should have been JSON and was not."""

    message: str
    text: str = ""
    truncated: bool = False
    line: int | None = None
    column: int | None = None


class SchemaFailure(Value):
    """A value that breaks its contract."""

    message: str
    errors: tuple[Finding, ...] = ()
    contract: str | None = None


class ConfigFailure(Value):
    """A job that was routed or configured wrongly: asking the model again cannot help."""

    message: str
    field: str | None = None


class FailureRecord(Value):
    """One classified failure."""

    kind: FailureKind
    #: Strict: the same only for the same failure. What the retry memory counts.
    classification_signature: str
    #: Operands and values masked: what fleet statistics and remedies are keyed by.
    coarse_signature: str
    message: str
    source: FailureSource
    attempt: int = Field(default=1, ge=1)
    node_id: str | None = None
    verifier_id: str | None = None
    #: The finer cause, language-free: ``required``, ``fence``, ``truncated``, ``timeout``…
    cause: str | None = None
    #: Every verified error of this failure, first the one that decides.
    findings: tuple[Finding, ...] = ()
    evidence: dict[str, Json] = Field(default_factory=dict)

    @property
    def label(self) -> str:
        """``kind.cause``, or the kind alone: what reports group by."""
        return f"{self.kind.value}.{self.cause}" if self.cause else self.kind.value


def failure_record_to_dict(record: FailureRecord) -> dict[str, Any]:
    """JSON-friendly form of a record; ``failure_record_from_dict`` reads it back."""
    return record.model_dump(mode="json")


def failure_record_from_dict(data: Mapping[str, Any]) -> FailureRecord:
    """A stored record. What a newer version added is ignored; a kind it added is ``unknown``."""
    kind = data.get("kind")
    known = kind if kind in list(FailureKind) else FailureKind.UNKNOWN
    return FailureRecord.model_validate({**data, "kind": known}, extra="ignore")
