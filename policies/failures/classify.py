"""Classify a failure of any form: build its failure record.

Structure comes before text: an explicit kind, the verifier, an error code, an exit code, a status,
the class of an exception. Only a failure without any of these is classified by its words. The
tables are in ``causes.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mulligan.policies.failures import causes
from mulligan.policies.failures.failure import (
    ConfigFailure,
    FailureKind,
    FailureRecord,
    FailureSource,
    Finding,
    ParseFailure,
    SchemaFailure,
    VerificationResult,
    VerificationStatus,
    json_path,
)
from mulligan.policies.failures.places import Places, any_index
from mulligan.policies.failures.plain_json import (
    MAX_MESSAGE,
    plain_dict,
    plain_finding,
    storable,
    text_of,
)
from mulligan.policies.failures.redaction import is_name
from mulligan.policies.failures.signature import decoder_class, signatures
from mulligan.policies.repair.free_repair import extract_json
from mulligan.policies.value import Json

#: Characters of the end of an output: a record is stored with every attempt.
MAX_TAIL = 4000
#: The number of findings of one exception.
MAX_FINDINGS = 200
#: Failures of the answer. If it was cut off, that is the cause, whatever else failed.
_ABOUT_ANSWER = frozenset(
    {FailureKind.JSON_INVALID, FailureKind.TEST_FAILED, FailureKind.REASONING_ERROR}
)
#: Codes of findings about an answer over a maximum length.
_TOO_LONG = ("too_long", "maxLength")
#: Name in the evidence → attributes of exceptions that may have it.
_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "exit_code": ("exit_code", "returncode"),
    "signal": ("signal",),
    "argv": ("argv", "cmd"),
    "stderr_tail": ("stderr",),
    "stdout_tail": ("stdout",),
    "status": ("status", "status_code", "http_status"),
    "code": ("code",),
    "provider": ("provider",),
    "retry_after": ("retry_after",),
    "errno": ("errno",),
}


class _Case(NamedTuple):
    """A failure whose payload has been read."""

    kind: FailureKind
    cause: str | None
    message: str
    findings: tuple[Finding, ...] = ()
    evidence: Mapping[str, Json] = {}
    verifier_id: str | None = None
    guessed: bool = False


def classify_failure(
    payload: object,
    *,
    source: FailureSource,
    attempt: int = 1,
    node_id: str | None = None,
    truncated: bool = False,
) -> FailureRecord:
    """Classify a failed verification, a failure value, an exception, a dict or a text.

    Every exception can be classified, even if reading its attributes raises. ``truncated`` says
    that the token cap cut off the answer. A failure of a graph names its node: the item of a loop
    that failed in its ``attempt``. Raise ValueError for a verification that did not fail, for a
    dict with an unknown ``kind`` and for a graph without a node.
    """
    if source == "graph" and not node_id:
        raise ValueError("a failure of a graph needs its node_id")
    case = _read(payload)
    evidence = plain_dict(case.evidence)
    # Every role sees the cause in statistics and events: accept names, not sentences.
    cause = case.cause if is_name(case.cause) else None
    if evidence.get("truncated") or (truncated and _is_about_answer(case)):
        evidence["truncated"] = True
        # A complete value that is not an object did not fail because of the cut.
        cause = cause if evidence.get("shape") == "not_object" else "truncated"
    message = storable(case.message.strip(), MAX_MESSAGE) or f"{case.kind} without a message"
    findings = tuple(plain_finding(finding) for finding in case.findings)
    strict, coarse = signatures(case.kind, case.verifier_id, findings, evidence, message)
    return FailureRecord(
        kind=case.kind,
        classification_signature=strict,
        coarse_signature=coarse,
        message=message,
        source=source,
        attempt=attempt,
        node_id=node_id,
        verifier_id=case.verifier_id,
        cause=cause,
        guessed=case.guessed,
        findings=findings,
        evidence=evidence,
    )


def _is_about_answer(case: _Case) -> bool:
    if is_too_long(case.findings):
        return False
    return case.kind in _ABOUT_ANSWER or case.verifier_id == "command.subprocess"


def is_too_long(findings: Sequence[Finding]) -> bool:
    """Whether the answer is over a maximum, so that more room cannot help it."""
    return any(finding.code in _TOO_LONG for finding in findings)


def _read(payload: object) -> _Case:
    match payload:
        case VerificationResult():
            return _of_verification(payload)
        case ParseFailure():
            return _of_parse_failure(payload)
        case SchemaFailure():
            return _of_schema_failure(payload)
        case ConfigFailure():
            finding = Finding(message=payload.message, code="config", path=payload.field)
            kind = FailureKind.REASONING_ERROR
            return _Case(kind, "config", payload.message, (finding,) if payload.field else ())
        case BaseException():
            return _of_exception(payload)
        case Mapping():
            return _of_mapping(payload)
        case str():
            return _Case(*causes.by_phrase(payload), payload, guessed=True)
    raise TypeError(f"cannot classify a {type(payload).__name__}")


# -- verifications --------------------------------------------------------------------------------


def _of_verification(result: VerificationResult) -> _Case:
    if result.status is not VerificationStatus.FAIL:
        raise ValueError(
            f"{result.verifier_id} says {result.status}: only a failed verification is a failure"
        )
    kind = causes.VERIFIERS.get(result.verifier_id)
    if kind is None:
        # A plug-in may name its kind; an unknown one does not stop the job.
        kind = _kind_or_none(result.evidence.get("kind")) or FailureKind.TOOL_ERROR
    first = result.errors[0] if result.errors else Finding(message=f"{result.verifier_id} failed")
    timed_out = result.evidence.get("timed_out") or first.code == "timeout"
    if kind is FailureKind.TEST_FAILED and timed_out:
        kind = FailureKind.COMMAND_FAILED
    evidence = _with_signal(result.evidence)
    if result.score is not None:
        evidence["score"] = result.score
    return _Case(
        kind,
        causes.cause_of(kind, result.errors, evidence),
        result.summary or first.message,
        result.errors,
        evidence,
        result.verifier_id,
    )


# -- failure values -------------------------------------------------------------------------------


def _of_parse_failure(failure: ParseFailure) -> _Case:
    extraction = extract_json(failure.text, truncated=failure.truncated)
    # Without the text, the shape is unknown.
    shape = extraction.shape if failure.text else "truncated" if failure.truncated else None
    evidence = {
        "shape": shape,
        "truncated": failure.truncated,
        "decoder": decoder_class(failure.message),
    }
    return _Case(
        FailureKind.JSON_INVALID, causes.json_cause(evidence), failure.message, (), evidence
    )


def _of_schema_failure(failure: SchemaFailure) -> _Case:
    cause = causes.cause_of(FailureKind.SCHEMA_INVALID, failure.errors, {}) or "value"
    evidence = {"contract": failure.contract} if failure.contract else {}
    return _Case(FailureKind.SCHEMA_INVALID, cause, failure.message, failure.errors, evidence)


# -- exceptions -----------------------------------------------------------------------------------


def _of_exception(error: BaseException) -> _Case:
    if isinstance(error, ValidationError) and error.error_count():
        return _of_pydantic(error)
    message = message_of(error)
    evidence = _exception_evidence(error)
    if kind := _kind_or_none(evidence.get("kind")):
        cause = causes.cause_of(kind, (), evidence)
        return _Case(kind, cause, message, (), evidence)
    classified = causes.by_structure(evidence) or _by_class(error)
    kind, cause = classified or causes.by_phrase(message)
    if kind is FailureKind.JSON_INVALID:
        decoder = decoder_class(causes.text_or_none(attribute_of(error, "msg")) or message)
        evidence = {"decoder": decoder, "truncated": False, **evidence}
    finding = _exception_finding(error, cause, message)
    findings = (finding,) if finding else ()
    return _Case(kind, cause, message, findings, evidence, guessed=classified is None)


def _by_class(error: BaseException) -> causes.KindAndCause | None:
    """Classify by the exception's class, or else by the exception it was explicitly raised from."""
    current: BaseException | None = error
    for _ in range(5):
        if current is None:
            return None
        if classified := causes.by_class_names([base.__name__ for base in type(current).__mro__]):
            return classified
        current = current.__cause__
    return None


def message_of(error: BaseException) -> str:
    """Return an exception's message, or its class if it has none or cannot be formatted."""
    return text_of(error) or type(error).__name__


def attribute_of(error: BaseException, name: str) -> Any:
    """Return an attribute of any exception; None if it is missing or reading it raises."""
    try:
        return getattr(error, name, None)
    except Exception:  # a property may raise, and the failure itself would be lost
        return None


def _exception_evidence(error: BaseException) -> dict[str, Json]:
    evidence: dict[str, Json] = {"exception": type(error).__name__}
    for name, attributes in _ATTRIBUTES.items():
        found = (attribute_of(error, attribute) for attribute in attributes)
        value = next((value for value in found if value is not None), None)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if isinstance(value, str | int | float | list | tuple):
            evidence[name] = value
            if isinstance(value, str) and name.endswith("_tail"):
                evidence[name] = value[-MAX_TAIL:]
    if type(error).__name__ == "TimeoutExpired":
        evidence["timed_out"] = True
    if isinstance(error, SystemExit):
        evidence.pop("code", None)
        evidence["exit_code"] = _status_of_exit(attribute_of(error, "code"))
    given = attribute_of(error, "evidence")
    evidence |= given if isinstance(given, Mapping) else {}
    # Make it plain first: its values may be of any class.
    return _with_signal(plain_dict(evidence))


def _status_of_exit(code: object) -> int:
    """Return the exit status that the interpreter uses for a SystemExit."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _with_signal(evidence: Mapping[str, Json]) -> dict[str, Json]:
    """Replace a negative exit code, which is how subprocess reports a signal."""
    code = evidence.get("exit_code")
    if not isinstance(code, int) or code >= 0:
        return dict(evidence)
    rest = {name: value for name, value in evidence.items() if name != "exit_code"}
    return {**rest, "signal": -code if rest.get("signal") is None else rest["signal"]}


def _exception_finding(error: BaseException, cause: str | None, message: str) -> Finding | None:
    """Return a finding with the exact place, if the exception's class has one."""
    match error:
        case KeyError() if error.args:
            return Finding(message=message, code=cause, path=text_of(error.args[0])[:200])
        case ImportError() if causes.text_or_none(error.name):
            return Finding(message=message, code=cause, path=error.name)
        case SyntaxError() | OSError() if causes.text_or_none(error.filename):
            return Finding(message=message, code=cause, path=error.filename)
        case AssertionError():
            return Finding(message=message, code="assertion")
    return None


def _of_pydantic(error: ValidationError) -> _Case:
    places = Places()
    for item in error.errors(include_url=False):
        key = item["type"], item["msg"], any_index(json_path(item["loc"]))
        places.add(key, partial(_pydantic_findings, item))
    findings = tuple(places.findings[:MAX_FINDINGS])
    cause = causes.cause_of(FailureKind.SCHEMA_INVALID, findings, {}) or "value"
    # Not pydantic's own text, which quotes the whole input.
    message = f"{error.title}: {findings[0].path}: {findings[0].message}"
    evidence = {"exception": "ValidationError", "contract": error.title}
    return _Case(FailureKind.SCHEMA_INVALID, cause, message, findings, evidence)


def _pydantic_findings(item: ErrorDetails) -> list[Finding]:
    found = Finding(
        message=causes.pydantic_message(item["msg"]),
        code=causes.pydantic_keyword(item["type"]),
        path=json_path(item["loc"]),
        expected=causes.pydantic_expected(item.get("ctx")),
        actual=None if item["type"] == "missing" else item["input"],
    )
    return [found]


# -- dicts ----------------------------------------------------------------------------------------


def _of_mapping(payload: Mapping[str, Any]) -> _Case:
    if "verifier_id" in payload and payload.get("status") in list(VerificationStatus):
        fields = VerificationResult.model_fields
        return _of_verification(
            VerificationResult.model_validate({k: v for k, v in payload.items() if k in fields})
        )
    nested = payload.get("error")
    flat = {**payload, **nested} if isinstance(nested, Mapping) else dict(payload)
    message = next(
        (
            flat[name]
            for name in ("message", "error", "summary", "detail")
            if causes.text_or_none(flat.get(name))
        ),
        "",
    )
    findings = _findings_in(flat)
    evidence = _mapping_evidence(flat)
    verifier_id = causes.text_or_none(flat.get("verifier_id"))
    if "kind" in flat:
        kind = _known_kind(flat["kind"])
        cause = causes.text_or_none(flat.get("cause")) or causes.cause_of(kind, findings, evidence)
        return _Case(kind, cause, message, findings, evidence, verifier_id)
    classified = causes.by_structure(evidence)
    kind, cause = classified or causes.by_phrase(message)
    cause = causes.text_or_none(flat.get("cause")) or cause
    return _Case(kind, cause, message, findings, evidence, verifier_id, guessed=classified is None)


def _findings_in(payload: Mapping[str, Any]) -> tuple[Finding, ...]:
    items = payload.get("findings") or payload.get("errors") or ()
    if isinstance(items, str) or not isinstance(items, Sequence):
        return ()
    return tuple(
        item if isinstance(item, Finding) else Finding.model_validate(item) for item in items
    )


def _mapping_evidence(payload: Mapping[str, Any]) -> dict[str, Json]:
    """Return the payload's evidence, and its structured keys by their names in evidence."""
    aliases = {alias: name for name, names in _ATTRIBUTES.items() for alias in names}
    same = ("timed_out", "truncated", "shape", "decoder", "contract", "failed", "reason",
            "exception", "class", "finish_reason", "stderr_tail", "stdout_tail",
            "score")  # fmt: skip
    aliases |= {name: name for name in same}
    found = {aliases[k]: v for k, v in payload.items() if k in aliases and v is not None}
    given = payload.get("evidence")
    return _with_signal({**found, **given} if isinstance(given, Mapping) else found)


def _known_kind(value: object) -> FailureKind:
    kind = _kind_or_none(value)
    if kind is None:
        raise ValueError(f"unknown kind {value!r}: use one of {', '.join(FailureKind)}")
    return kind


def _kind_or_none(value: object) -> FailureKind | None:
    return FailureKind(value) if isinstance(value, str) and value in list(FailureKind) else None
