"""Failures as values: kinds, verification results, payloads and failure records."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, model_validator

from mulligan.policies.value import Json, Value

#: The verifier of a job whose attempts are reported together with their score.
GIVEN_SCORE = "external.score"
#: In the evidence of a verifier: how many errors it found beyond those that it lists.
UNLISTED = "unlisted"


class FailureKind(StrEnum):
    """The kinds of failure, by their wire names. Each also has a lower-case alias."""

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


_PLAIN_KEY = re.compile(r"[A-Za-z_][\w-]*\Z", re.ASCII)


def json_path(parts: Sequence[str | int]) -> str:
    """Return ``$.items[0].age``; keys that are not plain words are quoted: ``$['a b']``."""
    return "$" + "".join(_step(part) for part in parts)


def _step(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if _PLAIN_KEY.match(part) else f"[{part!r}]"


class Finding(Value):
    """One verified error: what is wrong, where, and of which class (``code``)."""

    message: str
    #: Stable and language-free: ``required``, ``type``, ``assertion``, ``truncated``…
    code: str | None = None
    #: The exact place: ``$.items[0].age``, ``test_bitcount.py::test_zero``, a file name.
    path: str | None = None
    #: The place in the contract, for schemas: ``/properties/age/type``.
    schema_path: str | None = None
    expected: Json = None
    actual: Json = None
    #: A value that would be right, if one can be made: a text that matches the pattern.
    example: Json = None
    #: The number of places with this error. Only the first few of many are separate findings.
    count: int = Field(default=1, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"message": value} if isinstance(value, str) else value


class VerificationResult(Value):
    """The verdict of one verifier on one output."""

    status: VerificationStatus
    verifier_id: str
    summary: str = ""
    #: Structured facts for signatures; docs/verifiers.md names each verifier's keys.
    evidence: dict[str, Json] = Field(default_factory=dict)
    errors: tuple[Finding, ...] = ()
    warnings: tuple[str, ...] = ()
    elapsed_seconds: float = Field(default=0.0, ge=0)
    #: 0 to 100. None means 100 for a pass and 0 for a failure; a skipped verifier has no score.
    score: float | None = Field(default=None, ge=0, le=100)
    #: Whether the answer ran in the process that reached this verdict, and so might have forged it.
    in_process: bool = False


class ParseFailure(Value):
    """A text that is not the JSON it should be."""

    message: str
    text: str = ""
    truncated: bool = False
    line: int | None = None
    column: int | None = None


class SchemaFailure(Value):
    """A value that violates its contract."""

    message: str
    errors: tuple[Finding, ...] = ()
    contract: str | None = None


class ConfigFailure(Value):
    """A job that is configured wrongly: asking the model again cannot help."""

    message: str
    field: str | None = None


class FailureRecord(Value):
    """One classified failure."""

    kind: FailureKind
    #: The strict signature, equal only for the same failure. The retry memory counts it.
    classification_signature: str
    #: Operands and values masked. Fleet statistics and remedies are keyed by it.
    coarse_signature: str
    message: str
    source: FailureSource
    attempt: int = Field(default=1, ge=1)
    node_id: str | None = None
    verifier_id: str | None = None
    #: The finer cause, language-free: ``required``, ``fence``, ``truncated``, ``timeout``…
    cause: str | None = None
    #: Whether only the words of a message say which kind it is. Such a kind never ends a job.
    guessed: bool = False
    #: Every verified error of this failure.
    findings: tuple[Finding, ...] = ()
    evidence: dict[str, Json] = Field(default_factory=dict)

    @property
    def label(self) -> str:
        """``kind.cause``, or the kind alone. Reports group by it."""
        return f"{self.kind.value}.{self.cause}" if self.cause else self.kind.value

    def rewritten(self, rewrite: Callable[[str], str]) -> FailureRecord:
        """Return the record with every text for people and prompts rewritten."""
        findings = [each.model_dump() for each in self.findings]
        texts = {"message": self.message, "findings": findings, "evidence": self.evidence}
        return FailureRecord.model_validate({**dict(self), **_rewritten(texts, rewrite)})


def _rewritten(value: Any, rewrite: Callable[[str], str]) -> Any:
    match value:
        case str():
            return rewrite(value)
        case dict():
            return {key: _rewritten(item, rewrite) for key, item in value.items()}
        case list():
            return [_rewritten(item, rewrite) for item in value]
    return value


def failure_record_to_dict(record: FailureRecord) -> dict[str, Any]:
    """Return the JSON form of a record, which ``failure_record_from_dict`` reads back."""
    return record.model_dump(mode="json")


def failure_record_from_dict(data: Mapping[str, Any]) -> FailureRecord:
    """Read a stored record. Ignore a newer version's fields; its new kinds become ``unknown``."""
    kind = data.get("kind")
    known = kind if kind in list(FailureKind) else FailureKind.UNKNOWN
    return FailureRecord.model_validate({**data, "kind": known}, extra="ignore")
