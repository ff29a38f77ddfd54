"""Failure signatures: the same string for the same failure, wherever and whenever it happens.

A signature is ``v2:`` and a hash of the failure's kind, its verifier and its parts. Parts are
structured facts. Masked text is used only where nothing else tells failures apart: for a finding
without a path, and for a failure without any structure. There are two levels. The strict one keeps
what shows progress: compared values, the number of errors and the verifier's score. The coarse one
drops them, so that a fleet can share statistics and remedies.

| kind           | strict                                              | coarse drops         |
|----------------|-----------------------------------------------------|----------------------|
| schema_invalid | contract, (keyword, schema path, instance path)     | contract             |
| json_invalid   | class of the decoder's message, truncated, shape    | nothing              |
| test_failed    | (node id, exception, frame, assertion line), reason | operands             |
| command_failed | argv, exit code, signal or timeout, end of stderr   | values in stderr     |
| tool_error     | provider, status, class, error code                 | nothing              |
| others         | (code, place, expectation), class, error code       | expectation at a place |
| all            | number of errors, score                             | both                 |
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from mulligan.policies.failures.failure import FailureKind, FailureRecord, Finding
from mulligan.policies.failures.mask import MAX_INPUT, Level, mask, mask_assertion, mask_lines
from mulligan.policies.value import Json, Value

VERSION = "v2"
#: The number of lines at the end of a command's output that identify its failure.
TAIL_LINES = 3

Parts = dict[str, Json]
_INDEX = re.compile(r"\[\d{1,20}\]|(?<=/)\d{1,20}(?=/|$)")


class SignatureParts(Value):
    """The parts that the two signatures of a failure are computed from."""

    strict: Parts
    coarse: Parts
    #: ``text`` if the failure has no structure, so that its masked message is used.
    basis: Literal["structure", "text"]


class SignatureExplanation(Value):
    """How a record's signatures were computed."""

    version: str
    kind: FailureKind
    verifier_id: str | None
    strict_signature: str
    coarse_signature: str
    strict_parts: Parts
    coarse_parts: Parts
    basis: Literal["structure", "text"]
    #: The parts that the coarse signature masks or drops.
    masked: tuple[str, ...]
    #: Whether the record carries these signatures; False for one made by another version.
    matches: bool

    def as_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def as_text(self) -> str:
        """Return a few lines for people: each part, and its form in the coarse signature."""
        by = f" by {self.verifier_id}" if self.verifier_id else ""
        lines = [
            f"{self.kind}{by}, from {self.basis}",
            f"strict {self.strict_signature}",
            *(f"  {name} = {_show(part)}" for name, part in self.strict_parts.items()),
            f"coarse {self.coarse_signature}",
        ]
        for name in self.masked:
            kept = name in self.coarse_parts
            lines.append(f"  {name} = {_show(self.coarse_parts[name]) if kept else 'dropped'}")
        if not self.masked:
            lines.append("  the same parts")
        if not self.matches:
            lines.append("the record was signed by another version")
        return "\n".join(lines)


class _Facts(NamedTuple):
    """The facts about a failure that parts are built from."""

    findings: Sequence[Finding]
    evidence: Mapping[str, Json]
    message: str
    coarse: bool

    @property
    def roots(self) -> list[str]:
        root = self.evidence.get("workspace")
        return [root] if isinstance(root, str) else []

    @property
    def level(self) -> Level:
        return Level.OPERAND if self.coarse else Level.NOISE

    def text(self, name: str) -> str:
        value = self.evidence.get(name)
        return value if isinstance(value, str) else ""


def signature_parts(
    kind: FailureKind,
    findings: Sequence[Finding],
    evidence: Mapping[str, Json],
    message: str,
) -> SignatureParts:
    """Return the parts of a failure at both levels."""
    build = _BUILDERS.get(kind, _other_parts)
    strict = _Facts(findings, evidence, message, coarse=False)
    coarse = strict._replace(coarse=True)
    progress = _present(_progress(strict))
    if parts := _present(build(strict)):
        outline = _present(build(coarse))
        return SignatureParts(strict=parts | progress, coarse=outline, basis="structure")
    text, outline = {"text": _rendered(strict)}, {"text": _rendered(coarse)}
    return SignatureParts(strict=text | progress, coarse=outline, basis="text")


def _progress(facts: _Facts) -> Parts:
    """Return how bad the failure is: fewer errors or a better score is another failure."""
    errors = sum(finding.count for finding in facts.findings)
    score = facts.evidence.get("score")
    return {
        "count": errors if errors > 1 else None,
        "score": score if isinstance(score, int | float) else None,
    }


def sign(kind: FailureKind, verifier_id: str | None, parts: Mapping[str, Json]) -> str:
    """Return ``v2:`` and a hash of the canonical JSON of kind, verifier and parts."""
    canonical = _canonical([str(kind), verifier_id, parts])
    return f"{VERSION}:{hashlib.sha256(canonical.encode()).hexdigest()[:20]}"


def signatures(
    kind: FailureKind,
    verifier_id: str | None,
    findings: Sequence[Finding],
    evidence: Mapping[str, Json],
    message: str,
) -> tuple[str, str]:
    """Return the strict and the coarse signature of a failure."""
    parts = signature_parts(kind, findings, evidence, message)
    return sign(kind, verifier_id, parts.strict), sign(kind, verifier_id, parts.coarse)


def explain_signature(record: FailureRecord) -> SignatureExplanation:
    """Return the parts of a record's signatures, and which the coarse one masks or drops."""
    parts = signature_parts(record.kind, record.findings, record.evidence, record.message)
    strict = sign(record.kind, record.verifier_id, parts.strict)
    coarse = sign(record.kind, record.verifier_id, parts.coarse)
    return SignatureExplanation(
        version=VERSION,
        kind=record.kind,
        verifier_id=record.verifier_id,
        strict_signature=strict,
        coarse_signature=coarse,
        strict_parts=parts.strict,
        coarse_parts=parts.coarse,
        basis=parts.basis,
        masked=tuple(k for k, part in parts.strict.items() if parts.coarse.get(k) != part),
        matches=(record.classification_signature, record.coarse_signature) == (strict, coarse),
    )


def decoder_class(message: str) -> str:
    """Return a JSON decoder's message without its position: ``Expecting value``."""
    return mask(message.split(": line ", 1)[0], Level.NOISE).strip()


# -- one builder per kind -------------------------------------------------------------------------


def _schema_parts(facts: _Facts) -> Parts:
    contract = None if facts.coarse else facts.evidence.get("contract")
    errors = [_schema_error(finding, facts) for finding in facts.findings]
    unparsed = any(finding.code == "not_json" for finding in facts.findings)
    parts = {"contract": contract, "errors": _distinct(errors)} if errors else {}
    return {**parts, **_json_parts(facts)} if unparsed else parts


def _schema_error(finding: Finding, facts: _Facts) -> list[str]:
    place = _INDEX.sub(_any_index, finding.path or "")
    return [finding.code or "", finding.schema_path or "", place, *_complaint(finding, facts)]


def _complaint(finding: Finding, facts: _Facts) -> list[str]:
    """Return the masked message of a finding without a place, which nothing else tells apart."""
    if finding.path:
        return []
    message = finding.message
    if isinstance(finding.actual, str) and finding.actual and finding.code != "forbidden":
        # It quotes the answer, which may be wrong in other words each time.
        for quoted in (json.dumps(finding.actual, ensure_ascii=False), finding.actual):
            message = message.replace(quoted, "<actual>")
    return [mask_lines(message, facts.level, roots=facts.roots)]


def _any_index(match: re.Match[str]) -> str:
    return "[*]" if match.group().startswith("[") else "*"


def _json_parts(facts: _Facts) -> Parts:
    evidence = facts.evidence
    codes = [finding.code for finding in facts.findings if finding.code]
    shape = evidence.get("shape") or (codes[0] if codes else None)
    decoder = decoder_class(facts.text("decoder"))
    truncated = bool(evidence.get("truncated"))
    if not (shape or decoder):
        return {}
    # A plug-in's finding says more than its code.
    structured = evidence.get("shape") or decoder
    complaints = [] if structured else [_complaint(finding, facts) for finding in facts.findings]
    return {
        "decoder": decoder,
        "shape": shape,
        "truncated": truncated,
        "errors": _distinct([complaint for complaint in complaints if complaint]),
    }


def _test_parts(facts: _Facts) -> Parts:
    failed = facts.evidence.get("failed")
    entries = failed if isinstance(failed, list) else []
    tests = [_failed_test(entry, facts) for entry in entries if isinstance(entry, Mapping)]
    tests = tests or [_test_finding(finding, facts) for finding in facts.findings]
    # A finding about the run as a whole has a code and no place.
    whole = [finding for finding in facts.findings if finding.code and not finding.path]
    reason = facts.evidence.get("reason") or (whole[0].code if whole else None)
    # pytest's exit code says less than the failed tests: use it only without any.
    exit_code = None if tests or reason else facts.evidence.get("exit_code")
    return {"tests": _distinct(tests), "reason": reason, "exit_code": exit_code}


def _failed_test(entry: Mapping[str, Json], facts: _Facts) -> list[str]:
    def get(name: str) -> str:
        value = entry.get(name)
        return value if isinstance(value, str) else ""

    return [
        get("nodeid"),
        get("exception").rpartition(".")[2],
        mask(get("frame"), Level.NOISE, roots=facts.roots),
        mask_assertion(get("assertion"), coarse=facts.coarse, roots=facts.roots),
    ]


def _test_finding(finding: Finding, facts: _Facts) -> list[str]:
    if finding.code in (None, "assertion", "exception"):
        text = mask_assertion(finding.message, coarse=facts.coarse, roots=facts.roots)
    else:
        text = "".join(_complaint(finding, facts))
    return [finding.path or "", finding.code or "", "", text]


def _command_parts(facts: _Facts) -> Parts:
    outcome = _outcome(facts.evidence)
    tail = facts.text("stderr_tail") or facts.text("stdout_tail")
    # Where a timeout cuts the output is random and not part of the failure.
    lines = [] if outcome == "timeout" else _last_lines(tail, facts)
    parts: Parts = {"argv": _argv(facts), "outcome": outcome, "output": lines}
    if facts.text("class"):  # such as the rule by which an agent was stuck
        parts["class"] = facts.text("class")
    if outcome == "timeout":
        parts["errors"] = _distinct([[f.code or "", f.path or ""] for f in facts.findings])
    elif not (outcome or lines):
        parts |= _finding_parts(facts)
    return parts


def _outcome(evidence: Mapping[str, Json]) -> str | None:
    if evidence.get("timed_out"):
        return "timeout"
    for name in ("signal", "exit_code"):
        if evidence.get(name) is not None:
            return f"{name} {evidence[name]}"
    return None


def _argv(facts: _Facts) -> list[str]:
    argv = facts.evidence.get("argv")
    words = [argv] if isinstance(argv, str) else argv if isinstance(argv, list) else []
    words = [str(word) for word in words]
    # The program's directory differs between hosts.
    words[:1] = [word.rstrip("/").rpartition("/")[2] for word in words[:1]]
    return [mask(word, Level.NOISE, roots=facts.roots) for word in words]


def _last_lines(text: str, facts: _Facts) -> list[str]:
    lines = [line for line in text[-MAX_INPUT:].splitlines() if line.strip()]
    return [mask_lines(line, facts.level, roots=facts.roots) for line in lines[-TAIL_LINES:]]


def _tool_parts(facts: _Facts) -> Parts:
    names = ("provider", "status", "class", "code", "errno", "exception")
    parts = {name: facts.evidence.get(name) for name in names}
    known = _present(parts)
    if known.keys() <= {"exception"}:
        # With only a class or nothing, different failures would be equal without their text.
        return {**parts, **_finding_parts(facts)} if facts.findings else _with_text(known, facts)
    return parts


def _other_parts(facts: _Facts) -> Parts:
    parts = {name: facts.evidence.get(name) for name in ("class", "code", "exception")}
    if facts.findings:
        return {**parts, **_finding_parts(facts)}
    return parts if parts["code"] or parts["class"] else _with_text(_present(parts), facts)


def _finding_parts(facts: _Facts) -> Parts:
    errors: list[list[Json]] = []
    for finding in facts.findings:
        error: list[Json] = [finding.code or "", finding.path or "", *_complaint(finding, facts)]
        if not (facts.coarse and finding.path):
            # ``actual`` is text of the answer, except a forbidden text, which the check names.
            error.append(finding.actual if finding.code == "forbidden" else finding.expected)
        errors.append(error)
    return {"errors": _distinct(errors)}


def _with_text(parts: Parts, facts: _Facts) -> Parts:
    return {**parts, "text": _rendered(facts)} if parts else {}


def _rendered(facts: _Facts) -> str:
    return mask_lines(facts.message, facts.level, roots=facts.roots)


_BUILDERS: dict[FailureKind, Callable[[_Facts], Parts]] = {
    FailureKind.SCHEMA_INVALID: _schema_parts,
    FailureKind.JSON_INVALID: _json_parts,
    FailureKind.TEST_FAILED: _test_parts,
    FailureKind.COMMAND_FAILED: _command_parts,
    FailureKind.TOOL_ERROR: _tool_parts,
}


def _distinct(rows: Sequence[Json]) -> list[Json]:
    """Sort the rows and drop repeated ones: the order of errors means nothing."""
    return [json.loads(row) for row in sorted({_canonical(row) for row in rows})]


def _canonical(value: Json) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def _present(parts: Parts) -> Parts:
    return {name: part for name, part in parts.items() if part not in (None, "", [], {})}


def _show(part: Json) -> str:
    return json.dumps(part, ensure_ascii=False, default=str)
