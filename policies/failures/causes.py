"""The tables for classification, and the functions that read them. English text comes last.

A finer cause is a language-free word (``required``, ``timeout``, ``rate_limit``). Exceptions are
recognised by the names of their classes, so that nothing has to be imported for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mulligan.policies.failures.failure import FailureKind as Kind
from mulligan.policies.failures.failure import Finding
from mulligan.policies.value import Json

KindAndCause = tuple[Kind, str]

#: The kind of a failed verification, by verifier.
VERIFIERS: dict[str, Kind] = {
    "contract.schema": Kind.SCHEMA_INVALID,
    "json.object": Kind.JSON_INVALID,
    "pytest.subprocess": Kind.TEST_FAILED,
    "command.subprocess": Kind.COMMAND_FAILED,
    "text.match": Kind.REASONING_ERROR,
}

#: Looked up along the method resolution order, so that subclasses are recognised too.
EXCEPTIONS: dict[str, KindAndCause] = {
    # content
    "JSONDecodeError": (Kind.JSON_INVALID, "syntax"),
    "ValidationError": (Kind.SCHEMA_INVALID, "value"),
    # The code read a field that the answer does not have.
    "KeyError": (Kind.SCHEMA_INVALID, "missing_key"),
    "AssertionError": (Kind.TEST_FAILED, "assertion"),
    "SyntaxError": (Kind.TEST_FAILED, "syntax_error"),
    # programs
    "TimeoutExpired": (Kind.COMMAND_FAILED, "timeout"),
    "CalledProcessError": (Kind.COMMAND_FAILED, "exit"),
    "SystemExit": (Kind.COMMAND_FAILED, "exit"),
    "SoftTimeLimitExceeded": (Kind.COMMAND_FAILED, "timeout"),
    "TimeLimitExceeded": (Kind.COMMAND_FAILED, "timeout"),
    "TimeoutError": (Kind.COMMAND_FAILED, "timeout"),
    # something is missing
    "FileNotFoundError": (Kind.MISSING_CONTEXT, "file_not_found"),
    "ImportError": (Kind.MISSING_CONTEXT, "import_error"),
    "MissingBlob": (Kind.MISSING_CONTEXT, "missing_blob"),
    # a wrong configuration
    "BadInput": (Kind.REASONING_ERROR, "config"),
    # providers and infrastructure
    "TransportFault": (Kind.TOOL_ERROR, "transport"),
    "APITimeoutError": (Kind.TOOL_ERROR, "timeout"),
    "TimeoutException": (Kind.TOOL_ERROR, "timeout"),
    "APIConnectionError": (Kind.TOOL_ERROR, "connection"),
    "TransportError": (Kind.TOOL_ERROR, "connection"),
    "RateLimitError": (Kind.TOOL_ERROR, "rate_limit"),
    "APIError": (Kind.TOOL_ERROR, "provider"),
    "ConnectionError": (Kind.TOOL_ERROR, "connection"),
    "PermissionError": (Kind.TOOL_ERROR, "permission"),
    "VerifierError": (Kind.TOOL_ERROR, "verifier"),
    "RunnerError": (Kind.TOOL_ERROR, "runner"),
    "WorkerLostError": (Kind.TOOL_ERROR, "worker_lost"),
    "LedgerUnavailable": (Kind.TOOL_ERROR, "ledger"),
    "MemoryError": (Kind.TOOL_ERROR, "resources"),
    "RecursionError": (Kind.TOOL_ERROR, "resources"),
    "UnicodeError": (Kind.TOOL_ERROR, "encoding"),
    "OSError": (Kind.TOOL_ERROR, "system"),
}

#: Error codes and finish reasons of providers.
ERROR_CODES: dict[str, KindAndCause] = {
    "content_filter": (Kind.UNSAFE_REQUEST, "content_filter"),
    "content_policy_violation": (Kind.UNSAFE_REQUEST, "content_filter"),
    "moderation_blocked": (Kind.UNSAFE_REQUEST, "content_filter"),
    "length": (Kind.JSON_INVALID, "truncated"),
    "context_length_exceeded": (Kind.TOOL_ERROR, "context_length"),
    "exceed_context_size_error": (Kind.TOOL_ERROR, "context_length"),
    "rate_limit_exceeded": (Kind.TOOL_ERROR, "rate_limit"),
    "insufficient_quota": (Kind.TOOL_ERROR, "quota"),
    "invalid_api_key": (Kind.TOOL_ERROR, "auth"),
    "model_not_found": (Kind.TOOL_ERROR, "not_found"),
    "ENOENT": (Kind.MISSING_CONTEXT, "file_not_found"),
    "ETIMEDOUT": (Kind.TOOL_ERROR, "timeout"),
    "ECONNREFUSED": (Kind.TOOL_ERROR, "connection"),
    "ECONNRESET": (Kind.TOOL_ERROR, "connection"),
}

#: HTTP statuses with a specific cause; other 4xx are ``request``, 5xx ``server``.
STATUSES: dict[int, str] = {
    401: "auth",
    402: "quota",
    403: "auth",
    404: "not_found",
    408: "timeout",
    413: "context_length",
    429: "rate_limit",
    504: "timeout",
}

#: JSON Schema keywords by patterns of pydantic's error types; the first match wins.
PYDANTIC_KEYWORDS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^missing"), "required"),
    (re.compile(r"^extra_forbidden$|^unexpected_"), "additionalProperties"),
    (re.compile(r"^(?:literal_error|enum)$"), "enum"),
    (re.compile(r"^greater_than$"), "exclusiveMinimum"),
    (re.compile(r"^greater_than"), "minimum"),
    (re.compile(r"^less_than$"), "exclusiveMaximum"),
    (re.compile(r"^less_than"), "maximum"),
    (re.compile(r"^multiple_of$"), "multipleOf"),
    (re.compile(r"^too_short$"), "minItems"),
    (re.compile(r"^too_long$"), "maxItems"),
    (re.compile(r"_too_short$"), "minLength"),
    (re.compile(r"_too_long$"), "maxLength"),
    (re.compile(r"^string_pattern_mismatch$"), "pattern"),
    (re.compile(r"^(?:date|time|uuid|url|ip_)\w{0,40}(?:parsing|invalid|type)$"), "format"),
    (re.compile(r"_(?:type|parsing)$|^(?:none_required|is_instance_of)$"), "type"),
)

#: Where pydantic keeps what it expects, by its error's context.
_PYDANTIC_EXPECTED = (
    "expected", "ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length", "pattern",
)  # fmt: skip
#: What pydantic puts before a validator's message.
_PYDANTIC_PREFIXES = ("Value error, ", "Assertion failed, ")

#: The last resort, for messages without any structure: common English phrases. A kind found here
#: is a guess and never ends a job; no phrase means ``unsafe_request`` or ``repeated_failure``.
PHRASES: tuple[tuple[re.Pattern[str], KindAndCause], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), classified)
    for pattern, classified in (
        (r"rate limit|too many requests", (Kind.TOOL_ERROR, "rate_limit")),
        (
            r"connection (?:refused|reset|aborted|error)|bad gateway|gateway time-?out"
            r"|service unavailable|name resolution",
            (Kind.TOOL_ERROR, "connection"),
        ),
        (r"timed? ?out|deadline exceeded", (Kind.COMMAND_FAILED, "timeout")),
        (r"truncated|cut off|unexpected end of (?:json|input)", (Kind.JSON_INVALID, "truncated")),
        (
            r"(?:in|not )valid json|json ?decode|expecting value|parse json",
            (Kind.JSON_INVALID, "syntax"),
        ),
        (
            r"schema|required property|missing (?:required )?field|validation error",
            (Kind.SCHEMA_INVALID, "value"),
        ),
        (r"tests? failed|failed tests?|assertion", (Kind.TEST_FAILED, "assertion")),
        (
            r"missing (?:context|information|input)|not provided|no such file"
            r"|undefined variable|no module named",
            (Kind.MISSING_CONTEXT, "not_given"),
        ),
        (
            r"exit(?:ed with)? (?:code|status)|non-?zero exit|command (?:failed|not found)",
            (Kind.COMMAND_FAILED, "exit"),
        ),
    )
)


def by_class_names(names: list[str]) -> KindAndCause | None:
    """Classify an exception by the names of its class and its bases, nearest first."""
    return next((EXCEPTIONS[name] for name in names if name in EXCEPTIONS), None)


def by_status(status: int) -> KindAndCause:
    """Classify an HTTP status of 400 or more."""
    return Kind.TOOL_ERROR, STATUSES.get(status, "server" if status >= 500 else "request")


def by_phrase(message: str) -> KindAndCause:
    """Classify a message by its words; ``unknown`` if the table has none of them."""
    text = message[:4096]
    found = (classified for pattern, classified in PHRASES if pattern.search(text))
    return next(found, (Kind.UNKNOWN, "unknown"))


def pydantic_keyword(error_type: str) -> str:
    """Return the JSON Schema keyword for a pydantic error type, or else the type itself."""
    found = (keyword for pattern, keyword in PYDANTIC_KEYWORDS if pattern.search(error_type))
    return next(found, error_type)


def pydantic_message(message: str) -> str:
    """Return the message of a validator as it was raised."""
    for prefix in _PYDANTIC_PREFIXES:
        message = message.removeprefix(prefix)
    return message


def pydantic_expected(context: Mapping[str, Json] | None) -> Json:
    """Return what a pydantic error expects; None if it does not say so."""
    known = context or {}
    return next((known[name] for name in _PYDANTIC_EXPECTED if name in known), None)


def cause_of(kind: Kind, findings: Sequence[Finding], evidence: Mapping[str, Json]) -> str | None:
    """Return the finer cause: from the evidence, else the code of the first finding with one."""
    code = next((finding.code for finding in findings if finding.code), None)
    match kind:
        case Kind.JSON_INVALID:
            return json_cause(evidence, code)
        case Kind.SCHEMA_INVALID if code == "not_json":
            return json_cause(evidence, code)
        case Kind.TEST_FAILED:
            return _run_cause(findings, evidence)
        case Kind.COMMAND_FAILED:
            known = "timeout" if code == "timeout" else text_or_none(evidence.get("class"))
            return known or _command_cause(evidence)
    return code or text_or_none(evidence.get("cause")) or text_or_none(evidence.get("class"))


def json_cause(evidence: Mapping[str, Json], code: str | None = None) -> str:
    shape = text_or_none(evidence.get("shape")) or code or "syntax"
    return "syntax" if shape in ("object", "not_json") else shape


def _run_cause(findings: Sequence[Finding], evidence: Mapping[str, Json]) -> str:
    codes = [finding.code for finding in findings if finding.code]
    reason = text_or_none(evidence.get("reason"))
    cause = reason or (codes[0] if codes else _test_cause(evidence))
    if cause != "collection_error":
        return cause
    # The reason why collection failed is more useful than the fact that it failed.
    return next((code for code in codes if code in ("import_error", "syntax_error")), cause)


def _test_cause(evidence: Mapping[str, Json]) -> str:
    failed = evidence.get("failed")
    first = failed[0] if isinstance(failed, list) and failed else None
    name = text_or_none(first.get("exception")) if isinstance(first, Mapping) else None
    match (name or "AssertionError").rpartition(".")[2]:
        case "AssertionError" | "Failed":
            return "assertion"
        case "ImportError" | "ModuleNotFoundError":
            return "import_error"
        case "SyntaxError" | "IndentationError" | "TabError":
            return "syntax_error"
    return "exception"


def _command_cause(evidence: Mapping[str, Json]) -> str:
    if evidence.get("timed_out"):
        return "timeout"
    if evidence.get("signal") is not None:
        return "signal"
    # POSIX shells reserve these exit codes for a program that could not be started.
    return "not_found" if evidence.get("exit_code") in (126, 127) else "exit"


def by_structure(evidence: Mapping[str, Json]) -> KindAndCause | None:
    """Classify by the evidence alone, the strongest first; None if it is not conclusive."""
    for name in ("code", "class", "finish_reason"):
        if classified := ERROR_CODES.get(text_or_none(evidence.get(name)) or ""):
            return classified
    if evidence.get("timed_out") or evidence.get("signal") or evidence.get("exit_code"):
        return Kind.COMMAND_FAILED, _command_cause(evidence)
    status = evidence.get("status")
    if isinstance(status, int) and 400 <= status <= 599:
        return by_status(status)
    if evidence.get("provider") or evidence.get("retry_after") is not None:
        return Kind.TOOL_ERROR, "transport"
    if evidence.get("failed"):
        return Kind.TEST_FAILED, _test_cause(evidence)
    if evidence.get("contract"):
        return Kind.SCHEMA_INVALID, "value"
    if evidence.get("shape") or evidence.get("truncated"):
        return Kind.JSON_INVALID, json_cause(evidence)
    return by_class_names([(text_or_none(evidence.get("exception")) or "").rpartition(".")[2]])


def text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
